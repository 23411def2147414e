// A step that takes one token of each text and computes the next ones.
#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/importers/llama/importer.h"
#include "runtime/base/status_macros.h"

namespace resident::cli::llama {

using absl::StrCat;
using v1::GraphTensor;

namespace {

// The most parts into which a step's attention divides the keys of a head: one for each 32 keys
// (kernels/ops/attention_decode.h), but those of all heads of all texts together are about as many
// as a large GPU has multiprocessors. Many texts do not make a part longer than the operator's fast
// form takes (kMaxKeys of kernels/ops/attention_one_position.h).
int64_t PartsOfKeys(int64_t texts, int64_t kv_heads, int64_t context) {
  constexpr int64_t kAllParts = 128;
  constexpr int64_t kMinKeys = 32;
  constexpr int64_t kMaxKeys = 2048;
  const auto shared_by = [&](int64_t heads) {
    return std::max(int64_t{1}, std::min(kAllParts / heads, context / kMinKeys));
  };
  return std::max(shared_by(texts * kv_heads),
                  std::min(shared_by(kv_heads), (context + kMaxKeys - 1) / kMaxKeys));
}

// The parts into which choose_token divides the logits: about as many as a large GPU has
// multiprocessors, but not for few logits.
int64_t PartsOfLogits(int64_t vocab) {
  constexpr int64_t kAllParts = 128;
  constexpr int64_t kMinLogits = 256;
  return std::max(int64_t{1}, std::min(kAllParts, vocab / kMinLogits));
}

}  // namespace

// The tensors and scalars of a text.
void Importer::DeclareText(int64_t text) {
  const auto of = [&](const char* name) { return OfText(name, text); };
  const auto last = static_cast<double>(context_ - 1);
  AddScalar(of("pos"), v1::DTYPE_I64, 0, last, 0);
  AddScalar(of("position"), v1::DTYPE_F32, 0, last, 0);
  AddScalar(of("prompt_len"), v1::DTYPE_I64, 1, last + 1, std::nullopt);
  for (const char* const scalar : {"pos", "position"}) {
    v1::GraphUpdate& update = *graph_.mutable_loop()->add_updates();
    update.set_scalar(of(scalar));
    update.set_addend(1);
  }
  Activation(of("part_values"), v1::DTYPE_F32, {config_.heads, parts_, config_.head_dim});
  Activation(of("part_largest"), v1::DTYPE_F32, {config_.heads, parts_});
  Activation(of("part_sums"), v1::DTYPE_F32, {config_.heads, parts_});
  Tensor(GraphTensor::KIND_INPUT, of("prompt"), v1::DTYPE_I64, {context_});
  // The step's token stands in row `context` - 1.
  Tensor(GraphTensor::KIND_STATE, of("text"), v1::DTYPE_I64, {2 * context_ - 1});
  if (chooses_largest()) {
    Activation("logit_parts", v1::DTYPE_I64, {PartsOfLogits(config_.vocab)});
    Activation("reported", v1::DTYPE_I64, {1});
    return;
  }
  // The token that a step reports stands in row `context`, where rows of -1 hide it while the
  // prompt has a next token.
  Activation(of("reported"), v1::DTYPE_I64, {2 * context_});
  Alias(of("reported_bits"), of("reported"), v1::DTYPE_F32, {1, 1, 2 * context_, 2});
  // Tokens of 8 bytes as two elements of a type that kv_append accepts; it copies the bits. The
  // prompt is written over the text so that its row `pos`, if it has one, is placed where the
  // step's token stands.
  Alias(of("prompt_bits"), of("prompt"), v1::DTYPE_F32, {1, 1, context_, 2});
  Alias(of("text_bits"), of("text"), v1::DTYPE_F32, {1, 1, 2 * context_ - 1, 2});
}

void Importer::DeclareDecode() {
  graph_.set_name("decode");
  v1::GraphLoop& loop = *graph_.mutable_loop();
  loop.set_max_steps(static_cast<uint64_t>(context_));
  parts_ = PartsOfKeys(texts_, config_.kv_heads, context_);
  for (int64_t text = 0; text < texts_; ++text) DeclareText(text);
  AddSamplingScalars();
  // How many parts of each head are complete, and of the logits.
  const int64_t of_logits = chooses_largest() ? 1 : 0;
  Activation("arrived", v1::DTYPE_I32, {texts_ * config_.layers + of_logits, config_.kv_heads});
  if (!chooses_largest()) {
    Activation("hidden", v1::DTYPE_I32, {2});
    Alias("hidden_bits", "hidden", v1::DTYPE_F32, {2});
  }
  Tensor(GraphTensor::KIND_STREAM, "token", v1::DTYPE_I64, {context_, texts_});
  if (options_.logits) {
    Dims record = {config_.vocab};
    if (texts_ > 1) record.insert(record.begin(), texts_);
    record.insert(record.begin(), context_);
    Tensor(GraphTensor::KIND_STREAM, "step_logits", v1::DTYPE_F32, record);
  }
  if (config_.stop_tokens.empty()) return;
  if (texts_ > 1) {
    result_.notes.emplace_back(
        "a run does not end at a stop token, because several texts end apart");
    return;
  }
  Alias("stop_token", "reported", v1::DTYPE_I64, {1}, chooses_largest() ? 0 : 8 * context_);
  loop.mutable_stop()->set_tensor("stop_token");
  for (const int64_t token : config_.stop_tokens) loop.mutable_stop()->add_values(token);
}

absl::Status Importer::BeginDecode() {
  ASSIGN_OR_RETURN(const v1::GraphArgument table,
                   Weight("model.embed_tokens.weight", {config_.vocab, config_.hidden},
                          "vocab_size, hidden_size"));
  if (chooses_largest()) {
    Call("embedding", "take_token",
         {Whole("prompt"), Chosen(0), table, View("residual0", {config_.hidden}), Scalar("pos"),
          Scalar("prompt_len")});
  }
  for (int64_t text = 0; text < texts_ && !chooses_largest(); ++text) {
    const auto of = [&](const char* name) { return OfText(name, text); };
    Call(NodeOfText("place_prompt", text), "kv_append",
         {WithLength(View(of("prompt_bits"), {1, 1, kPromptLength, 2}), of("prompt_len")),
          Whole(of("text_bits")), Scalar(of("pos"), -1, static_cast<double>(context_ - 1))});
    Call(NodeOfText("embedding", text), "embedding",
         {Chosen(text), table, View("residual0", {1, config_.hidden}, text * config_.hidden)});
  }
  // A step that was cancelled may have left any numbers.
  Call("arrived", "fill", {Whole("arrived"), Real(0)});
  AddFrequencies();
  for (int64_t text = 0; text < texts_; ++text) {
    AddAngles("angles", text,
              [&](double factor) { return Scalar(OfText("position", text), factor); });
  }
  return absl::OkStatus();
}

void Importer::AddDecodeAttention(int64_t layer, int64_t text) {
  const int64_t heads = config_.heads;
  const int64_t kv = config_.kv_heads;
  const int64_t dim = config_.head_dim;
  const int64_t of_keys = kv * context_ * dim;
  const Dims cached = {kv, context_, dim};
  const auto of = [&](const char* name) { return OfText(name, text); };
  // One text has parts of `projected`; several texts share a tensor for each of the three.
  const auto projected = [&](const char* tensor, int64_t count, int64_t first) {
    return texts_ == 1 ? View("projected", {count, dim}, first * dim)
                       : View(tensor, {count, dim}, text * count * dim);
  };
  Call(NodeOfText(StrCat("layer", layer, ".attention"), text), "attention_decode",
       {projected("queries", heads, 0), projected("keys", kv, heads),
        projected("values", kv, heads + kv), View("angles", {dim / 2}, text * (dim / 2)),
        View(of("cache"), cached, 2 * layer * of_keys),
        View(of("cache"), cached, (2 * layer + 1) * of_keys), Whole(of("part_values")),
        Whole(of("part_largest")), Whole(of("part_sums")),
        View("arrived", {kv}, (text * config_.layers + layer) * kv, {1}),
        View("attended", {heads, dim}, text * heads * dim, {dim, 1}), Scalar(of("pos")),
        Real(1 / std::sqrt(static_cast<double>(dim))), Integer(kRopeHalves)});
}

v1::GraphArgument Importer::Chosen(int64_t text) const {
  return View(OfText("text", text), {1}, context_ - 1);
}

// Chooses the next token of each text, and reports it unless the prompt has one.
absl::Status Importer::EndDecode() {
  RETURN_IF_ERROR(AddNormedProjections(LastNorm(), {Head()}));
  AddStepLogits();
  if (chooses_largest()) {
    Call("next", "choose_token",
         {View("logits", {config_.vocab}), Whole("logit_parts"),
          View("arrived", {1}, config_.layers * config_.kv_heads), Chosen(0), Whole("reported"),
          View("token", {1}), Scalar("pos"), Scalar("prompt_len")});
    return absl::OkStatus();
  }
  for (int64_t text = 0; text < texts_; ++text) {
    const v1::GraphArgument next = Chosen(text);
    AddChoice(text, next, Scalar(OfText("pos", text)));
    Call(NodeOfText("report", text), "copy", {next, View(OfText("reported", text), {1}, context_)});
  }
  Call("hidden", "fill", {Whole("hidden"), Real(-1)});
  for (int64_t text = 0; text < texts_; ++text) {
    const auto of = [&](const char* name) { return OfText(name, text); };
    Call(NodeOfText("hide", text), "kv_append",
         {WithLength(View("hidden_bits", {1, 1, kPromptLength, 2}, 0, {0, 0, 0, 1}),
                     of("prompt_len")),
          Whole(of("reported_bits")), Scalar(of("pos"), -1, static_cast<double>(context_ - 1))});
    Call(NodeOfText("token", text), "copy",
         {View(of("reported"), {1}, context_), View("token", {1}, text)});
  }
  return absl::OkStatus();
}

}  // namespace resident::cli::llama
