// The step that reads a prompt: all of its tokens at once, so that each weight is read once.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/importers/llama/importer.h"
#include "runtime/base/status_macros.h"

namespace resident::cli::llama {

using absl::StrCat;
using v1::GraphTensor;

void Importer::DeclarePrompt() {
  graph_.set_name("prompt");
  AddScalar("prompt_len", v1::DTYPE_I64, 1, static_cast<double>(max_rows_), std::nullopt);
  AddSamplingScalars();
  Tensor(GraphTensor::KIND_INPUT, "prompt", v1::DTYPE_I64, {max_rows_});
  // As in a graph that decodes, which continues with them.
  Tensor(GraphTensor::KIND_STATE, "text", v1::DTYPE_I64, {2 * context_ - 1});
  Tensor(GraphTensor::KIND_STREAM, "token", v1::DTYPE_I64, {1, 1});
  if (options_.logits) {
    Tensor(GraphTensor::KIND_STREAM, "step_logits", v1::DTYPE_F32, {1, config_.vocab});
  }
  // The first column is the position, since the frequency of the first pair is 1.
  Activation("rotated", v1::DTYPE_F32,
             {max_rows_, config_.heads + 2 * config_.kv_heads, config_.head_dim});
  Activation("positions", v1::DTYPE_F32, {max_rows_, 2});
  Activation("inverse", v1::DTYPE_F32, {1, config_.head_dim / 2});
  // The row of the prompt's last token is placed in row `max_rows_` - 1. Nothing is placed behind
  // it, but the check of the graph does not relate a position to a length.
  Activation("ends", v1::DTYPE_F32, {1, 1, 2 * max_rows_ - 1, config_.hidden});
}

void Importer::AddPromptAttention(int64_t layer) {
  const std::string nodes = StrCat("layer", layer, ".");
  const int64_t heads = config_.heads;
  const int64_t kv = config_.kv_heads;
  const int64_t dim = config_.head_dim;
  // Elements of a row.
  const int64_t projected = (heads + kv) * dim;
  const int64_t rotated = (heads + 2 * kv) * dim;
  const int64_t of_keys = kv * context_ * dim;
  const Dims rotation = {1, rows_, heads + kv, dim};
  const Dims cached = {1, kv, context_, dim};
  const Dims queries = {1, heads, rows_, dim};
  Call(nodes + "rope", "rope",
       {View("projected", rotation, 0, {max_rows_ * projected, projected, dim, 1}), Whole("angles"),
        View("rotated", rotation, 0, {max_rows_ * rotated, rotated, dim, 1}), Integer(0),
        Integer(kRopeHalves)});
  Call(nodes + "append", "kv_append",
       {View("rotated", {1, 2 * kv, rows_, dim}, heads * dim,
             {max_rows_ * rotated, dim, rotated, 1}),
        View("cache", {1, 2 * kv, context_, dim}, 2 * layer * of_keys), Integer(0)});
  Call(
      nodes + "attention", "attention",
      {View("rotated", queries, 0, {max_rows_ * rotated, dim, rotated, 1}),
       View("cache", cached, 2 * layer * of_keys), View("cache", cached, (2 * layer + 1) * of_keys),
       None(), View("attended", queries, 0, {max_rows_ * heads * dim, dim, heads * dim, 1}),
       Real(1 / std::sqrt(static_cast<double>(dim))), Named("causal", Integer(1)),
       Named("kv_len", Scalar("prompt_len"))});
}

absl::Status Importer::BeginPrompt() {
  ASSIGN_OR_RETURN(const v1::GraphArgument table,
                   Weight("model.embed_tokens.weight", {config_.vocab, config_.hidden},
                          "vocab_size, hidden_size"));
  Call("embedding", "embedding",
       {View("prompt", {rows_}), table, Rows("residual0", config_.hidden)});
  AddFrequencies();
  AddAngles("inverse", 0, [](double factor) { return Real(factor); });
  Call("positions", "rope_freqs", {Whole("positions")});
  Call("angles", "mul",
       {View("positions", {max_rows_, 1}, 0, {2, 1}), Whole("inverse"), Whole("angles")});
  return absl::OkStatus();
}

// Memory for the two parts of any product's left side.
void Importer::DeclareParts() {
  if (declared_.contains("high")) return;
  const int64_t widest =
      std::max({config_.hidden, config_.intermediate, config_.heads * config_.head_dim});
  for (const char* const part : {"high", "low"}) {
    Activation(part, v1::DTYPE_BF16, {max_rows_ * widest});
  }
}

absl::StatusOr<Importer::RightSide> Importer::AddRightSide(const Projection& projection,
                                                           int64_t columns) {
  const std::string name = StrCat(projection.tensor, ".weight");
  if (!Quantizes(columns)) {
    RETURN_IF_ERROR(Weight(name, {projection.rows, columns}, projection.because).status());
    const std::string full = options_.prefix + name;
    return RightSide{View(full, {columns, projection.rows}, 0, {1, columns}),
                     declared_.at(full).dtype};
  }
  ASSIGN_OR_RETURN(QuantizedWeight w, Quantized(projection, columns));
  // Of bfloat16 only if the weight was: then tensor cores can compute the products, and the
  // rounding is less than that of the quantization.
  ASSIGN_OR_RETURN(
      v1::DType dtype,
      weights_.Take(name, {static_cast<uint64_t>(projection.rows), static_cast<uint64_t>(columns)},
                    projection.because));
  if (dtype != v1::DTYPE_BF16) dtype = v1::DTYPE_F32;
  const char* const matrix = dtype == v1::DTYPE_BF16 ? "matrix_bf16" : "matrix_f32";
  if (!declared_.contains(matrix)) {
    const int64_t widest = std::max(config_.intermediate, config_.heads * config_.head_dim);
    Activation(matrix, dtype, {config_.hidden * widest});
  }
  Call(projection.node + ".weight", "dequant",
       {std::move(w.q), std::move(w.scales), None(),
        View(matrix, {projection.rows, columns}, 0, {columns, 1}), Group()});
  return RightSide{View(matrix, {columns, projection.rows}, 0, {1, columns}), dtype};
}

// Products of matrices. With weights of bf16, the inputs are taken as the sums of two matrices of
// bf16, as gemv does with a vector of float32, so that they can be computed by tensor cores.
absl::Status Importer::AddProducts(const std::string& in, int64_t columns,
                                   const std::vector<Projection>& projections) {
  const v1::GraphArgument whole = View(in, {rows_, columns});
  const v1::GraphArgument high = View("high", {rows_, columns}, 0, {columns, 1});
  const v1::GraphArgument low = View("low", {rows_, columns}, 0, {columns, 1});
  bool divided = false;
  for (const Projection& each : projections) {
    ASSIGN_OR_RETURN(const RightSide right, AddRightSide(each, columns));
    ASSIGN_OR_RETURN(const v1::GraphArgument bias, Bias(each));
    if (each.bias) {
      Call(each.node + ".bias", "copy",
           {View(bias.tensor().name(), {rows_, each.rows}, 0, {0, 1}), each.out});
    }
    const auto product = [&](const std::string& node, const v1::GraphArgument& left, bool add) {
      Call(node, "gemm", {left, right.transposed, each.out, Real(1), Real(add ? 1 : 0)});
    };
    if (right.dtype != v1::DTYPE_BF16) {
      product(each.node, whole, each.bias);
      continue;
    }
    if (!std::exchange(divided, true)) {
      DeclareParts();
      Call(each.node + ".high", "copy", {whole, high});
      Call(each.node + ".low", "sub", {whole, high, low});
    }
    product(each.node, high, each.bias);
    product(each.node + ".rest", low, true);
  }
  return absl::OkStatus();
}

absl::Status Importer::EndPrompt() {
  RETURN_IF_ERROR(AddNorm(LastNorm()));
  const v1::GraphArgument last =
      View("ends", {1, config_.hidden}, (max_rows_ - 1) * config_.hidden);
  Call("first", "copy", {View("normed", {1, config_.hidden}), last});
  Call("ends", "kv_append",
       {View("normed", {1, 1, rows_, config_.hidden}), Whole("ends"),
        Scalar("prompt_len", -1, static_cast<double>(max_rows_))});
  RETURN_IF_ERROR(AddProjection(last, config_.hidden, Head()));
  AddStepLogits();
  const v1::GraphArgument next = View("text", {1}, context_ - 1);
  // Of the position of the prompt's last token, as when it is read by a step of its own.
  AddChoice(0, next, Scalar("prompt_len", 1, -1));
  Call("token", "copy", {next, Whole("token")});
  return absl::OkStatus();
}

}  // namespace resident::cli::llama
