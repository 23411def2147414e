// Fuzz target: an ONNX model as bytes, and models of many operators with changed bytes: one with
// most kinds of operators, and an encoder with the forms of nodes that become one call. The import
// must end without a crash. What is accepted has a graph for each size within its bounds whose
// views lie within their tensors, also if the batch remains dynamic, and in the graphs of one model
// weights of one name have one content.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "server/onnx/import.h"
#include "server/onnx/model_maker_for_test.h"

namespace {

using resident::onnx::AttributeProto;
using resident::onnx::Constant;
using resident::onnx::ElementType;
using resident::onnx::FloatAttribute;
using resident::onnx::FloatsAttribute;
using resident::onnx::GraphAttribute;
using resident::onnx::GraphProto;
using resident::onnx::IntAttribute;
using resident::onnx::IntsAttribute;
using resident::onnx::ModelMaker;
using resident::onnx::StringAttribute;

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

// An encoder of sequences: attention, GELU and a layer norm of single nodes, chains of element-wise
// nodes, computed indices, a computed condition, and a linear model of scikit-learn.
std::string MakeEncoder() {
  ModelMaker maker;
  maker.Input("x", {"batch", "seq", "8"});
  maker.Input("mask", {"batch", "seq"}, ElementType::kInt64);
  const auto number = [&](const char* name, double value) {
    maker.Weight(name, Constant::Reals({}, {value}));
  };
  number("root", 1.4142135);
  number("one", 1);
  number("half", 0.5);
  number("two", 2);
  number("epsilon", 1e-5);
  number("low", -1e30);
  for (const char* const name : {"wq", "wk", "wv"}) maker.Weight(name, {8, 8});
  maker.Weight("bias", {8});
  maker.Weight("table", {9, 8});
  maker.Integers("heads", {0, 0, 2, 4});
  maker.Integers("joined", {0, 0, 8});
  maker.Integers("zero", {0});
  maker.Integers("first", {1});
  maker.Integers("axes", {1, 2});
  // The rows of a table of positions: a weight that each length has of its own.
  maker.Node("Shape", {"x"}, {"sizes"});
  maker.Node("Gather", {"sizes", "first"}, {"length"});
  maker.Node("Slice", {"table", "zero", "length", "zero"}, {"positions"});
  maker.Node("Add", {"x", "positions"}, {"p"});
  const auto project = [&](const std::string& name, const std::vector<int64_t>& order) {
    maker.Node("MatMul", {"p", "w" + name}, {name + "1"});
    maker.Node("Add", {name + "1", "bias"}, {name + "2"});
    maker.Node("Reshape", {name + "2", "heads"}, {name + "3"});
    maker.Node("Transpose", {name + "3"}, {name}, {IntsAttribute("perm", order)});
  };
  project("q", {0, 2, 1, 3});
  project("k", {0, 2, 3, 1});
  project("v", {0, 2, 1, 3});
  maker.Node("Cast", {"mask"}, {"keep"}, {IntAttribute("to", 9)});
  maker.Node("Where", {"keep", "one", "low"}, {"hidden"});
  maker.Node("Unsqueeze", {"hidden", "axes"}, {"hides"});
  maker.Node("MatMul", {"q", "k"}, {"products"});
  maker.Node("Div", {"products", "two"}, {"scaled"});
  maker.Node("Add", {"scaled", "hides"}, {"masked"});
  maker.Node("Softmax", {"masked"}, {"weights"}, {IntAttribute("axis", -1)});
  maker.Node("MatMul", {"weights", "v"}, {"context"});
  maker.Node("Transpose", {"context"}, {"turned"}, {IntsAttribute("perm", {0, 2, 1, 3})});
  maker.Node("Reshape", {"turned", "joined"}, {"attended"});
  maker.Node("Add", {"attended", "p"}, {"residual"});
  const auto mean = [&](const char* from, const char* to) {
    maker.Node("ReduceMean", {from}, {to}, {IntsAttribute("axes", {-1})});
  };
  mean("residual", "m");
  maker.Node("Sub", {"residual", "m"}, {"centered"});
  maker.Node("Pow", {"centered", "two"}, {"squares"});
  mean("squares", "variance");
  maker.Node("Add", {"variance", "epsilon"}, {"above"});
  maker.Node("Sqrt", {"above"}, {"deviation"});
  maker.Node("Div", {"centered", "deviation"}, {"normal"});
  maker.Node("Mul", {"normal", "bias"}, {"norm"});
  maker.Node("Div", {"norm", "root"}, {"g1"});
  maker.Node("Erf", {"g1"}, {"g2"});
  maker.Node("Add", {"g2", "one"}, {"g3"});
  maker.Node("Mul", {"norm", "g3"}, {"g4"});
  maker.Node("Mul", {"g4", "half"}, {"gelu"});
  maker.Node("ArgMax", {"gelu"}, {"best"}, {IntAttribute("axis", 2)});
  maker.Node("GatherElements", {"gelu", "best"}, {"largest"}, {IntAttribute("axis", 2)});
  maker.Node("Less", {"gelu", "largest"}, {"less"});
  maker.Node("Where", {"less", "gelu", "one"}, {"chosen"});
  maker.Node("Trilu", {"chosen"}, {"triangle"}, {IntAttribute("upper", 0)});
  maker.Node("ReduceMax", {"triangle"}, {"most"}, {IntAttribute("keepdims", 0)});
  maker.Node("Less", {"most", "one"}, {"small"});
  GraphProto branches[2];
  for (int i = 0; i < 2; ++i) {
    ModelMaker::AddNode(&branches[i], i == 0 ? "Neg" : "Exp", {"triangle"}, {"r"});
    branches[i].add_output()->set_name("r");
  }
  maker.Node(
      "If", {"small"}, {"selected"},
      {GraphAttribute("then_branch", branches[0]), GraphAttribute("else_branch", branches[1])});
  maker.Node("ReduceMean", {"selected"}, {"pooled"},
             {IntsAttribute("axes", {1}), IntAttribute("keepdims", 0)});
  const auto ml = [&](const char* op, const std::vector<std::string>& inputs,
                      const std::vector<std::string>& outputs,
                      const std::vector<AttributeProto>& attributes) {
    maker.Node(op, inputs, outputs, attributes).set_domain("ai.onnx.ml");
  };
  ml("Scaler", {"pooled"}, {"standard"},
     {FloatsAttribute("offset", {1}), FloatsAttribute("scale", {1, 2, 3, 4, 5, 6, 7, 8})});
  ml("LinearClassifier", {"standard"}, {"class", "scores"},
     {FloatsAttribute("coefficients", std::vector<float>(16, 0.5F)),
      FloatsAttribute("intercepts", {1, 2}), IntsAttribute("classlabels_ints", {3, 4}),
      StringAttribute("post_transform", "SOFTMAX")});
  ml("Normalizer", {"scores"}, {"probabilities"}, {StringAttribute("norm", "L2")});
  ml("ArrayFeatureExtractor", {"probabilities", "first"}, {"second"}, {});
  for (const char* const name : {"gelu", "class", "second"}) maker.Output(name);
  return maker.Bytes();
}

// Aborts if the model is refused as it is: then changed bytes reach little.
std::string Accepted(const std::string& bytes) {
  resident::onnx::Options options;
  options.max_sizes = {{"seq", 5}};
  if (!absl::StrContains(bytes, "seq")) options.max_sizes.clear();
  const auto model = resident::onnx::CheckModel(bytes, {}, options);
  if (model.ok() && model->report.findings.empty()) return bytes;
  std::fprintf(stderr, "%s\n",
               model.ok() ? model->report.findings[0].message.c_str()
                          : std::string(model.status().message()).c_str());
  std::abort();
}

// Aborts if a view lies outside of its tensor. `batch`: the size of a dynamic dimension.
void CheckViews(const resident::v1::Graph& graph, int64_t batch) {
  const auto size_of = [&](const resident::v1::GraphDim& dim) {
    return dim.scalar().empty() ? dim.size() : batch;
  };
  std::map<std::string, int64_t> elements;
  for (const auto& tensor : graph.tensors()) {
    int64_t count = 1;
    for (const auto& dim : tensor.shape()) {
      if (size_of(dim) < 1) std::abort();
      count *= size_of(dim);
    }
    elements[tensor.name()] = count;
  }
  for (const auto& node : graph.nodes()) {
    for (const auto& argument : node.arguments()) {
      if (!argument.has_tensor()) continue;
      const auto& view = argument.tensor();
      int64_t low = view.offset(), high = view.offset();
      for (int d = 0; d < view.shape_size(); ++d) {
        if (size_of(view.shape(d)) < 1) std::abort();
        const int64_t last = (size_of(view.shape(d)) - 1) * view.strides(d);
        (last < 0 ? low : high) += last;
      }
      if (low < 0 || high >= elements.at(view.name())) std::abort();
    }
  }
}

using Contents = std::map<std::string, std::string>;

// Aborts if a weight has another content than in a graph before.
void CheckWeights(const resident::onnx::ImportedModel& imported, Contents* contents) {
  for (const auto& weight : imported.weights) {
    if (contents->emplace(weight.tensor, *weight.bytes).first->second != *weight.bytes) {
      std::abort();
    }
  }
}

// `plans`: as for a version with a plan for each set of sizes: the largest one is made and checked,
// and others are made without a trial.
void Import(const std::string& bytes, bool plans) {
  const resident::onnx::Files files = {{"data", "0123456789abcdef"}};
  resident::onnx::Options options;
  options.max_batch = 3;
  options.max_sizes = {{"seq", 5}};
  options.shares_weights = plans;
  auto model = resident::onnx::CheckModel(bytes, files, options);
  if (!model.ok() && absl::StrContains(model.status().message(), "no dynamic dimension")) {
    options.max_sizes.clear();
    model = resident::onnx::CheckModel(bytes, files, options);
  }
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
  const auto largest = sizes.sizes;
  Contents contents;
  for (int i = 0; i < 3; ++i) {
    if (plans && i > 0) {
      options.accepted = true;
      model = resident::onnx::CheckModel(bytes, files, options);
      if (!model.ok()) std::abort();  // It was accepted before.
    }
    const auto imported = Specialize(*model, sizes);
    // The largest sizes were tried; smaller ones may be refused.
    if (!imported.ok() && i == 0) std::abort();
    if (imported.ok()) {
      CheckViews(imported->graph, /*batch=*/0);
      CheckWeights(*imported, &contents);
    }
    for (const auto& [name, most] : largest) {
      if (name != "batch") continue;
      sizes.batch = name;
      const auto dynamic = Specialize(*model, sizes);
      for (int64_t batch = 1; dynamic.ok() && batch <= sizes.sizes[name]; ++batch) {
        CheckViews(dynamic->graph, batch);
      }
      if (dynamic.ok()) CheckWeights(*dynamic, &contents);
      sizes.batch.clear();
    }
    for (auto& [name, size] : sizes.sizes) size = std::max<int64_t>(size - 2, 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool plans = data[0] % 2 != 0;
  if (data[0] / 2 % 4 == 0) {
    Import(text, plans);
    return 0;
  }
  // Each three bytes replace a byte of the model.
  static const auto* const models =
      new std::string[2]{Accepted(MakeModel()), Accepted(MakeEncoder())};
  std::string bytes = models[data[0] / 8 % 2];
  for (size_t i = 0; i + 2 < text.size(); i += 3) {
    const size_t at =
        static_cast<unsigned char>(text[i]) * size_t{256} + static_cast<unsigned char>(text[i + 1]);
    bytes[at % bytes.size()] = text[i + 2];
  }
  Import(bytes, plans);
  return 0;
}
