// LlamaConfig: the config.json of a model of the Llama form, as Hugging Face's transformers write
// it.
//
// Accepted are the architectures whose computation the importer (llama_import.h) expresses:
// LlamaForCausalLM, MistralForCausalLM up to its sliding window, and Qwen2ForCausalLM. A value
// that would change the computation in another way is refused and never ignored.
//
// Thread safety: pure functions.
//
//   ASSIGN_OR_RETURN(const LlamaConfig config, ReadLlamaConfig("model"));
//   const double angle = position * config.InverseFrequency(pair);
#ifndef RESIDENT_CLIENT_IMPORTERS_LLAMA_CONFIG_H_
#define RESIDENT_CLIENT_IMPORTERS_LLAMA_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace resident::cli {

// How rotary positions are changed for longer contexts ("rope_scaling").
struct RopeScaling {
  enum class Type : uint8_t { kNone, kLinear, kLlama3 };

  Type type = Type::kNone;
  double factor = 1;
  // kLlama3. Wavelengths are original_context / low_frequency and original_context /
  // high_frequency tokens: longer ones are divided by `factor`, shorter ones stay.
  double low_frequency = 1;
  double high_frequency = 4;
  double original_context = 8192;
};

struct LlamaConfig {
  static constexpr int64_t kMaxLayers = 1024;
  static constexpr int64_t kMaxDimension = int64_t{1} << 24;
  // The limit of the operator attention.
  static constexpr int64_t kMaxHeadDim = 256;

  std::string architecture;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab = 0;
  // Positions for which the model was trained, or its sliding window.
  int64_t max_positions = 0;
  double norm_epsilon = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope;
  // The head uses the table of embeddings.
  bool tied = false;
  // Which projections have a bias.
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  // Tokens that end a text; at most 64.
  std::vector<int64_t> stop_tokens;

  // How a pair of elements of a head is treated, from the first pair on.
  enum class Band : uint8_t { kUnchanged, kBlended, kDivided };
  Band FindBand(int64_t pair) const;
  // Radians for each position, of pair 0 to head_dim / 2 - 1.
  double InverseFrequency(int64_t pair) const;
};

// Reads config.json, and the stop tokens of generation_config.json if there is one.
// INVALID_ARGUMENT: a file is missing or damaged, or describes a model that cannot be expressed;
// the message names the key and its value.
absl::StatusOr<LlamaConfig> ReadLlamaConfig(const std::string& folder);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_IMPORTERS_LLAMA_CONFIG_H_
