// The layers of a model: for one token, with products of a vector; for a token of each of a few
// texts, with products of a few vectors; or for the tokens of a prompt, with products of matrices.
// Which of the nodes one operator executes together is chosen by the daemon (runtime/graph/fuse.h).
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/importers/llama/importer.h"
#include "runtime/base/status_macros.h"

namespace resident::cli::llama {

using absl::StrCat;

namespace {

constexpr const char* kOfNorm = "hidden_size";

}  // namespace

absl::Status Importer::AddNorm(const Norm& norm) {
  ASSIGN_OR_RETURN(const v1::GraphArgument w, Weight(norm.weight, {config_.hidden}, kOfNorm));
  DeclareActivation("normed", config_.hidden);
  Call(norm.node, "rmsnorm",
       {Rows(Residual(), config_.hidden), w, Rows("normed", config_.hidden),
        Real(config_.norm_epsilon)});
  return absl::OkStatus();
}

absl::Status Importer::AddProjections(const std::string& in, int64_t columns,
                                      std::vector<Projection> projections) {
  if (reads_prompt()) return AddProducts(in, columns, projections);
  for (Projection& each : projections) {
    RETURN_IF_ERROR(AddProjection(Rows(in, columns), columns, std::move(each)));
  }
  return absl::OkStatus();
}

absl::Status Importer::AddProjection(const v1::GraphArgument& in, int64_t columns,
                                     Projection projection) {
  if (Quantizes(columns)) {
    ASSIGN_OR_RETURN(QuantizedWeight w, Quantized(projection, columns));
    Arguments arguments = {in, std::move(w.q), std::move(w.scales), None()};
    if (projection.bias) {
      ASSIGN_OR_RETURN(v1::GraphArgument bias, Bias(projection));
      arguments.push_back(std::move(bias));
    }
    arguments.push_back(std::move(projection.out));
    arguments.push_back(Group());
    Call(projection.node, projection.bias ? "gemv_quant_bias" : "gemv_quant", std::move(arguments));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(
      const v1::GraphArgument w,
      Weight(StrCat(projection.tensor, ".weight"), {projection.rows, columns}, projection.because));
  ASSIGN_OR_RETURN(const v1::GraphArgument bias, Bias(projection));
  Call(projection.node, "gemv", {in, w, bias, std::move(projection.out)});
  return absl::OkStatus();
}

absl::Status Importer::AddNormedProjections(const Norm& norm, std::vector<Projection> projections) {
  RETURN_IF_ERROR(AddNorm(norm));
  return AddProjections("normed", config_.hidden, std::move(projections));
}

absl::Status Importer::AddBranch(const std::string& in, int64_t columns, Projection projection) {
  DeclareActivation("branch", config_.hidden);
  projection.out = Rows("branch", config_.hidden);
  const std::string sum = projection.node + ".sum";
  RETURN_IF_ERROR(AddProjections(in, columns, {std::move(projection)}));
  const v1::GraphArgument residual = Rows(Residual(), config_.hidden);
  residual_ = 1 - residual_;
  Call(sum, "add", {Rows("branch", config_.hidden), residual, Rows(Residual(), config_.hidden)});
  return absl::OkStatus();
}

absl::Status Importer::AddAttention(int64_t layer) {
  const std::string tensors = StrCat("model.layers.", layer, ".");
  const std::string nodes = StrCat("layer", layer, ".");
  const int64_t heads = config_.heads;
  const int64_t kv = config_.kv_heads;
  const int64_t dim = config_.head_dim;
  // Heads from `first` on, of `row` heads.
  struct Place {
    const char* tensor;
    int64_t row;
    int64_t first;
  };
  Place queries = {"queries", heads, 0};
  Place keys = {"keys", kv, 0};
  Place values = {"values", kv, 0};
  if (texts_ == 1) {
    // The operator of a decoding step rotates queries and keys itself. A prompt's are rotated to
    // where its values are.
    const int64_t projected = heads + (reads_prompt() ? kv : 2 * kv);
    queries = {"projected", projected, 0};
    keys = {"projected", projected, heads};
    values = {reads_prompt() ? "rotated" : "projected", heads + 2 * kv, heads + kv};
  }
  const auto projection = [&](const char* name, const Place& out, int64_t count,
                              const char* because) {
    // A single row is dense.
    const int64_t stride = (rows_ == 1 ? count : out.row) * dim;
    return Projection{nodes + name,
                      StrCat(tensors, "self_attn.", name, "_proj"),
                      View(out.tensor, {rows_, count * dim}, out.first * dim, {stride, 1}),
                      count * dim,
                      config_.qkv_bias,
                      because};
  };
  constexpr const char* kOfKeys = "num_key_value_heads * head_dim, hidden_size";
  RETURN_IF_ERROR(AddNormedProjections(
      {nodes + "norm", tensors + "input_layernorm.weight"},
      {projection("q", queries, heads, "num_attention_heads * head_dim, hidden_size"),
       projection("k", keys, kv, kOfKeys), projection("v", values, kv, kOfKeys)}));
  if (reads_prompt()) {
    AddPromptAttention(layer);
  } else {
    for (int64_t text = 0; text < texts_; ++text) AddDecodeAttention(layer, text);
  }
  return AddBranch("attended", heads * dim,
                   {nodes + "o",
                    tensors + "self_attn.o_proj",
                    {},
                    config_.hidden,
                    config_.output_bias,
                    "hidden_size, num_attention_heads * head_dim"});
}

absl::Status Importer::AddMlp(int64_t layer) {
  const std::string tensors = StrCat("model.layers.", layer, ".");
  const std::string nodes = StrCat("layer", layer, ".");
  const int64_t inner = config_.intermediate;
  const Norm norm = {nodes + "mlp_norm", tensors + "post_attention_layernorm.weight"};
  const auto half = [&](const char* name) {
    return Projection{nodes + name,      StrCat(tensors, "mlp.", name, "_proj"),
                      Rows(name, inner), inner,
                      config_.mlp_bias,  "intermediate_size, hidden_size"};
  };
  for (const char* const name : {"gate", "up"}) DeclareActivation(name, inner);
  RETURN_IF_ERROR(AddNormedProjections(norm, {half("gate"), half("up")}));
  Call(nodes + "silu_mul", "silu_mul",
       {Rows("gate", inner), Rows("up", inner), Rows("gated", inner)});
  return AddBranch("gated", inner,
                   {nodes + "down",
                    tensors + "mlp.down_proj",
                    {},
                    config_.hidden,
                    config_.mlp_bias,
                    "hidden_size, intermediate_size"});
}

void Importer::AddFrequencies() {
  // The second row belongs to position 1.
  Call("frequencies", "rope_freqs", {Whole("frequencies"), Real(config_.rope_theta)});
}

void Importer::AddAngles(const std::string& out, int64_t row,
                         const std::function<v1::GraphArgument(double factor)>& scaled) {
  const int64_t pairs = config_.head_dim / 2;
  const int64_t first = row * pairs;
  int64_t pair = 0;
  while (pair < pairs) {
    const LlamaConfig::Band band = config_.FindBand(pair);
    int64_t end = pair + 1;
    if (band == LlamaConfig::Band::kBlended) {
      Call(NodeOfText(StrCat("angle", pair), row), "fill",
           {View(out, {1, 1}, first + pair), scaled(config_.InverseFrequency(pair))});
    } else {
      while (end < pairs && config_.FindBand(end) == band) ++end;
      const double factor = band == LlamaConfig::Band::kDivided ? 1 / config_.rope.factor : 1;
      Call(NodeOfText(StrCat("angles", pair), row), "scale",
           {View("frequencies", {1, end - pair}, pairs + pair, {pairs, 1}),
            View(out, {1, end - pair}, first + pair, {pairs, 1}), scaled(factor)});
    }
    pair = end;
  }
}

Importer::Norm Importer::LastNorm() { return {"norm", "model.norm.weight"}; }

Importer::Projection Importer::Head() const {
  return {"head",          config_.tied ? "model.embed_tokens" : "lm_head",
          Whole("logits"), config_.vocab,
          /*bias=*/false,  "vocab_size, hidden_size"};
}

void Importer::AddStepLogits() {
  if (!options_.logits) return;
  const Dims all = {texts_ * config_.vocab};
  Call("step_logits", "copy", {View("logits", all), View("step_logits", all)});
}

void Importer::AddChoice(int64_t text, v1::GraphArgument next, v1::GraphArgument offset) {
  const v1::GraphArgument logits = View("logits", {1, config_.vocab}, text * config_.vocab);
  const std::string node = NodeOfText("next", text);
  if (!options_.sample) {
    constexpr int64_t kLastAxis = 1 << 1;
    Call(node, "argmax", {logits, std::move(next), Integer(kLastAxis)});
    return;
  }
  const char* const op = options_.top_k != 0   ? "sample_topk"
                         : options_.top_p != 1 ? "sample_topp"
                                               : "sample";
  Arguments arguments = {logits, std::move(next), Scalar("temperature"),
                         Scalar("seed", 1, static_cast<double>(text)), std::move(offset)};
  if (options_.top_k != 0) arguments.push_back(Integer(static_cast<int64_t>(options_.top_k)));
  if (options_.top_p != 1) arguments.push_back(Real(options_.top_p));
  Call(node, op, std::move(arguments));
}

}  // namespace resident::cli::llama
