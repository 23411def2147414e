// Fuzz target: an ONNX model as bytes, and a model of many operators with changed bytes. The import
// must end without a crash. What is accepted has a graph for each size within its bounds whose
// views lie within their tensors.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "server/onnx/import.h"
#include "server/onnx/model_maker_for_test.h"

namespace {

using resident::onnx::Constant;
using resident::onnx::ElementType;
using resident::onnx::FloatAttribute;
using resident::onnx::GraphAttribute;
using resident::onnx::GraphProto;
using resident::onnx::IntAttribute;
using resident::onnx::IntsAttribute;
using resident::onnx::ModelMaker;

// A model with most kinds of operators, so that changed bytes reach their checks.
std::string MakeModel() {
  ModelMaker maker;
  maker.Input("x", {"batch", "4", "6"});
  maker.Input("ids", {"batch", "2"}, ElementType::kInt64);
  maker.Weight("w", {6, 5});
  maker.Weight("table", {7, 3});
  maker.Weight("kernel", {4, 4, 3});
  maker.Weight("scale", {4});
  maker.Integers("shape", {0, -1});
  maker.Integers("one", {1});
  maker.Integers("axis", {2});
  maker.Integers("end", {5});
  maker.Integers("pads", {0, 0, 1, 0, 0, 2});
  maker.Node("MatMul", {"x", "w"}, {"product"});
  maker.Node("Softmax", {"product"}, {"soft"}, {IntAttribute("axis", 1)});
  maker.Node("Transpose", {"soft"}, {"t"}, {IntsAttribute("perm", {0, 2, 1})});
  maker.Node("Reshape", {"t", "shape"}, {"flat"});
  maker.Node("Elu", {"flat"}, {"elu"}, {FloatAttribute("alpha", 0.5)});
  maker.Node("Conv", {"x", "kernel"}, {"conv"}, {IntsAttribute("pads", {1, 1})});
  maker.Node("MaxPool", {"conv"}, {"pool"},
             {IntsAttribute("kernel_shape", {2}), IntsAttribute("strides", {2})});
  maker.Node("Pad", {"pool", "pads"}, {"padded"});
  maker.Node("Slice", {"padded", "one", "end", "axis"}, {"slice"});
  maker.Node("BatchNormalization", {"slice", "scale", "scale", "scale", "scale"}, {"norm"});
  maker.Node("ReduceSum", {"norm", "axis"}, {"sum"});
  maker.Node("Gather", {"table", "ids"}, {"rows"});
  maker.Node("Concat", {"rows", "rows"}, {"both"}, {IntAttribute("axis", -1)});
  maker.Node("Shape", {"x"}, {"sizes"});
  maker.Node("Gather", {"sizes", "one"}, {"size"});
  maker.Node("ConstantOfShape", {"size"}, {"zeros"});
  maker.Node("Split", {"both"}, {"left", "right"}, {IntAttribute("axis", 2)});
  maker.Node("Mul", {"left", "right"}, {"mul"});
  maker.Weight("condition", Constant::Integers({}, {1}, ElementType::kBool));
  GraphProto branch;
  ModelMaker::AddNode(&branch, "Relu", {"mul"}, {"r"});
  branch.add_output()->set_name("r");
  maker.Node("If", {"condition"}, {"branch"},
             {GraphAttribute("then_branch", branch), GraphAttribute("else_branch", branch)});
  for (const char* const name : {"elu", "sum", "branch", "zeros"}) maker.Output(name);
  return maker.Bytes();
}

// Aborts if a view lies outside of its tensor.
void CheckViews(const resident::v1::Graph& graph) {
  std::map<std::string, int64_t> elements;
  for (const auto& tensor : graph.tensors()) {
    int64_t count = 1;
    for (const auto& dim : tensor.shape()) {
      if (dim.size() < 1) std::abort();
      count *= dim.size();
    }
    elements[tensor.name()] = count;
  }
  for (const auto& node : graph.nodes()) {
    for (const auto& argument : node.arguments()) {
      if (!argument.has_tensor()) continue;
      const auto& view = argument.tensor();
      int64_t low = view.offset(), high = view.offset();
      for (int d = 0; d < view.shape_size(); ++d) {
        if (view.shape(d).size() < 1) std::abort();
        const int64_t last = (view.shape(d).size() - 1) * view.strides(d);
        (last < 0 ? low : high) += last;
      }
      if (low < 0 || high >= elements.at(view.name())) std::abort();
    }
  }
}

void Import(const std::string& bytes) {
  resident::onnx::Options options;
  options.max_batch = 3;
  const auto model = resident::onnx::CheckModel(bytes, {{"data", "0123456789abcdef"}}, options);
  if (!model.ok()) {
    if (!absl::StartsWith(model.status().message(), "MODEL_E")) std::abort();
    return;
  }
  for (const auto& finding : model->report.findings) {
    if (!finding.code.starts_with("MODEL_E") || finding.message.empty()) std::abort();
  }
  if (!model->report.findings.empty()) return;
  resident::onnx::Sizes sizes;
  for (const auto& symbol : model->symbols) sizes.sizes[symbol.name] = symbol.max_size;
  for (int i = 0; i < 2; ++i) {
    const auto imported = Specialize(*model, sizes);
    // The largest sizes were tried; smaller ones may be refused.
    if (!imported.ok() && i == 0) std::abort();
    if (imported.ok()) CheckViews(imported->graph);
    for (auto& [name, size] : sizes.sizes) size = std::max<int64_t>(size - 2, 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 4 == 0) {
    Import(text);
    return 0;
  }
  // Each three bytes replace a byte of the model.
  static const auto* const model = new std::string(MakeModel());
  std::string bytes = *model;
  for (size_t i = 0; i + 2 < text.size(); i += 3) {
    const size_t at =
        static_cast<unsigned char>(text[i]) * size_t{256} + static_cast<unsigned char>(text[i + 1]);
    bytes[at % bytes.size()] = text[i + 2];
  }
  Import(bytes);
  return 0;
}
