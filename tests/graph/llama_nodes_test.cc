// The nodes that runs of Llama graphs execute: the graphs that the importer writes, after fusion,
// compared with llama_nodes.txt, node by node with operators and arguments.
//
// That file was written before there was a fusion, by an importer that chose the fused operators
// itself. $RESIDENT_LLAMA_NODES: writes such a file of the nodes without fusion, and ends.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/importers/llama/import.h"
#include "runtime/graph/fuse.h"
#include "runtime/graph/values.h"
#include "runtime/model/dtype.h"
#include "tests/graph/builtin_catalog.h"
#include "tests/graph/checked_graph.h"
#include "tests/support/temp_folder.h"

namespace resident::testing {
namespace {

using absl::StrCat;

// A model without values of the weights.
struct Model {
  int64_t hidden = 64;
  int64_t inner = 96;
  int64_t layers = 1;
  bool attention_bias = false;
  bool mlp_bias = false;
  std::string norms = "BF16";
  std::string weights = "BF16";
  // Of the weights whose name contains this.
  std::string other_name = "?";
  std::string other_dtype = {};

  std::string DTypeOf(const std::string& name) const {
    if (absl::StrContains(name, other_name)) return other_dtype;
    return absl::StrContains(name, "norm") ? norms : weights;
  }
};

constexpr int64_t kHeads = 4;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kHeadDim = 16;
constexpr int64_t kVocab = 120;

void WriteModel(const Model& model, const std::string& folder) {
  std::ofstream(folder + "/config.json")
      << R"({"architectures":["LlamaForCausalLM"],"hidden_act":"silu","hidden_size":)"
      << model.hidden << R"(,"intermediate_size":)" << model.inner << R"(,"num_hidden_layers":)"
      << model.layers << R"(,"num_attention_heads":)" << kHeads << R"(,"num_key_value_heads":)"
      << kKvHeads << R"(,"head_dim":)" << kHeadDim << R"(,"vocab_size":)" << kVocab
      << R"(,"rms_norm_eps":1e-5,"attention_bias":)" << (model.attention_bias ? "true" : "false")
      << R"(,"mlp_bias":)" << (model.mlp_bias ? "true" : "false") << "}";
  std::map<std::string, std::vector<int64_t>> shapes = {
      {"model.embed_tokens.weight", {kVocab, model.hidden}},
      {"model.norm.weight", {model.hidden}},
      {"lm_head.weight", {kVocab, model.hidden}}};
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const std::string prefix = StrCat("model.layers.", layer, ".");
    const auto add = [&](const std::string& name, int64_t rows, int64_t columns, bool bias) {
      shapes[prefix + name + ".weight"] = {rows, columns};
      if (bias) shapes[prefix + name + ".bias"] = {rows};
    };
    add("self_attn.q_proj", kHeads * kHeadDim, model.hidden, model.attention_bias);
    add("self_attn.k_proj", kKvHeads * kHeadDim, model.hidden, model.attention_bias);
    add("self_attn.v_proj", kKvHeads * kHeadDim, model.hidden, model.attention_bias);
    add("self_attn.o_proj", model.hidden, kHeads * kHeadDim, model.attention_bias);
    add("mlp.gate_proj", model.inner, model.hidden, model.mlp_bias);
    add("mlp.up_proj", model.inner, model.hidden, model.mlp_bias);
    add("mlp.down_proj", model.hidden, model.inner, model.mlp_bias);
    shapes[prefix + "input_layernorm.weight"] = {model.hidden};
    shapes[prefix + "post_attention_layernorm.weight"] = {model.hidden};
  }
  std::string header = "{";
  int64_t at = 0;
  for (const auto& [name, shape] : shapes) {
    const std::string dtype = model.DTypeOf(name);
    int64_t bytes = dtype == "F32" ? 4 : 2;
    for (const int64_t size : shape) bytes *= size;
    absl::StrAppend(&header, at == 0 ? "" : ",", "\"", name, "\":{\"dtype\":\"", dtype,
                    "\",\"shape\":[", absl::StrJoin(shape, ","), "],\"data_offsets\":[", at, ",",
                    at + bytes, "]}");
    at += bytes;
  }
  header += "}";
  const std::string path = folder + "/model.safetensors";
  const uint64_t size = header.size();
  std::ofstream(path).write(reinterpret_cast<const char*>(&size), sizeof(size)) << header;
  // The weights are a hole of the file.
  std::filesystem::resize_file(path, sizeof(size) + size + static_cast<uint64_t>(at));
}

std::string ArgumentText(const graph::Graph& graph, const graph::Argument& argument) {
  switch (argument.kind) {
    case graph::Argument::Kind::kNoTensor:
      return "none";
    case graph::Argument::Kind::kInteger:
      return StrCat(argument.integer);
    case graph::Argument::Kind::kFloat:
      return StrCat(argument.number, "f");
    case graph::Argument::Kind::kExpression: {
      const graph::ScalarExpression& use = graph.expressions[argument.expression];
      return StrCat(use.factor, "*", std::string(graph.scalars[use.scalar].name), "+", use.addend);
    }
    case graph::Argument::Kind::kTensor:
      break;
  }
  const graph::View& view = argument.view;
  const auto axes = graph.AxesOf(view);
  std::string text =
      StrCat(graph.TensorName(argument.tensor), view.offset == 0 ? "" : StrCat("+", view.offset),
             ":", absl::StrJoin(axes, "x", [&](std::string* out, const graph::Axis& axis) {
               absl::StrAppend(out, axis.scalar == graph::kNone
                                        ? StrCat(axis.size)
                                        : std::string(graph.scalars[axis.scalar].name));
             }));
  const int64_t element = SizeOf(view.dtype);
  if (graph::IsDense(graph::MaxExtents(graph, view), element)) return text;
  return StrCat(text, "/", absl::StrJoin(axes, ",", [&](std::string* out, const graph::Axis& axis) {
                  absl::StrAppend(out, axis.stride / element);
                }));
}

// A line for each node, then one for the order.
std::string NodesText(const graph::CheckedGraph& checked) {
  const graph::Graph& graph = checked.graph;
  std::string text;
  for (const graph::Node& node : graph.nodes) {
    absl::StrAppend(&text, graph.operators[node.op].name, " ",
                    absl::StrJoin(graph.ArgumentsOf(node), " ",
                                  [&](std::string* out, const graph::Argument& argument) {
                                    *out += ArgumentText(graph, argument);
                                  }),
                    "\n");
  }
  return StrCat(text, checked.order.size(), " dependencies, longest chain ",
                checked.order.LongestChain(), "\n");
}

struct Case {
  const char* name;
  Model model;
  cli::LlamaOptions options;
};

cli::LlamaOptions Options(uint64_t batch, uint64_t prompt = 0, uint32_t bits = 0,
                          uint64_t group = 32) {
  cli::LlamaOptions options;
  options.max_context = 64;
  options.batch = batch;
  options.prompt = prompt;
  if (bits != 0) options.quantization = Quantization{.bits = bits, .group = group};
  return options;
}

std::vector<Case> Cases() {
  const Model floats = {.norms = "F32", .weights = "F32"};
  const Model halves = {.norms = "F16", .weights = "F16"};
  const Model biased = {.attention_bias = true, .mlp_bias = true};
  return {
      {"two layers", {.layers = 2}, Options(1)},
      {"f32", floats, Options(1)},
      {"f16", halves, Options(1)},
      {"biases", biased, Options(1)},
      {"biases of attention", {.attention_bias = true}, Options(1)},
      {"norms of f32", {.norms = "F32"}, Options(1)},
      {"k of another dtype", {.other_name = "k_proj", .other_dtype = "F16"}, Options(1)},
      {"up of another dtype", {.other_name = "up_proj", .other_dtype = "F16"}, Options(1)},
      {"down of f32", {.layers = 2, .other_name = "down_proj", .other_dtype = "F32"}, Options(1)},
      {"a long vector", {.hidden = 10272}, Options(1)},
      {"three texts", {.layers = 2}, Options(3)},
      {"three texts, f16", halves, Options(3)},
      {"three texts, biases", biased, Options(3)},
      {"three texts, other columns", {.hidden = 72}, Options(3)},
      {"three texts, a long vector", {.hidden = 10272}, Options(3)},
      {"8 bits", {.layers = 2}, Options(1, 0, 8)},
      {"8 bits, f32", floats, Options(1, 0, 8)},
      {"8 bits, biases", biased, Options(1, 0, 8)},
      {"8 bits, small groups", {}, Options(1, 0, 8, 8)},
      {"8 bits, whole rows", {}, Options(1, 0, 8, 1000)},
      {"4 bits", {}, Options(1, 0, 4)},
      {"4 bits, small groups", {}, Options(1, 0, 4, 16)},
      {"4 bits, other groups", {}, Options(1, 0, 4, 48)},
      {"4 bits, a long vector", {.hidden = 10272}, Options(1, 0, 4)},
      {"4 bits, two texts", {}, Options(2, 0, 4)},
      {"a prompt", {.layers = 2}, Options(1, 8)},
      {"a prompt, f32 and biases",
       {.attention_bias = true, .norms = "F32", .weights = "F32"},
       Options(1, 8)},
      {"a prompt, 4 bits", {}, Options(1, 8, 4)},
  };
}

// `fuses`: whether to fuse the nodes.
std::string DescribeNodes(const Case& each, bool fuses) {
  const TempFolder folder("model");
  WriteModel(each.model, folder.path());
  const auto imported = cli::ImportLlama(folder.path(), each.options);
  EXPECT_TRUE(imported.ok()) << imported.status();
  if (!imported.ok()) return "";
  auto checked = CheckBuiltinGraph(imported->graph);
  EXPECT_TRUE(checked.has_value());
  if (!checked.has_value()) return "";
  if (fuses) graph::Fuse(BuiltinCatalog(), &*checked);
  return NodesText(*checked);
}

TEST(LlamaNodesTest, AreThoseOfAnImporterThatFusesThem) {
  if (const char* const path = std::getenv("RESIDENT_LLAMA_NODES")) {
    std::ofstream file(path);
    for (const Case& each : Cases()) {
      file << "[" << each.name << "]\n" << DescribeNodes(each, /*fuses=*/false) << "\n";
    }
    return;
  }
  std::ifstream file("tests/graph/llama_nodes.txt");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::map<std::string, std::string> expected;
  for (const absl::string_view part : absl::StrSplit(text, "\n\n", absl::SkipEmpty())) {
    const std::pair<std::string, std::string> name_and_nodes =
        absl::StrSplit(part, absl::MaxSplits("]\n", 1));
    expected[name_and_nodes.first.substr(1)] = name_and_nodes.second + "\n";
  }
  EXPECT_EQ(expected.size(), Cases().size());
  for (const Case& each : Cases()) {
    SCOPED_TRACE(each.name);
    const std::string nodes = DescribeNodes(each, /*fuses=*/true);
    EXPECT_EQ(nodes, expected[each.name]);
  }
}

}  // namespace
}  // namespace resident::testing
