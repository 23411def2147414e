// CheckModel: from a file to the checked form, with a graph of the largest sizes on trial.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "runtime/model/dtype.h"
#include "server/onnx/batch.h"
#include "server/onnx/import.h"
#include "server/onnx/inline_functions.h"
#include "server/onnx/lowering.h"
#include "server/onnx/nodes/model_error.h"
#include "server/onnx/patterns.h"
#include "server/onnx/structure.h"
#include "server/onnx/tensor_data.h"

namespace resident::onnx {

using absl::StrCat;
using errors::Quote;

namespace {

constexpr size_t kMaxSymbols = 64;
// Graphs that are made to see what depends on a dynamic dimension.
constexpr size_t kMaxTriedSymbols = 8;
constexpr int64_t kMaxDimension = int64_t{1} << 40;
// The size of a dimension without a bound, with which the other nodes are checked.
constexpr int64_t kTrialSize = 16;

absl::StatusOr<ModelProto> Parse(std::string_view bytes) {
  if (bytes.size() > kMaxModelBytes) {
    return ModelError(103,
                      StrCat("the model has ", bytes.size(), " bytes, and at most ", kMaxModelBytes,
                             " are supported. Fix: save the weights in a data "
                             "file"));
  }
  ModelProto model;
  if (bytes.empty() || !model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return ModelError(101,
                      "the bytes are not an ONNX model, or end early. Fix: send the whole file");
  }
  if (!model.has_graph()) {
    return ModelError(102, "the bytes have no graph of ONNX. Fix: send a file model.onnx");
  }
  return model;
}

absl::StatusOr<int64_t> ReadOpset(const ModelProto& model) {
  // A model without an import of the standard operators has none of them.
  int64_t version = 0;
  bool imported = false;
  for (const OperatorSetIdProto& import : model.opset_import()) {
    if (!import.domain().empty() && import.domain() != "ai.onnx") continue;
    version = import.version();
    imported = true;
  }
  if (!imported && model.opset_import_size() > 0) {
    for (const NodeProto& node : model.graph().node()) {
      imported |= node.domain().empty() || node.domain() == "ai.onnx";
    }
    if (!imported) return kLastOpset;
  }
  if (version < kFirstOpset || version > kLastOpset) {
    return ModelError(
        102, StrCat("the model is for version ", version, " of the operators, and ", kFirstOpset,
                    " to ", kLastOpset, " are supported. Fix: export with opset_version=17"));
  }
  return version;
}

// The constant of a fixed input.
class FixedInput {
 public:
  FixedInput(const TensorSpec& spec, const std::string& text) : spec_(spec), text_(text) {}

  absl::StatusOr<Constant> Read() const {
    if (DTypeOf(spec_.type) == DType::kInvalid) return Error("its type is not supported");
    std::string bytes;
    int64_t count = 0;
    for (const absl::string_view part : absl::StrSplit(text_, ',', absl::SkipWhitespace())) {
      RETURN_IF_ERROR(AppendNumber(absl::StripAsciiWhitespace(part), &bytes));
      ++count;
    }
    ASSIGN_OR_RETURN(Sizes64 shape, FindShape(count));
    return Constant{spec_.type, std::move(shape),
                    std::make_shared<const std::string>(std::move(bytes)), spec_.name};
  }

 private:
  absl::Status Error(absl::string_view what) const {
    return ModelError(
        108, StrCat("input ", Quote(spec_.name), " cannot be ", Quote(text_), ": ", what,
                    ". Fix: --fixed ", Quote(spec_.name), "= and numbers, separated by commas"));
  }

  absl::Status AppendNumber(absl::string_view text, std::string* bytes) const {
    double real;
    int64_t integer;
    if (IsFloatType(spec_.type)) {
      if (!absl::SimpleAtod(text, &real))
        return Error(StrCat(Quote(std::string(text)), " is not a number"));
      AppendReal(spec_.type, real, bytes);
      return absl::OkStatus();
    }
    if (text == "true" || text == "false") {
      integer = text == "true" ? 1 : 0;
    } else if (!absl::SimpleAtoi(text, &integer)) {
      return Error(StrCat(Quote(std::string(text)), " is not a whole number"));
    }
    const bool fits = spec_.type == ElementType::kBool ? integer == 0 || integer == 1
                                                       : ScalarFits(DTypeOf(spec_.type), integer);
    if (!fits) return Error(StrCat(integer, " is out of range of ", TypeName(spec_.type)));
    AppendInteger(spec_.type, integer, bytes);
    return absl::OkStatus();
  }

  // The input's shape, in which one dimension may be dynamic.
  absl::StatusOr<Sizes64> FindShape(int64_t count) const {
    Sizes64 shape;
    std::optional<size_t> open;
    for (const TensorSpec::Dim& dim : spec_.shape) {
      if (!dim.symbol.empty()) {
        if (open.has_value()) return Error("it has several dynamic dimensions");
        open = shape.size();
      }
      shape.push_back(dim.symbol.empty() ? dim.size : 1);
    }
    const std::optional<int64_t> known = CountElements(shape);
    if (open.has_value() && known.has_value() && *known > 0) shape[*open] = count / *known;
    if (CountElements(shape) != count || shape.size() > kMaxRank) {
      return Error(
          StrCat("it has ", count, " numbers, and the shape of the input is ", ShapeText(shape)));
    }
    return shape;
  }

  const TensorSpec& spec_;
  const std::string& text_;
};

class Checker {
 public:
  Checker(ModelProto model, const Options& options) : proto_(std::move(model)), options_(options) {}

  absl::StatusOr<CheckedModel> Check(const Files& files) {
    model_.shares_weights = options_.shares_weights;
    ASSIGN_OR_RETURN(model_.opset, ReadOpset(proto_));
    RETURN_IF_ERROR(InlineFunctions(&proto_));
    RETURN_IF_ERROR(CheckStructure(files, &proto_));
    GraphProto& graph = *proto_.mutable_graph();
    model_.name = graph.name().size() <= kMaxNameBytes ? ToPrintableLine(graph.name()) : "";
    model_.report.model_nodes = static_cast<uint64_t>(graph.node_size());
    TakeConstants(&graph);
    RETURN_IF_ERROR(ReadInputs(graph));
    RETURN_IF_ERROR(CheckOptions());
    ReplacePatterns(&model_.constants, &graph);
    auto kept = std::make_shared<GraphProto>();
    kept->Swap(&graph);
    model_.graph = std::move(kept);
    if (!options_.accepted) RETURN_IF_ERROR(Try());
    return std::move(model_);
  }

 private:
  void AddFinding(int code, const std::string& message, const std::string& input = "") {
    ++model_.report.finding_count;
    model_.report.findings.push_back({CodeText(code), "", "", input, message});
  }

  // Initializers, and nodes of the outermost graph that are constants.
  void TakeConstants(GraphProto* graph) {
    for (TensorProto& tensor : *graph->mutable_initializer()) {
      const std::string name = tensor.name();
      Constant constant = TakeConstant(&tensor);
      constant.name = name;
      model_.constants[name] = std::move(constant);
    }
    graph->clear_initializer();
    if (graph->sparse_initializer_size() > 0) {
      AddFinding(202, "the model has sparse initializers, which are not supported");
    }
    google::protobuf::RepeatedPtrField<NodeProto> nodes;
    for (NodeProto& node : *graph->mutable_node()) {
      const bool is_tensor = node.op_type() == "Constant" && node.domain().empty() &&
                             node.output_size() == 1 && node.attribute_size() == 1 &&
                             node.attribute(0).name() == "value" && node.attribute(0).has_t();
      if (!is_tensor || node.output(0).empty()) {
        *nodes.Add() = std::move(node);
        continue;
      }
      Constant constant = TakeConstant(node.mutable_attribute(0)->mutable_t());
      constant.name = node.output(0);
      model_.constants[constant.name] = std::move(constant);
    }
    graph->mutable_node()->Swap(&nodes);
  }

  absl::Status ReadInputs(const GraphProto& graph) {
    for (const ValueInfoProto& input : graph.input()) {
      TensorSpec spec;
      if (model_.constants.contains(input.name())) continue;  // It has a default.
      if (!input.type().has_tensor_type()) {
        AddFinding(202, StrCat("input ", Quote(input.name()), " is not a tensor"));
        continue;
      }
      if (!ReadTensorType(input.type(), input.name(), &spec)) {
        AddFinding(404,
                   StrCat("input ", Quote(input.name()), " has no shape. Fix: export with one"));
        continue;
      }
      const auto fixed = options_.fixed_inputs.find(input.name());
      if (fixed != options_.fixed_inputs.end()) {
        ASSIGN_OR_RETURN(Constant constant, FixedInput(spec, fixed->second).Read());
        model_.constants[input.name()] = std::move(constant);
        used_options_.insert(input.name());
        continue;
      }
      RETURN_IF_ERROR(AddInput(std::move(spec)));
    }
    return absl::OkStatus();
  }

  static bool IsEmpty(const TensorSpec& spec) {
    return std::any_of(spec.shape.begin(), spec.shape.end(), [](const TensorSpec::Dim& dim) {
      return dim.symbol.empty() && dim.size == 0;
    });
  }

  absl::Status AddInput(TensorSpec spec) {
    const std::string place = StrCat("input ", Quote(spec.name));
    if (spec.shape.size() > kMaxRank) {
      return ModelError(103, StrCat(place, " has ", spec.shape.size(), " dimensions, and at most ",
                                    kMaxRank, " are supported"));
    }
    if (IsEmpty(spec)) {
      // It has only one value.
      Constant constant{spec.type, {}, std::make_shared<const std::string>(), spec.name};
      for (const TensorSpec::Dim& dim : spec.shape) {
        constant.shape.push_back(dim.symbol.empty() ? dim.size : 1);
      }
      if (CountElements(constant.shape) == 0 && DTypeOf(spec.type) != DType::kInvalid) {
        model_.constants[spec.name] = std::move(constant);
        return absl::OkStatus();
      }
    }
    if (DTypeOf(spec.type) == DType::kInvalid) {
      AddFinding(201, StrCat(place, " has ", TypeName(spec.type),
                             " values, which the daemon does not have"));
      return absl::OkStatus();
    }
    for (size_t d = 0; d < spec.shape.size(); ++d) {
      const TensorSpec::Dim& dim = spec.shape[d];
      if (dim.symbol.empty() && (dim.size < 1 || dim.size > kMaxDimension)) {
        AddFinding(404, StrCat(place, " has a dimension of ", dim.size,
                               dim.size < 1 ? ", and empty tensors are not supported"
                                            : ", which is too large"));
        return absl::OkStatus();
      }
      if (dim.symbol.empty()) continue;
      if (dim.symbol.size() > kMaxNameBytes) {
        return ModelError(103, StrCat(place, " has a dimension with a long name"));
      }
      auto symbol = std::find_if(model_.symbols.begin(), model_.symbols.end(),
                                 [&](const Symbol& each) { return each.name == dim.symbol; });
      if (symbol == model_.symbols.end()) {
        symbol = model_.symbols.insert(symbol, Symbol{dim.symbol});
      }
      symbol->outermost = symbol->outermost && d == 0;
    }
    if (model_.symbols.size() > kMaxSymbols) {
      return ModelError(103,
                        StrCat("the model has more than ", kMaxSymbols, " dynamic dimensions"));
    }
    model_.inputs.push_back(std::move(spec));
    return absl::OkStatus();
  }

  absl::Status CheckOptions() {
    for (const auto& [name, text] : options_.fixed_inputs) {
      if (!used_options_.contains(name)) {
        return ModelError(108, StrCat("the model has no input ", Quote(name),
                                      ". Fix: --fixed one of ", InputNames()));
      }
    }
    for (Symbol& symbol : model_.symbols) {
      const auto bound = options_.max_sizes.find(symbol.name);
      if (bound != options_.max_sizes.end()) {
        symbol.max_size = bound->second;
      } else if (symbol.outermost) {
        symbol.max_size = options_.max_batch;
      } else {
        AddFinding(404, StrCat("dimension ", Quote(symbol.name),
                               " is dynamic and has no bound. Fix: --max ", symbol.name,
                               "=512, or --sizes ", symbol.name, "=512 for one size"));
        symbol.max_size = kTrialSize;
      }
      if (symbol.max_size < 1 || symbol.max_size > kMaxDimension) {
        return ModelError(108, StrCat("dimension ", Quote(symbol.name), " cannot have the bound ",
                                      symbol.max_size, ". Fix: at least 1"));
      }
    }
    for (const auto& given : options_.max_sizes) {
      const std::string& name = given.first;
      const bool known = std::any_of(model_.symbols.begin(), model_.symbols.end(),
                                     [&](const Symbol& each) { return each.name == name; });
      if (!known) {
        std::string names;
        for (const Symbol& symbol : model_.symbols)
          absl::StrAppend(&names, " ", Quote(symbol.name));
        return ModelError(
            108, StrCat("the model has no dynamic dimension ", Quote(name),
                        ". Fix: --sizes or --max one of", names.empty() ? " none" : names));
      }
    }
    return absl::OkStatus();
  }

  std::string InputNames() const {
    std::string names;
    for (const TensorSpec& input : model_.inputs) {
      if (names.size() > 500) return names + ", ...";
      absl::StrAppend(&names, names.empty() ? "" : ", ", Quote(input.name));
    }
    return names.empty() ? "none" : names;
  }

  // Makes the graph of the largest sizes, and finds which sizes of outputs depend on which symbol:
  // they differ if it is smaller.
  absl::Status Try() {
    std::map<std::string, int64_t> sizes;
    for (const Symbol& symbol : model_.symbols) sizes[symbol.name] = symbol.max_size;
    ImportedModel largest;
    {
      Lowering lowering(model_, sizes);
      lowering.Run(&largest);
      const Report& report = lowering.report();
      model_.report.finding_count += report.finding_count;
      model_.report.findings.insert(model_.report.findings.end(), report.findings.begin(),
                                    report.findings.end());
      model_.report.unsupported = report.unsupported;
      model_.report.graph_nodes = report.graph_nodes;
    }
    for (TensorSpec& input : model_.inputs) input.tensor = GraphName(input.name);
    if (!model_.report.findings.empty()) return absl::OkStatus();
    model_.outputs = largest.outputs;
    size_t tried = 0;
    for (const Symbol& symbol : model_.symbols) {
      if (symbol.max_size < 2) continue;
      if (++tried > kMaxTriedSymbols) {
        MarkDeclared(symbol);
        continue;
      }
      if (!CompareSmaller(symbol, sizes, largest)) MarkDeclared(symbol);
    }
    return absl::OkStatus();
  }

  // False: the model accepts none of the sizes that are tried.
  bool CompareSmaller(const Symbol& symbol, const std::map<std::string, int64_t>& sizes,
                      const ImportedModel& largest) {
    for (const int64_t size : {symbol.max_size - 1, symbol.max_size - 2, symbol.max_size / 2}) {
      if (size < 1) continue;
      std::map<std::string, int64_t> fewer = sizes;
      fewer[symbol.name] = size;
      ImportedModel smaller;
      Lowering lowering(model_, fewer);
      lowering.Run(&smaller);
      if (!lowering.report().findings.empty()) continue;
      Compare(symbol, size, largest, smaller);
      return true;
    }
    return false;
  }

  // `smaller`: with this size of the symbol.
  void Compare(const Symbol& symbol, int64_t smaller_size, const ImportedModel& largest,
               const ImportedModel& smaller) {
    for (size_t i = 0; i < model_.outputs.size(); ++i) {
      for (size_t d = 0; d < model_.outputs[i].shape.size(); ++d) {
        const int64_t size = largest.outputs[i].shape[d].size;
        const int64_t other =
            d < smaller.outputs[i].shape.size() ? smaller.outputs[i].shape[d].size : 0;
        if (size == other) continue;
        TensorSpec::Dim& dim = model_.outputs[i].shape[d];
        const bool alone = dim.size != 0 && size == symbol.max_size && other == smaller_size;
        dim.symbol = alone ? symbol.name : "";
        dim.size = 0;
      }
    }
  }

  // Of a model that accepts only some sizes, or has many: what the file says of its outputs.
  void MarkDeclared(const Symbol& symbol) {
    for (TensorSpec& output : model_.outputs) {
      for (const ValueInfoProto& declared : model_.graph->output()) {
        TensorSpec spec;
        if (declared.name() != output.name ||
            !ReadTensorType(declared.type(), output.name, &spec) ||
            spec.shape.size() != output.shape.size()) {
          continue;
        }
        for (size_t d = 0; d < spec.shape.size(); ++d) {
          if (spec.shape[d].symbol == symbol.name) output.shape[d] = {0, symbol.name};
        }
      }
    }
  }

  ModelProto proto_;
  const Options& options_;
  CheckedModel model_;
  std::set<std::string> used_options_;
};

}  // namespace

absl::StatusOr<CheckedModel> CheckModel(std::string_view bytes, const Files& files,
                                        const Options& options) {
  ASSIGN_OR_RETURN(ModelProto model, Parse(bytes));
  Checker checker(std::move(model), options);
  return checker.Check(files);
}

absl::StatusOr<ImportedModel> Specialize(const CheckedModel& model, const Sizes& sizes) {
  if (!model.report.findings.empty()) {
    const Finding& first = model.report.findings[0];
    return absl::InvalidArgumentError(StrCat(first.code, ": ", first.message));
  }
  for (const Symbol& symbol : model.symbols) {
    const auto size = sizes.sizes.find(symbol.name);
    if (size == sizes.sizes.end()) {
      return ModelError(404, StrCat("dimension ", Quote(symbol.name), " has no size"));
    }
    if (size->second < 1 || size->second > symbol.max_size) {
      return ModelError(404, StrCat("dimension ", Quote(symbol.name), " is ", size->second,
                                    ", and the model was loaded for 1 to ", symbol.max_size,
                                    ". Fix: load it with --max ", symbol.name, "=", size->second));
    }
  }
  if (sizes.sizes.size() != model.symbols.size()) {
    return ModelError(108, "a size is given for a dimension that the model does not have");
  }
  if (!sizes.batch.empty()) {
    if (!sizes.sizes.contains(sizes.batch)) {
      return ModelError(108, StrCat("the model has no dynamic dimension ", Quote(sizes.batch)));
    }
    return SpecializeBatch(model, sizes);
  }
  ImportedModel imported;
  Lowering lowering(model, sizes.sizes);
  lowering.Run(&imported);
  if (!lowering.report().findings.empty()) {
    const Finding& first = lowering.report().findings[0];
    return absl::InvalidArgumentError(StrCat(first.code, ": ", first.message));
  }
  return imported;
}

}  // namespace resident::onnx
