#include "client/importers/llama/import.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/importers/errors.h"
#include "client/importers/llama/importer.h"
#include "runtime/base/status_macros.h"
#include "runtime/graph/limits.h"

namespace resident::cli {
namespace llama {

using absl::StrCat;
using v1::GraphTensor;

namespace {

constexpr const char* kTable = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

constexpr int64_t kMaxCacheElements = int64_t{1} << 56;

}  // namespace

v1::GraphArgument View(const std::string& tensor, const Dims& shape, int64_t offset,
                       const Dims& strides) {
  std::vector<client::graph_messages::Dim> dims;
  for (const int64_t size : shape) {
    if (size == kPromptLength) {
      dims.emplace_back("prompt_len");
    } else {
      dims.emplace_back(size);
    }
  }
  return client::graph_messages::View(tensor, dims, offset, strides);
}

v1::GraphArgument WithLength(v1::GraphArgument view, const std::string& scalar) {
  for (v1::GraphDim& dim : *view.mutable_tensor()->mutable_shape()) {
    if (!dim.scalar().empty()) dim.set_scalar(scalar);
  }
  return view;
}

std::string Importer::OfText(const std::string& name, int64_t text) const {
  return texts_ == 1 ? name : StrCat(name, text);
}

std::string Importer::NodeOfText(const std::string& name, int64_t text) const {
  return texts_ == 1 ? name : StrCat(name, ".", text);
}

absl::Status Importer::CheckOptions() {
  if (options_.batch < 1 || options_.batch > LlamaOptions::kMaxBatch) {
    return errors::BatchOfTexts(options_.batch, LlamaOptions::kMaxBatch);
  }
  if (options_.batch != 1 && reads_prompt()) {
    return errors::BadModelOption("--batch", "cannot be combined with --prompt",
                                  "omit --batch, and run this graph once for each text");
  }
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
  if (options_.prompt > static_cast<uint64_t>(context_)) {
    return errors::PromptLength(options_.prompt, static_cast<uint64_t>(context_));
  }
  RETURN_IF_ERROR(CheckQuantization());
  return CheckSampling();
}

absl::Status Importer::CheckQuantization() {
  if (!options_.quantization.has_value()) return absl::OkStatus();
  constexpr uint64_t kMaxGroup = LlamaConfig::kMaxDimension;
  const uint64_t group = options_.quantization->group;
  if (group >= 1 && group <= kMaxGroup) return absl::OkStatus();
  return errors::BadModelOption("--group", StrCat("is ", group, " and may be 1 to ", kMaxGroup),
                                "give a value in this range");
}

absl::Status Importer::CheckSampling() {
  if (!options_.sample && options_.top_k != 0) {
    return errors::BadModelOption("--top_k", "has no effect without --sample", "add --sample");
  }
  if (!options_.sample && options_.top_p != 1) {
    return errors::BadModelOption("--top_p", "has no effect without --sample", "add --sample");
  }
  if (options_.top_k > static_cast<uint64_t>(config_.vocab)) {
    return errors::BadModelOption(
        "--top_k", StrCat("is ", options_.top_k, " and may be up to vocab_size, ", config_.vocab),
        "give a smaller value");
  }
  if (!(options_.top_p > 0 && options_.top_p <= 1)) {
    return errors::BadModelOption(
        "--top_p", StrCat("is ", options_.top_p, " and must be above 0 and at most 1"),
        "give a value in this range");
  }
  if (options_.top_k != 0 && options_.top_p != 1) {
    return errors::BadModelOption("--top_k", "cannot be combined with --top_p", "give one of them");
  }
  return absl::OkStatus();
}

void Importer::AddScalar(const std::string& name, v1::DType dtype, double min, double max,
                         std::optional<double> initial) {
  v1::GraphScalar& scalar = *graph_.add_scalars();
  scalar.set_name(name);
  scalar.set_dtype(dtype);
  scalar.set_least(min);
  scalar.set_most(max);
  if (initial.has_value()) scalar.set_initial(*initial);
}

void Importer::AddSamplingScalars() {
  if (!options_.sample) return;
  AddScalar("temperature", v1::DTYPE_F32, 0, 1e6, 1);
  // The seed of a text is larger by the text's number.
  AddScalar("seed", v1::DTYPE_I64, 0, graph::kMaxWhole - static_cast<double>(texts_ - 1), 0);
}

GraphTensor& Importer::Tensor(GraphTensor::Kind kind, const std::string& name, v1::DType dtype,
                              const Dims& shape) {
  GraphTensor& tensor = *graph_.add_tensors();
  declared_[name] = {kind, dtype};
  tensor.set_name(name);
  tensor.set_kind(kind);
  tensor.set_dtype(dtype);
  for (const int64_t size : shape) tensor.add_shape()->set_size(size);
  return tensor;
}

void Importer::Activation(const std::string& name, v1::DType dtype, const Dims& shape) {
  Tensor(GraphTensor::KIND_ACTIVATION, name, dtype, shape);
}

void Importer::Alias(const std::string& name, const std::string& of, v1::DType dtype,
                     const Dims& shape, int64_t offset_bytes) {
  GraphTensor& alias = Tensor(declared_.at(of).kind, name, dtype, shape);
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
  if (!declared_.contains(full)) {
    Tensor(GraphTensor::KIND_WEIGHT, full, dtype, shape);
    result_.weights.push_back({name, name, /*quantized=*/false});
  }
  return Whole(full);
}

absl::StatusOr<Importer::QuantizedWeight> Importer::Quantized(const Projection& projection,
                                                              int64_t columns) {
  const Quantization& form = *options_.quantization;
  const std::string from = StrCat(projection.tensor, ".weight");
  RETURN_IF_ERROR(
      weights_
          .Take(from, {static_cast<uint64_t>(projection.rows), static_cast<uint64_t>(columns)},
                projection.because)
          .status());
  // The table of embeddings keeps its form, also where the head uses it: then there are two
  // tensors.
  const std::string name = from == kTable ? kHead : from;
  const std::string full = options_.prefix + name;
  const std::string scales = StrCat(full, LlamaGraph::kScalesSuffix);
  if (scales.size() > graph::kMaxNameBytes) {
    return errors::ModelTensorName(scales, graph::kMaxNameBytes);
  }
  const auto row = static_cast<uint64_t>(columns);
  Tensor(GraphTensor::KIND_WEIGHT, full, form.bits == 8 ? v1::DTYPE_I8 : v1::DTYPE_U8,
         {projection.rows, static_cast<int64_t>(form.RowBytes(row))});
  Tensor(GraphTensor::KIND_WEIGHT, scales, v1::DTYPE_F16,
         {projection.rows, static_cast<int64_t>(form.Groups(row))});
  result_.weights.push_back({name, from, /*quantized=*/true});
  return QuantizedWeight{Whole(full), Whole(scales)};
}

v1::GraphArgument Importer::Group() const {
  return Integer(static_cast<int64_t>(options_.quantization->group));
}

absl::StatusOr<v1::GraphArgument> Importer::Bias(const Projection& projection) {
  if (!projection.bias) return None();
  return Weight(StrCat(projection.tensor, ".bias"), {projection.rows}, projection.because);
}

v1::GraphArgument Importer::Rows(const std::string& tensor, int64_t columns) const {
  return reads_prompt() ? View(tensor, {rows_, columns}) : Whole(tensor);
}

std::string Importer::Residual() const { return StrCat("residual", residual_); }

void Importer::DeclareActivation(const char* name, int64_t columns) {
  if (!declared_.contains(name)) Activation(name, v1::DTYPE_F32, {max_rows_, columns});
}

void Importer::Call(const std::string& name, const char* op, Arguments arguments) {
  v1::GraphNode& node = *graph_.add_nodes();
  node.set_name(name);
  node.set_operator_(op);
  for (v1::GraphArgument& argument : arguments) *node.add_arguments() = std::move(argument);
}

// Of the layers, which all use the same ones.
void Importer::AddLayerActivations() {
  const int64_t heads = config_.heads;
  const int64_t kv = config_.kv_heads;
  const int64_t dim = config_.head_dim;
  Activation("residual0", v1::DTYPE_F32, {max_rows_, config_.hidden});
  Activation("residual1", v1::DTYPE_F32, {max_rows_, config_.hidden});
  // Queries and keys before the rotation, and the values of a decoding step. gemv needs a dense
  // result.
  if (texts_ == 1) {
    Activation("projected", v1::DTYPE_F32,
               {max_rows_, heads + (reads_prompt() ? kv : 2 * kv), dim});
  } else {
    Activation("queries", v1::DTYPE_F32, {texts_, heads, dim});
    Activation("keys", v1::DTYPE_F32, {texts_, kv, dim});
    Activation("values", v1::DTYPE_F32, {texts_, kv, dim});
  }
  Activation("attended", v1::DTYPE_F32, {max_rows_, heads * dim});
  Activation("gated", v1::DTYPE_F32, {max_rows_, config_.intermediate});
  Activation("frequencies", v1::DTYPE_F32, {2, dim / 2});
  Activation("angles", v1::DTYPE_F32, {max_rows_, dim / 2});
  Activation("logits", v1::DTYPE_F32, {texts_, config_.vocab});
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
  for (int64_t text = 0; text < texts_; ++text) {
    Tensor(GraphTensor::KIND_STATE, OfText("cache", text), dtype,
           {config_.layers, 2 * config_.kv_heads, context_, config_.head_dim});
  }
  return absl::OkStatus();
}

absl::Status Importer::CheckRest() {
  for (const auto& [name, dtype] : weights_.unsupported()) {
    if (!options_.skip_unsupported) return errors::UnsupportedModelTensor(name, dtype);
    result_.notes.push_back(StrCat(
        "tensor '", name, "' is skipped, because residentd does not have its dtype ", dtype));
  }
  for (const std::string& name : weights_.Rest()) {
    // Frequencies of rotary positions, which old files contain, and a copy of the embeddings.
    if (absl::EndsWith(name, ".rotary_emb.inv_freq")) continue;
    if (config_.tied && name == kHead) {
      result_.notes.push_back("lm_head.weight is not used: tie_word_embeddings is true");
      continue;
    }
    return errors::UnknownModelTensor(name, config_.architecture);
  }
  return absl::OkStatus();
}

absl::StatusOr<LlamaGraph> Importer::Import() {
  RETURN_IF_ERROR(CheckOptions());
  graph_.set_format(graph::kFormat);
  if (reads_prompt()) {
    rows_ = kPromptLength;
    max_rows_ = static_cast<int64_t>(options_.prompt);
    DeclarePrompt();
  } else {
    texts_ = rows_ = max_rows_ = static_cast<int64_t>(options_.batch);
    DeclareDecode();
  }
  AddLayerActivations();
  RETURN_IF_ERROR(AddCache());
  RETURN_IF_ERROR(reads_prompt() ? BeginPrompt() : BeginDecode());
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    RETURN_IF_ERROR(AddAttention(layer));
    RETURN_IF_ERROR(AddMlp(layer));
  }
  RETURN_IF_ERROR(reads_prompt() ? EndPrompt() : EndDecode());
  RETURN_IF_ERROR(CheckRest());
  result_.files = weights_.files();
  return std::move(result_);
}

}  // namespace llama

absl::StatusOr<LlamaGraph> ImportLlama(const std::string& folder, const LlamaOptions& options) {
  ASSIGN_OR_RETURN(const LlamaConfig config, ReadLlamaConfig(folder));
  ASSIGN_OR_RETURN(LlamaWeights weights, LlamaWeights::Read(folder));
  return llama::Importer(config, weights, options).Import();
}

}  // namespace resident::cli
