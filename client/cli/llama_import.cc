#include "client/cli/llama_import.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/llama_config.h"
#include "client/cli/llama_weights.h"
#include "runtime/base/errors/model_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/graph/limits.h"

namespace resident::cli {
namespace {

using absl::StrCat;
using v1::GraphTensor;

using Dims = std::vector<int64_t>;

// A dimension that is a scalar's value.
constexpr int64_t kPromptLength = -1;
constexpr int64_t kMaxCacheElements = int64_t{1} << 56;

// The parts into which a step's attention divides the keys, each of a full cache with at least 128
// keys, which is a step of a block's warps (kernels/ops/attention_stream.h). The parts of all heads
// together are about as many as a large GPU has multiprocessors. 1: for few keys, one operator.
int64_t PartsOfKeys(int64_t kv_heads, int64_t context) {
  constexpr int64_t kAllParts = 128;
  constexpr int64_t kLeastKeys = 128;
  constexpr int64_t kLeastContext = 512;
  if (context < kLeastContext) return 1;
  return std::max(int64_t{1}, std::min(kAllParts / kv_heads, context / kLeastKeys));
}

// A tensor, or a dense part of it; with `strides`, any part.
v1::GraphArgument View(const std::string& tensor, const Dims& shape, int64_t offset = 0,
                       const Dims& strides = {}) {
  v1::GraphArgument argument;
  v1::GraphView& view = *argument.mutable_tensor();
  view.set_name(tensor);
  view.set_offset(offset);
  for (const int64_t size : shape) {
    v1::GraphDim& dim = *view.add_shape();
    size == kPromptLength ? dim.set_scalar("prompt_len") : dim.set_size(size);
  }
  for (const int64_t stride : strides) view.add_strides(stride);
  return argument;
}

v1::GraphArgument Whole(const std::string& tensor) { return View(tensor, {}); }

v1::GraphArgument Real(double value) {
  v1::GraphArgument argument;
  argument.set_f64(value);
  return argument;
}

v1::GraphArgument Integer(int64_t value) {
  v1::GraphArgument argument;
  argument.set_i64(value);
  return argument;
}

// factor * scalar + addend.
v1::GraphArgument Scalar(const std::string& name, double factor = 1, double addend = 0) {
  v1::GraphArgument argument;
  v1::GraphScalarUse& use = *argument.mutable_scalar();
  use.set_name(name);
  if (factor != 1) use.set_factor(factor);
  use.set_addend(addend);
  return argument;
}

v1::GraphArgument None() {
  v1::GraphArgument argument;
  argument.set_none(true);
  return argument;
}

v1::GraphArgument Named(const char* parameter, v1::GraphArgument argument) {
  argument.set_parameter(parameter);
  return argument;
}

class Importer {
 public:
  Importer(const LlamaConfig& config, LlamaWeights& weights, const LlamaOptions& options)
      : config_(config), weights_(weights), options_(options) {}

  absl::StatusOr<LlamaGraph> Import();

 private:
  using Arguments = std::vector<v1::GraphArgument>;

  absl::Status CheckOptions();
  void AddScalars();
  void AddLoop();
  GraphTensor& Tensor(GraphTensor::Kind kind, const std::string& name, v1::DType dtype,
                      const Dims& shape);
  void Alias(const std::string& name, const std::string& of, v1::DType dtype, const Dims& shape,
             int64_t offset_bytes = 0);
  absl::StatusOr<v1::GraphArgument> Weight(const std::string& name, const Dims& shape,
                                           const std::string& because);
  // The bias of a projection, or none.
  absl::StatusOr<v1::GraphArgument> Bias(const std::string& projection, bool exists, int64_t size,
                                         const std::string& because);
  void Call(const std::string& name, const char* op, Arguments arguments);

  absl::Status AddActivations();
  absl::Status AddCache();
  // The parts of a step, in their order.
  absl::Status AddEmbedding();
  void AddAngles();
  absl::Status AddAttention(int64_t layer);
  // `attended` from the queries in `rotated` and a layer's cache.
  void AddAttend(int64_t layer);
  absl::Status AddMlp(int64_t layer);
  absl::Status AddHead();
  absl::Status AddNorm(const std::string& node, const std::string& weight);
  absl::Status AddProjection(const std::string& node, const std::string& tensor,
                             v1::GraphArgument in, v1::GraphArgument out, int64_t rows,
                             int64_t columns, bool bias, const std::string& because);
  void AddToken();
  absl::Status CheckRest();

  const LlamaConfig& config_;
  LlamaWeights& weights_;
  const LlamaOptions& options_;
  LlamaGraph result_;
  v1::Graph& graph_ = result_.graph;
  int64_t context_ = 0;
  int64_t parts_ = 1;  // Of the keys.
  // Of the tensors so far, by name.
  absl::flat_hash_map<std::string, GraphTensor::Kind> kinds_;
  // What the next norm adds to the residual; empty: nothing.
  std::string pending_;
  // Of the two tensors of the residual, the one that has its value.
  int residual_ = 0;
};

absl::Status Importer::CheckOptions() {
  if (options_.batch != 1) return errors::BatchOfSequences(options_.batch);
  const bool by_steps = config_.max_positions > static_cast<int64_t>(graph::kMaxSteps);
  const uint64_t limit = by_steps ? graph::kMaxSteps : static_cast<uint64_t>(config_.max_positions);
  if (options_.max_context == 0) {
    context_ = static_cast<int64_t>(std::min(limit, LlamaGraph::kDefaultContext));
    if (static_cast<uint64_t>(context_) < limit) {
      result_.notes.push_back(StrCat("the cache has ", context_, " of the model's ",
                                     config_.max_positions, " positions; see --max_context"));
    }
  } else if (options_.max_context < 2 || options_.max_context > limit) {
    return errors::ContextLength(options_.max_context, limit,
                                 by_steps
                                     ? "the most steps of a loop"
                                     : "max_position_embeddings or sliding_window of config.json");
  } else {
    context_ = static_cast<int64_t>(options_.max_context);
  }
  if (!options_.sample && options_.top_k != 0) {
    return errors::SamplingOption("--top_k", "has no effect without --sample", "add --sample");
  }
  if (!options_.sample && options_.top_p != 1) {
    return errors::SamplingOption("--top_p", "has no effect without --sample", "add --sample");
  }
  if (options_.top_k > static_cast<uint64_t>(config_.vocab)) {
    return errors::SamplingOption(
        "--top_k", StrCat("is ", options_.top_k, " and may be up to vocab_size, ", config_.vocab),
        "give a smaller value");
  }
  if (!(options_.top_p > 0 && options_.top_p <= 1)) {
    return errors::SamplingOption(
        "--top_p", StrCat("is ", options_.top_p, " and must be above 0 and at most 1"),
        "give a value in this range");
  }
  if (options_.top_k != 0 && options_.top_p != 1) {
    return errors::SamplingOption("--top_k", "cannot be combined with --top_p", "give one of them");
  }
  return absl::OkStatus();
}

void Importer::AddScalars() {
  const auto add = [this](const char* name, v1::DType dtype, double least, double most,
                          std::optional<double> initial) {
    v1::GraphScalar& scalar = *graph_.add_scalars();
    scalar.set_name(name);
    scalar.set_dtype(dtype);
    scalar.set_least(least);
    scalar.set_most(most);
    if (initial.has_value()) scalar.set_initial(*initial);
  };
  const auto last = static_cast<double>(context_ - 1);
  add("pos", v1::DTYPE_I64, 0, last, 0);
  add("position", v1::DTYPE_F32, 0, last, 0);
  add("prompt_len", v1::DTYPE_I64, 1, last + 1, std::nullopt);
  if (!options_.sample) return;
  add("temperature", v1::DTYPE_F32, 0, 1e6, 1);
  add("seed", v1::DTYPE_I64, 0, graph::kMaxWhole, 0);
}

void Importer::AddLoop() {
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

GraphTensor& Importer::Tensor(GraphTensor::Kind kind, const std::string& name, v1::DType dtype,
                              const Dims& shape) {
  GraphTensor& tensor = *graph_.add_tensors();
  kinds_[name] = kind;
  tensor.set_name(name);
  tensor.set_kind(kind);
  tensor.set_dtype(dtype);
  for (const int64_t size : shape) tensor.add_shape()->set_size(size);
  return tensor;
}

void Importer::Alias(const std::string& name, const std::string& of, v1::DType dtype,
                     const Dims& shape, int64_t offset_bytes) {
  GraphTensor& alias = Tensor(kinds_.at(of), name, dtype, shape);
  alias.set_alias_of(of);
  alias.set_offset(static_cast<uint64_t>(offset_bytes));
}

absl::StatusOr<v1::GraphArgument> Importer::Weight(const std::string& name, const Dims& shape,
                                                   const std::string& because) {
  ASSIGN_OR_RETURN(const v1::DType dtype,
                   weights_.Take(name, {shape.begin(), shape.end()}, because));
  const std::string full = options_.prefix + name;
  if (full.size() > graph::kMaxNameBytes)
    return errors::ModelTensorName(full, graph::kMaxNameBytes);
  // The head of a model with tied embeddings uses a tensor again.
  if (!kinds_.contains(full)) Tensor(GraphTensor::KIND_WEIGHT, full, dtype, shape);
  return Whole(full);
}

absl::StatusOr<v1::GraphArgument> Importer::Bias(const std::string& projection, bool exists,
                                                 int64_t size, const std::string& because) {
  if (!exists) return None();
  return Weight(StrCat(projection, ".bias"), {size}, because);
}

void Importer::Call(const std::string& name, const char* op, Arguments arguments) {
  v1::GraphNode& node = *graph_.add_nodes();
  node.set_name(name);
  node.set_operator_(op);
  for (v1::GraphArgument& argument : arguments) *node.add_arguments() = std::move(argument);
}

absl::Status Importer::AddActivations() {
  const auto add = [this](const char* name, v1::DType dtype, const Dims& shape) {
    Tensor(GraphTensor::KIND_ACTIVATION, name, dtype, shape);
  };
  const int64_t heads = config_.heads;
  const int64_t kv = config_.kv_heads;
  const int64_t dim = config_.head_dim;
  // All layers use the same ones.
  add("residual0", v1::DTYPE_F32, {1, config_.hidden});
  add("residual1", v1::DTYPE_F32, {1, config_.hidden});
  add("normed", v1::DTYPE_F32, {1, config_.hidden});
  // Queries and keys before the rotation; then queries, keys and values.
  add("projected", v1::DTYPE_F32, {heads + kv, dim});
  add("rotated", v1::DTYPE_F32, {heads + 2 * kv, dim});
  add("attended", v1::DTYPE_F32, {heads, dim});
  if (parts_ > 1) {
    add("part_values", v1::DTYPE_F32, {1, heads, 1, parts_, dim});
    add("part_largest", v1::DTYPE_F32, {1, heads, 1, parts_});
    add("part_sums", v1::DTYPE_F32, {1, heads, 1, parts_});
  }
  add("branch", v1::DTYPE_F32, {1, config_.hidden});
  add("gate", v1::DTYPE_F32, {1, config_.intermediate});
  add("up", v1::DTYPE_F32, {1, config_.intermediate});
  add("gated", v1::DTYPE_F32, {1, config_.intermediate});
  add("logits", v1::DTYPE_F32, {1, config_.vocab});
  add("frequencies", v1::DTYPE_F32, {2, dim / 2});
  add("angles", v1::DTYPE_F32, {1, dim / 2});
  // The token that a step reports stands in row `context`, where rows of -1 hide it while the
  // prompt has a next token.
  add("reported", v1::DTYPE_I64, {2 * context_});
  Alias("reported_bits", "reported", v1::DTYPE_F32, {1, 1, 2 * context_, 2});
  Alias("stop_token", "reported", v1::DTYPE_I64, {1}, 8 * context_);
  add("hidden", v1::DTYPE_I32, {2});
  Alias("hidden_bits", "hidden", v1::DTYPE_F32, {2});
  Tensor(GraphTensor::KIND_INPUT, "prompt", v1::DTYPE_I64, {context_});
  // Tokens of 8 bytes as two elements of a type that kv_append accepts; it copies the bits.
  Alias("prompt_bits", "prompt", v1::DTYPE_F32, {1, 1, context_, 2});
  // The step's token stands in row `context` - 1. The prompt is written over it so that its row
  // `pos`, if it has one, comes to lie there.
  Tensor(GraphTensor::KIND_STATE, "text", v1::DTYPE_I64, {2 * context_ - 1});
  Alias("text_bits", "text", v1::DTYPE_F32, {1, 1, 2 * context_ - 1, 2});
  Tensor(GraphTensor::KIND_STREAM, "token", v1::DTYPE_I64, {context_, 1});
  if (options_.logits) {
    Tensor(GraphTensor::KIND_STREAM, "step_logits", v1::DTYPE_F32, {context_, config_.vocab});
  }
  return absl::OkStatus();
}

absl::Status Importer::AddCache() {
  v1::DType dtype = options_.cache;
  if (dtype == v1::DTYPE_UNSPECIFIED) {
    ASSIGN_OR_RETURN(dtype,
                     weights_.Take("model.layers.0.self_attn.k_proj.weight",
                                   {static_cast<uint64_t>(config_.kv_heads * config_.head_dim),
                                    static_cast<uint64_t>(config_.hidden)},
                                   "num_key_value_heads * head_dim, hidden_size"));
  }
  // Keys of all heads, then values. No factor is above 2^24.
  const int64_t rows = config_.layers * 2 * config_.kv_heads;
  if (rows > kMaxCacheElements / (context_ * config_.head_dim)) {
    return errors::CacheTooLarge(
        StrCat(config_.layers, "x", 2 * config_.kv_heads, "x", context_, "x", config_.head_dim));
  }
  Tensor(GraphTensor::KIND_STATE, "cache", dtype,
         {config_.layers, 2 * config_.kv_heads, context_, config_.head_dim});
  return absl::OkStatus();
}

absl::Status Importer::AddEmbedding() {
  ASSIGN_OR_RETURN(const v1::GraphArgument table,
                   Weight("model.embed_tokens.weight", {config_.vocab, config_.hidden},
                          "vocab_size, hidden_size"));
  Call("place_prompt", "kv_append",
       {View("prompt_bits", {1, 1, kPromptLength, 2}), Whole("text_bits"),
        Scalar("pos", -1, static_cast<double>(context_ - 1))});
  Call("embedding", "embedding", {View("text", {1}, context_ - 1), table, Whole("residual0")});
  return absl::OkStatus();
}

void Importer::AddAngles() {
  const int64_t pairs = config_.head_dim / 2;
  // The second row belongs to position 1: the frequencies.
  Call("frequencies", "rope_freqs", {Whole("frequencies"), Real(config_.rope_theta)});
  int64_t pair = 0;
  while (pair < pairs) {
    const LlamaConfig::Band band = config_.BandOf(pair);
    int64_t end = pair + 1;
    if (band == LlamaConfig::Band::kBlended) {
      Call(StrCat("angle", pair), "fill",
           {View("angles", {1, 1}, pair), Scalar("position", config_.InverseFrequency(pair))});
    } else {
      while (end < pairs && config_.BandOf(end) == band) ++end;
      const double factor = band == LlamaConfig::Band::kDivided ? 1 / config_.rope.factor : 1;
      Call(StrCat("angles", pair), "scale",
           {View("frequencies", {1, end - pair}, pairs + pair, {pairs, 1}),
            View("angles", {1, end - pair}, pair, {pairs, 1}), Scalar("position", factor)});
    }
    pair = end;
  }
}

absl::Status Importer::AddNorm(const std::string& node, const std::string& weight) {
  ASSIGN_OR_RETURN(const v1::GraphArgument w, Weight(weight, {config_.hidden}, "hidden_size"));
  const std::string residual = StrCat("residual", residual_);
  if (pending_.empty()) {
    Call(node, "rmsnorm", {Whole(residual), w, Whole("normed"), Real(config_.norm_epsilon)});
    return absl::OkStatus();
  }
  residual_ = 1 - residual_;
  Call(node, "rmsnorm_residual",
       {Whole(pending_), Whole(residual), w, Whole("normed"), Whole(StrCat("residual", residual_)),
        Real(config_.norm_epsilon)});
  pending_.clear();
  return absl::OkStatus();
}

absl::Status Importer::AddProjection(const std::string& node, const std::string& tensor,
                                     v1::GraphArgument in, v1::GraphArgument out, int64_t rows,
                                     int64_t columns, bool bias, const std::string& because) {
  ASSIGN_OR_RETURN(const v1::GraphArgument w,
                   Weight(StrCat(tensor, ".weight"), {rows, columns}, because));
  ASSIGN_OR_RETURN(const v1::GraphArgument b, Bias(tensor, bias, rows, because));
  Call(node, "gemv", {std::move(in), w, b, std::move(out)});
  return absl::OkStatus();
}

absl::Status Importer::AddAttention(int64_t layer) {
  const std::string tensors = StrCat("model.layers.", layer, ".");
  const std::string nodes = StrCat("layer", layer, ".");
  const int64_t heads = config_.heads;
  const int64_t kv = config_.kv_heads;
  const int64_t dim = config_.head_dim;
  RETURN_IF_ERROR(AddNorm(nodes + "norm", tensors + "input_layernorm.weight"));
  struct Projection {
    const char* name;
    const char* out;
    int64_t first_head;
    int64_t heads;
    const char* because;
  };
  for (const Projection& each :
       {Projection{"q", "projected", 0, heads, "num_attention_heads * head_dim, hidden_size"},
        Projection{"k", "projected", heads, kv, "num_key_value_heads * head_dim, hidden_size"},
        Projection{"v", "rotated", heads + kv, kv,
                   "num_key_value_heads * head_dim, hidden_size"}}) {
    RETURN_IF_ERROR(AddProjection(
        nodes + each.name, StrCat(tensors, "self_attn.", each.name, "_proj"), Whole("normed"),
        View(each.out, {1, each.heads * dim}, each.first_head * dim, {each.heads * dim, 1}),
        each.heads * dim, config_.hidden, config_.qkv_bias, each.because));
  }
  constexpr int64_t kHalves = 1;  // Pairs are elements i and i + head_dim / 2.
  Call(nodes + "rope", "rope",
       {View("projected", {1, 1, heads + kv, dim}), Whole("angles"),
        View("rotated", {1, 1, heads + kv, dim}), Integer(0), Integer(kHalves)});
  const int64_t of_layer = layer * 2 * kv * context_ * dim;
  Call(nodes + "append", "kv_append",
       {View("rotated", {1, 2 * kv, 1, dim}, heads * dim, {2 * kv * dim, dim, dim, 1}),
        View("cache", {1, 2 * kv, context_, dim}, of_layer), Scalar("pos")});
  AddAttend(layer);
  RETURN_IF_ERROR(AddProjection(nodes + "o", tensors + "self_attn.o_proj",
                                View("attended", {1, heads * dim}, 0, {heads * dim, 1}),
                                Whole("branch"), config_.hidden, heads * dim, config_.output_bias,
                                "hidden_size, num_attention_heads * head_dim"));
  pending_ = "branch";
  return absl::OkStatus();
}

void Importer::AddAttend(int64_t layer) {
  const std::string nodes = StrCat("layer", layer, ".");
  const int64_t heads = config_.heads;
  const int64_t dim = config_.head_dim;
  const int64_t of_keys = config_.kv_heads * context_ * dim;
  const Dims cached = {1, config_.kv_heads, context_, dim};
  Arguments arguments = {View("rotated", {1, heads, 1, dim}),
                         View("cache", cached, 2 * layer * of_keys),
                         View("cache", cached, (2 * layer + 1) * of_keys), None()};
  const v1::GraphArgument attended = View("attended", {1, heads, 1, dim});
  if (parts_ > 1) {
    for (const char* const name : {"part_values", "part_largest", "part_sums"}) {
      arguments.push_back(Whole(name));
    }
  } else {
    arguments.push_back(attended);
  }
  arguments.push_back(Real(1 / std::sqrt(static_cast<double>(dim))));
  arguments.push_back(Named("kv_len", Scalar("pos", 1, 1)));
  if (parts_ == 1) {
    Call(nodes + "attention", "attention", std::move(arguments));
    return;
  }
  Call(nodes + "attention", "attention_partial", std::move(arguments));
  Call(nodes + "combine", "attention_combine",
       {Whole("part_values"), Whole("part_largest"), Whole("part_sums"), attended});
}

absl::Status Importer::AddMlp(int64_t layer) {
  const std::string tensors = StrCat("model.layers.", layer, ".");
  const std::string nodes = StrCat("layer", layer, ".");
  RETURN_IF_ERROR(AddNorm(nodes + "mlp_norm", tensors + "post_attention_layernorm.weight"));
  for (const char* const half : {"gate", "up"}) {
    RETURN_IF_ERROR(AddProjection(
        nodes + half, StrCat(tensors, "mlp.", half, "_proj"), Whole("normed"), Whole(half),
        config_.intermediate, config_.hidden, config_.mlp_bias, "intermediate_size, hidden_size"));
  }
  Call(nodes + "silu_mul", "silu_mul", {Whole("gate"), Whole("up"), Whole("gated")});
  RETURN_IF_ERROR(AddProjection(nodes + "down", tensors + "mlp.down_proj", Whole("gated"),
                                Whole("branch"), config_.hidden, config_.intermediate,
                                config_.mlp_bias, "hidden_size, intermediate_size"));
  pending_ = "branch";
  return absl::OkStatus();
}

absl::Status Importer::AddHead() {
  RETURN_IF_ERROR(AddNorm("norm", "model.norm.weight"));
  ASSIGN_OR_RETURN(const v1::GraphArgument head,
                   Weight(config_.tied ? "model.embed_tokens.weight" : "lm_head.weight",
                          {config_.vocab, config_.hidden}, "vocab_size, hidden_size"));
  Call("head", "gemv", {Whole("normed"), head, None(), Whole("logits")});
  if (options_.logits) {
    Call("step_logits", "copy", {View("logits", {config_.vocab}), Whole("step_logits")});
  }
  return absl::OkStatus();
}

// Chooses the next token, and reports it unless the prompt has one.
void Importer::AddToken() {
  const v1::GraphArgument next = View("text", {1}, context_ - 1);
  const char* const op = options_.top_k != 0   ? "sample_topk"
                         : options_.top_p != 1 ? "sample_topp"
                                               : "sample";
  if (options_.sample) {
    Arguments arguments = {Whole("logits"), next, Scalar("temperature"), Scalar("seed"),
                           Scalar("pos")};
    if (options_.top_k != 0) arguments.push_back(Integer(static_cast<int64_t>(options_.top_k)));
    if (options_.top_p != 1) arguments.push_back(Real(options_.top_p));
    Call("next", op, std::move(arguments));
  } else {
    constexpr int64_t kLastAxis = 1 << 1;
    Call("next", "argmax", {Whole("logits"), next, Integer(kLastAxis)});
  }
  const v1::GraphArgument reported = View("reported", {1}, context_);
  Call("report", "copy", {next, reported});
  Call("hidden", "fill", {Whole("hidden"), Real(-1)});
  Call("hide", "kv_append",
       {View("hidden_bits", {1, 1, kPromptLength, 2}, 0, {0, 0, 0, 1}), Whole("reported_bits"),
        Scalar("pos", -1, static_cast<double>(context_ - 1))});
  Call("token", "copy", {reported, Whole("token")});
}

// Refuses tensors that the graph does not use.
absl::Status Importer::CheckRest() {
  for (const std::string& name : weights_.Rest()) {
    // Frequencies of rotary positions, which old files contain, and a copy of the embeddings.
    if (absl::EndsWith(name, ".rotary_emb.inv_freq")) continue;
    if (config_.tied && name == "lm_head.weight") {
      result_.notes.push_back("lm_head.weight is not used: tie_word_embeddings is true");
      continue;
    }
    return errors::UnknownModelTensor(name, config_.architecture);
  }
  return absl::OkStatus();
}

absl::StatusOr<LlamaGraph> Importer::Import() {
  RETURN_IF_ERROR(CheckOptions());
  parts_ = PartsOfKeys(config_.kv_heads, context_);
  graph_.set_name("decode");
  graph_.set_format(graph::kFormat);
  AddScalars();
  RETURN_IF_ERROR(AddActivations());
  RETURN_IF_ERROR(AddCache());
  RETURN_IF_ERROR(AddEmbedding());
  AddAngles();
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    RETURN_IF_ERROR(AddAttention(layer));
    RETURN_IF_ERROR(AddMlp(layer));
  }
  RETURN_IF_ERROR(AddHead());
  AddToken();
  AddLoop();
  RETURN_IF_ERROR(CheckRest());
  result_.files = weights_.files();
  return std::move(result_);
}

}  // namespace

absl::StatusOr<LlamaGraph> ImportLlama(const std::string& folder, const LlamaOptions& options) {
  ASSIGN_OR_RETURN(const LlamaConfig config, ReadLlamaConfig(folder));
  ASSIGN_OR_RETURN(LlamaWeights weights, LlamaWeights::Read(folder));
  return Importer(config, weights, options).Import();
}

}  // namespace resident::cli
