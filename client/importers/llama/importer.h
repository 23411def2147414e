// Importer: converts a model of the Llama form into a task graph.
//
//   llama_import.cc   options, tensors and weights, and the order of the parts
//   llama_layers.cc   the layers
//   llama_decode.cc   the rest of a step that computes one token of each text
//   llama_prompt.cc   the rest of the step that reads a prompt
//
// Activations have a row for each token of the step: options.batch, or up to options.prompt of
// which a run uses the first `prompt_len`.
//
// Thread safety: none.
//
//   Importer importer(config, weights, options);
//   ASSIGN_OR_RETURN(const LlamaGraph imported, importer.Import());
#ifndef RESIDENT_CLIENT_IMPORTERS_LLAMA_IMPORTER_H_
#define RESIDENT_CLIENT_IMPORTERS_LLAMA_IMPORTER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/graph_messages.h"
#include "client/importers/llama/config.h"
#include "client/importers/llama/import.h"
#include "client/importers/llama/weights.h"
#include "resident/v1/graphs.pb.h"

namespace resident::cli::llama {

using Dims = std::vector<int64_t>;

// A dimension that is the value of the scalar `prompt_len`.
inline constexpr int64_t kPromptLength = -1;

// The argument `layout` of rope and attention_decode: pairs are elements i and i + head_dim / 2.
inline constexpr int64_t kRopeHalves = 1;

// Arguments of calls.
using client::graph_messages::Integer;
using client::graph_messages::Named;
using client::graph_messages::None;
using client::graph_messages::Real;
using client::graph_messages::Scalar;
using client::graph_messages::Whole;

// A tensor, or a dense part of it; with `strides`, any part. Offset and strides count elements.
v1::GraphArgument View(const std::string& tensor, const Dims& shape, int64_t offset = 0,
                       const Dims& strides = {});
// A view with another scalar in place of `prompt_len`.
v1::GraphArgument WithLength(v1::GraphArgument view, const std::string& scalar);

class Importer {
 public:
  Importer(const LlamaConfig& config, LlamaWeights& weights, const LlamaOptions& options)
      : config_(config), weights_(weights), options_(options) {}

  absl::StatusOr<LlamaGraph> Import();

 private:
  using Arguments = std::vector<v1::GraphArgument>;

  // out = in * weightᵀ + bias. `tensor`: the name of weight and bias without their endings.
  struct Projection {
    std::string node;
    std::string tensor;
    v1::GraphArgument out;
    int64_t rows;  // Of the weight.
    bool bias;
    const char* because;  // The keys of config.json from which the weight's shape follows.
  };

  // A weight of few bits, as gemv_quant, its relatives, and dequant take it.
  struct QuantizedWeight {
    v1::GraphArgument q;
    v1::GraphArgument scales;
  };

  bool reads_prompt() const { return options_.prompt != 0; }

  // Names of what each text of a decode has: with several texts, the number of the text follows.
  std::string OfText(const std::string& name, int64_t text) const;  // A tensor or scalar.
  std::string NodeOfText(const std::string& name, int64_t text) const;

  absl::Status CheckOptions();
  absl::Status CheckSampling();
  absl::Status CheckQuantization();

  // Tensors and scalars.
  void AddScalar(const std::string& name, v1::DType dtype, double min, double max,
                 std::optional<double> initial);
  void AddSamplingScalars();
  v1::GraphTensor& Tensor(v1::GraphTensor::Kind kind, const std::string& name, v1::DType dtype,
                          const Dims& shape);
  void Activation(const std::string& name, v1::DType dtype, const Dims& shape);
  void Alias(const std::string& name, const std::string& of, v1::DType dtype, const Dims& shape,
             int64_t offset_bytes = 0);
  absl::StatusOr<v1::GraphArgument> Weight(const std::string& name, const Dims& shape,
                                           const std::string& because);
  // Whether the weights of projections with so many columns are quantized: gemv_quant takes a
  // single column as one of 8 bits.
  bool Quantizes(int64_t columns) const { return options_.quantization.has_value() && columns > 1; }
  // The weight of a projection for which Quantizes(columns).
  absl::StatusOr<QuantizedWeight> Quantized(const Projection& projection, int64_t columns);
  // Columns of a group of quantized weights.
  v1::GraphArgument Group() const;
  // The bias of a projection, or none.
  absl::StatusOr<v1::GraphArgument> Bias(const Projection& projection);
  // The rows of the step's tokens in a tensor with this number of columns.
  v1::GraphArgument Rows(const std::string& tensor, int64_t columns) const;
  // The tensor of the residual that has its value.
  std::string Residual() const;
  // Declares an activation that only some models need, unless it is declared.
  void DeclareActivation(const char* name, int64_t columns);
  void AddLayerActivations();
  absl::Status AddCache();
  void Call(const std::string& name, const char* op, Arguments arguments);
  // Refuses tensors that the graph does not use.
  absl::Status CheckRest();

  // The layers.

  // The norm that stands in front of projections.
  struct Norm {
    std::string node;
    std::string weight;
  };
  // `normed` from the residual.
  absl::Status AddNorm(const Norm& norm);
  // A projection of vectors of float32, one for each text.
  absl::Status AddProjection(const v1::GraphArgument& in, int64_t columns, Projection projection);
  // Projections of one tensor.
  absl::Status AddProjections(const std::string& in, int64_t columns,
                              std::vector<Projection> projections);
  // Projections of the normalized residual.
  absl::Status AddNormedProjections(const Norm& norm, std::vector<Projection> projections);
  // A projection that is added to the residual.
  absl::Status AddBranch(const std::string& in, int64_t columns, Projection projection);
  void DeclareParts();
  // The weight of a product of matrices, transposed, and its dtype. A quantized one is converted
  // first.
  struct RightSide {
    v1::GraphArgument transposed;
    v1::DType dtype;
  };
  absl::StatusOr<RightSide> AddRightSide(const Projection& projection, int64_t columns);
  absl::Status AddProducts(const std::string& in, int64_t columns,
                           const std::vector<Projection>& projections);
  absl::Status AddAttention(int64_t layer);
  // `attended` from what is projected and a layer's cache, to which the new keys and values are
  // appended.
  void AddDecodeAttention(int64_t layer, int64_t text);
  void AddPromptAttention(int64_t layer);
  absl::Status AddMlp(int64_t layer);
  // `frequencies`: the angle of each pair at position 1.
  void AddFrequencies();
  // A row of `out`: the frequencies as the model scales them. scaled(f) is the argument f, or f
  // times a position.
  void AddAngles(const std::string& out, int64_t row,
                 const std::function<v1::GraphArgument(double factor)>& scaled);
  // `logits` from the last norm. Of a prompt, its last row only is projected.
  static Norm LastNorm();
  Projection Head() const;
  void AddStepLogits();
  // Chooses a token of a text from its `logits`. `offset`: of the random numbers.
  void AddChoice(int64_t text, v1::GraphArgument next, v1::GraphArgument offset);

  // A step that computes one token of each text.
  void DeclareDecode();
  void DeclareText(int64_t text);
  // Whether one operator chooses the token, and one takes it at the beginning of a step. The choice
  // belongs to the end of a step and not to the beginning of the next one, because a run may begin
  // with any step. Other choices consist of several nodes.
  bool chooses_largest() const { return texts_ == 1 && !options_.sample; }
  // The token with which a text's next step begins, unless the prompt has one.
  v1::GraphArgument Chosen(int64_t text) const;
  absl::Status BeginDecode();
  absl::Status EndDecode();

  // The step that reads a prompt.
  void DeclarePrompt();
  absl::Status BeginPrompt();
  absl::Status EndPrompt();

  const LlamaConfig& config_;
  LlamaWeights& weights_;
  const LlamaOptions& options_;
  LlamaGraph result_;
  v1::Graph& graph_ = result_.graph;
  int64_t context_ = 0;
  int64_t texts_ = 1;     // That a step decodes.
  int64_t rows_ = 1;      // Of a step: texts_ or kPromptLength.
  int64_t max_rows_ = 1;  // Rows of the activations.
  int64_t parts_ = 1;     // Into which a decoding step's attention divides the keys.
  // The tensors so far, by name.
  struct Declared {
    v1::GraphTensor::Kind kind;
    v1::DType dtype;
  };
  absl::flat_hash_map<std::string, Declared> declared_;
  // The one of the residual's two tensors that has its value (Residual()).
  int residual_ = 0;
};

}  // namespace resident::cli::llama

#endif  // RESIDENT_CLIENT_IMPORTERS_LLAMA_IMPORTER_H_
