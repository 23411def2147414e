#include "tests/gpu/llama_shape.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/importers/llama/import.h"
#include "nlohmann/json.hpp"
#include "tests/support/bench_report.h"
#include "tests/support/temp_folder.h"

namespace resident::testing {
namespace {

using Json = nlohmann::ordered_json;

void WriteConfig(const LlamaShape& shape, uint64_t context, const std::string& path) {
  const Json config = {
      {"architectures", {"LlamaForCausalLM"}},
      {"hidden_act", "silu"},
      {"hidden_size", shape.hidden},
      {"intermediate_size", shape.intermediate},
      {"num_hidden_layers", shape.layers},
      {"num_attention_heads", shape.heads},
      {"num_key_value_heads", shape.kv_heads},
      {"head_dim", shape.head_dim},
      {"vocab_size", shape.vocab},
      {"max_position_embeddings", context},
      {"rms_norm_eps", 1e-5},
      {"rope_theta", 500000.0},
      {"tie_word_embeddings", false},
  };
  std::ofstream file(path);
  file << config.dump();
  if (!file.flush()) Fail("cannot write " + path);
}

// A safetensors file: its header, and behind it a hole of the size of all tensors.
void WriteWeights(const LlamaShape& shape, const std::string& path) {
  Json header;
  uint64_t bytes = 0;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& sizes) {
    uint64_t size = 2;
    for (const int64_t each : sizes) size *= static_cast<uint64_t>(each);
    header[name] = {{"dtype", "BF16"}, {"shape", sizes}, {"data_offsets", {bytes, bytes + size}}};
    bytes += size;
  };
  const int64_t of_queries = shape.heads * shape.head_dim;
  const int64_t of_keys = shape.kv_heads * shape.head_dim;
  for (int64_t i = 0; i < shape.layers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    add(layer + "input_layernorm.weight", {shape.hidden});
    add(layer + "self_attn.q_proj.weight", {of_queries, shape.hidden});
    add(layer + "self_attn.k_proj.weight", {of_keys, shape.hidden});
    add(layer + "self_attn.v_proj.weight", {of_keys, shape.hidden});
    add(layer + "self_attn.o_proj.weight", {shape.hidden, of_queries});
    add(layer + "post_attention_layernorm.weight", {shape.hidden});
    add(layer + "mlp.gate_proj.weight", {shape.intermediate, shape.hidden});
    add(layer + "mlp.up_proj.weight", {shape.intermediate, shape.hidden});
    add(layer + "mlp.down_proj.weight", {shape.hidden, shape.intermediate});
  }
  add("model.norm.weight", {shape.hidden});
  add("lm_head.weight", {shape.vocab, shape.hidden});
  add("model.embed_tokens.weight", {shape.vocab, shape.hidden});
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << text;
  if (!file.flush()) Fail("cannot write " + path);
  std::error_code error;
  std::filesystem::resize_file(path, sizeof(length) + length + bytes, error);
  if (error) Fail(absl::StrCat("cannot extend ", path, ": ", error.message()));
}

}  // namespace

v1::Graph MakeLlamaGraph(const LlamaShape& shape, uint64_t context,
                         std::optional<Quantization> quantization, uint64_t texts) {
  const TempFolder folder("llama_shape");
  WriteConfig(shape, context, folder.path() + "/config.json");
  WriteWeights(shape, folder.path() + "/model.safetensors");
  cli::LlamaOptions options;
  options.max_context = context;
  options.quantization = quantization;
  options.batch = texts;
  return Must(cli::ImportLlama(folder.path(), options), "the graph of a decode").graph;
}

}  // namespace resident::testing
