// A step that takes one token and computes the next one.
#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/cli/llama_importer.h"
#include "runtime/base/status_macros.h"

namespace resident::cli::llama {

using absl::StrCat;
using v1::GraphTensor;

namespace {

// The most parts into which a step's attention divides the keys of a head: one for each 32 keys
// (kernels/ops/attention_decode.h), but those of all heads together are about as many as a large
// GPU has multiprocessors.
int64_t PartsOfKeys(int64_t kv_heads, int64_t context) {
  constexpr int64_t kAllParts = 128;
  constexpr int64_t kMinKeys = 32;
  return std::max(int64_t{1}, std::min(kAllParts / kv_heads, context / kMinKeys));
}

}  // namespace

void Importer::DeclareDecode() {
  graph_.set_name("decode");
  const auto last = static_cast<double>(context_ - 1);
  AddScalar("pos", v1::DTYPE_I64, 0, last, 0);
  AddScalar("position", v1::DTYPE_F32, 0, last, 0);
  AddScalar("prompt_len", v1::DTYPE_I64, 1, last + 1, std::nullopt);
  AddSamplingScalars();
  parts_ = PartsOfKeys(config_.kv_heads, context_);
  Activation("part_values", v1::DTYPE_F32, {config_.heads, parts_, config_.head_dim});
  Activation("part_largest", v1::DTYPE_F32, {config_.heads, parts_});
  Activation("part_sums", v1::DTYPE_F32, {config_.heads, parts_});
  // How many parts of each head are complete.
  Activation("arrived", v1::DTYPE_I32, {config_.layers, config_.kv_heads});
  // The token that a step reports stands in row `context`, where rows of -1 hide it while the
  // prompt has a next token.
  Activation("reported", v1::DTYPE_I64, {2 * context_});
  Alias("reported_bits", "reported", v1::DTYPE_F32, {1, 1, 2 * context_, 2});
  Alias("stop_token", "reported", v1::DTYPE_I64, {1}, 8 * context_);
  Activation("hidden", v1::DTYPE_I32, {2});
  Alias("hidden_bits", "hidden", v1::DTYPE_F32, {2});
  Tensor(GraphTensor::KIND_INPUT, "prompt", v1::DTYPE_I64, {context_});
  // Tokens of 8 bytes as two elements of a type that kv_append accepts; it copies the bits.
  Alias("prompt_bits", "prompt", v1::DTYPE_F32, {1, 1, context_, 2});
  // The step's token stands in row `context` - 1. The prompt is written over it so that its row
  // `pos`, if it has one, is placed there.
  Tensor(GraphTensor::KIND_STATE, "text", v1::DTYPE_I64, {2 * context_ - 1});
  Alias("text_bits", "text", v1::DTYPE_F32, {1, 1, 2 * context_ - 1, 2});
  Tensor(GraphTensor::KIND_STREAM, "token", v1::DTYPE_I64, {context_, 1});
  if (options_.logits) {
    Tensor(GraphTensor::KIND_STREAM, "step_logits", v1::DTYPE_F32, {context_, config_.vocab});
  }
  v1::GraphLoop& loop = *graph_.mutable_loop();
  loop.set_max_steps(static_cast<uint64_t>(context_));
  for (const char* const scalar : {"pos", "position"}) {
    v1::GraphUpdate& update = *loop.add_updates();
    update.set_scalar(scalar);
    update.set_addend(1);
  }
  if (config_.stop_tokens.empty()) return;
  loop.mutable_stop()->set_tensor("stop_token");
  for (const int64_t token : config_.stop_tokens) loop.mutable_stop()->add_values(token);
}

absl::Status Importer::BeginDecode() {
  ASSIGN_OR_RETURN(const v1::GraphArgument table,
                   Weight("model.embed_tokens.weight", {config_.vocab, config_.hidden},
                          "vocab_size, hidden_size"));
  Call("place_prompt", "kv_append",
       {View("prompt_bits", {1, 1, kPromptLength, 2}), Whole("text_bits"),
        Scalar("pos", -1, static_cast<double>(context_ - 1))});
  Call("embedding", "embedding", {View("text", {1}, context_ - 1), table, Whole("residual0")});
  // A step that was cancelled may have left any numbers.
  Call("arrived", "fill", {Whole("arrived"), Real(0)});
  AddFrequencies("angles", [](double factor) { return Scalar("position", factor); });
  return absl::OkStatus();
}

void Importer::AddDecodeAttention(int64_t layer) {
  const int64_t heads = config_.heads;
  const int64_t kv = config_.kv_heads;
  const int64_t dim = config_.head_dim;
  const int64_t of_keys = kv * context_ * dim;
  const Dims cached = {kv, context_, dim};
  Call(
      StrCat("layer", layer, ".attention"), "attention_decode",
      {View("projected", {heads, dim}), View("projected", {kv, dim}, heads * dim),
       View("projected", {kv, dim}, (heads + kv) * dim), View("angles", {dim / 2}),
       View("cache", cached, 2 * layer * of_keys), View("cache", cached, (2 * layer + 1) * of_keys),
       Whole("part_values"), Whole("part_largest"), Whole("part_sums"),
       View("arrived", {kv}, layer * kv, {1}), View("attended", {heads, dim}, 0, {dim, 1}),
       Scalar("pos"), Real(1 / std::sqrt(static_cast<double>(dim))), Integer(kRopeHalves)});
}

// Chooses the next token, and reports it unless the prompt has one.
absl::Status Importer::EndDecode() {
  RETURN_IF_ERROR(AddNormedProjections(LastNorm(), {Head()}));
  AddStepLogits();
  const v1::GraphArgument next = View("text", {1}, context_ - 1);
  AddChoice(next, Scalar("pos"));
  const v1::GraphArgument reported = View("reported", {1}, context_);
  Call("report", "copy", {next, reported});
  Call("hidden", "fill", {Whole("hidden"), Real(-1)});
  Call("hide", "kv_append",
       {View("hidden_bits", {1, 1, kPromptLength, 2}, 0, {0, 0, 0, 1}), Whole("reported_bits"),
        Scalar("pos", -1, static_cast<double>(context_ - 1))});
  Call("token", "copy", {reported, Whole("token")});
  return absl::OkStatus();
}

}  // namespace resident::cli::llama
