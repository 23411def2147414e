// Files of AMK are imported, and the validator accepts the graphs; what cannot be expressed is
// refused with a message that names the task, its opcode and the reason.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "client/importers/amk/import.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/graph/amk_maker.h"
#include "tests/graph/graph_maker.h"

namespace resident::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Names = std::vector<std::string>;

v1::GraphReport Check(const v1::Graph& graph) {
  GraphMaker maker;
  maker.graph = graph;
  return maker.Validate();
}

Names Operators(const v1::Graph& graph) {
  Names names;
  for (const v1::GraphNode& node : graph.nodes()) names.push_back(node.operator_());
  return names;
}

// The accepted graph.
v1::Graph Accepted(const Amk& amk) {
  const auto imported = cli::ImportAmk("f", amk.file.dump());
  if (!imported.ok()) {
    ADD_FAILURE() << imported.status();
    return {};
  }
  const v1::GraphReport report = Check(imported->graph);
  EXPECT_TRUE(report.accepted()) << FindingsText(report) << imported->graph.DebugString();
  return imported->graph;
}

std::vector<int> Codes(const Amk& amk) {
  const auto imported = cli::ImportAmk("f", amk.file.dump());
  if (!imported.ok()) {
    ADD_FAILURE() << imported.status();
    return {};
  }
  return ErrorCodes(Check(imported->graph));
}

void ExpectRefused(const Amk& amk, const std::string& message) {
  const auto imported = cli::ImportAmk("f", amk.file.dump());
  ASSERT_FALSE(imported.ok());
  EXPECT_EQ(
      std::string(imported.status().message()),
      "f: " + message + ". Fix: correct the file; docs/graph_amk.md lists what can be imported");
}

TEST(AmkImportTest, ElementwiseOpcodes) {
  const std::pair<const char*, const char*> binary[] = {
      {"ADD", "add"}, {"MUL", "mul"}, {"SILU_MUL", "silu_mul"}};
  for (const auto& [op, name] : binary) {
    Amk amk;
    amk.Task(op, {amk.In({1, 8}), amk.In({8}, "BF16")}, {amk.Out({1, 8}, "F16")});
    EXPECT_THAT(Operators(Accepted(amk)), ElementsAre(name));
  }
  const std::pair<const char*, const char*> unary[] = {
      {"COPY", "copy"}, {"GELU", "gelu"}, {"MUL", "scale"}, {"SOFTMAX", "softmax"}};
  for (const auto& [op, name] : unary) {
    Amk amk;
    amk.Task(op, {amk.In({2, 8})}, {amk.Out({2, 8})}, {{"scale", 0.5}});
    EXPECT_THAT(Operators(Accepted(amk)), ElementsAre(name));
  }
}

TEST(AmkImportTest, IntegersAreComputedInFloat32) {
  Amk amk;
  amk.Task("ADD", {amk.In({8}, "I32"), amk.In({8})}, {amk.Out({8}, "I32")});
  EXPECT_THAT(Operators(Accepted(amk)), ElementsAre("copy", "add", "copy"));
}

TEST(AmkImportTest, OutputThatIsAnInputIsWrittenThroughATemporary) {
  Amk amk;
  const int x = amk.Buffer("ACTIVATION", "F32", {4});
  const int in = amk.In({4});
  amk.Task("COPY", {in}, {x});
  amk.Task("ADD", {x, in}, {x});
  amk.Task("COPY", {x}, {amk.Out({4})});
  EXPECT_THAT(Operators(Accepted(amk)), ElementsAre("copy", "add", "copy", "copy"));
}

TEST(AmkImportTest, SoftmaxAlongAnotherDimension) {
  Amk amk;
  amk.Task("SOFTMAX", {amk.In({2, 3, 4})}, {amk.Out({2, 3, 4})}, {{"dim", 0}});
  EXPECT_THAT(Operators(Accepted(amk)), ElementsAre("copy", "softmax", "copy"));
}

TEST(AmkImportTest, Norms) {
  Amk amk;
  const Json params = {{"eps", 1e-5}, {"hidden", 8}};
  const int x = amk.In({1, 8});
  const int w = amk.Weight({8});
  amk.Task("RMSNORM", {x, w}, {amk.Out({1, 8})}, params);
  amk.Task("LAYERNORM", {x, w}, {amk.Out({1, 8})}, params);
  const int bias = amk.Weight({8});
  amk.Task("LAYERNORM", {x, w, bias}, {amk.Out({1, 8})}, params);
  const v1::Graph graph = Accepted(amk);
  EXPECT_THAT(Operators(graph), ElementsAre("rmsnorm", "layernorm", "layernorm"));
  EXPECT_TRUE(graph.nodes(1).arguments(2).none());
  EXPECT_EQ(graph.nodes(2).arguments(2).tensor().name(), "b" + std::to_string(bias));
}

TEST(AmkImportTest, EmbedGathersAndReshapes) {
  Amk amk;
  const int flat = amk.Buffer("ACTIVATION", "F32", {1, 8});
  amk.Task("EMBED", {amk.In({1}, "I32"), amk.Weight({100, 8}, "BF16")}, {flat}, {{"hidden", 8}});
  amk.Task("EMBED", {amk.In({1}, "I32"), flat}, {amk.Out({2, 4})}, {{"hidden", 4}});
  EXPECT_THAT(Operators(Accepted(amk)), ElementsAre("embedding", "embedding"));
}

TEST(AmkImportTest, GemvTilesOfOneRowWriteTheOutput) {
  Amk amk;
  const int x = amk.In({1, 16});
  const int w = amk.Weight({8, 16}, "BF16");
  const int out = amk.Out({1, 8});
  for (const int first : {0, 4}) {
    amk.Task("GEMV_TILE", {x, w}, {out}, {{"K", 16}, {"N_tile", 4}, {"n_off", first}});
  }
  const v1::Graph graph = Accepted(amk);
  EXPECT_THAT(Operators(graph), ElementsAre("gemv", "gemv"));
  EXPECT_EQ(graph.nodes(1).arguments(1).tensor().offset(), 64);
  EXPECT_EQ(graph.nodes(1).arguments(3).tensor().offset(), 4);
}

TEST(AmkImportTest, MissingTileIsFoundByTheValidator) {
  Amk amk;
  amk.Task("GEMV_TILE", {amk.In({1, 16}), amk.Weight({8, 16})}, {amk.Out({1, 8})},
           {{"K", 16}, {"N_tile", 4}, {"n_off", 0}});
  EXPECT_THAT(Codes(amk), ElementsAre(404));
}

TEST(AmkImportTest, GemmTilesOfRowsAndColumnsWithBias) {
  Amk amk;
  const int x = amk.In({4, 16});
  const int w = amk.Weight({8, 16});
  const int bias = amk.Weight({8});
  const int out = amk.Out({4, 8}, "F16");
  for (const int row : {0, 2}) {
    for (const int column : {0, 4}) {
      amk.Task("GEMM_TILE", {x, w, bias}, {out},
               {{"K", 16}, {"N_tile", 4}, {"n_off", column}, {"M_tile", 2}, {"m_off", row}});
    }
  }
  const v1::Graph graph = Accepted(amk);
  EXPECT_THAT(Operators(graph),
              ElementsAre("gemm", "add", "gemm", "add", "gemm", "add", "gemm", "add"));
  EXPECT_EQ(graph.nodes(7).arguments(2).tensor().offset(), 2 * 8 + 4);
}

TEST(AmkImportTest, QuantizedWeights) {
  const Json params = {{"K", 16}, {"N_tile", 4}, {"n_off", 0}, {"group", 8}};
  for (const int qdtype : {6, 7}) {
    for (const bool zeros : {false, true}) {
      Amk amk;
      std::vector<int> inputs = {amk.In({1, 16}), amk.Weight({4, 16}, qdtype == 7 ? "I4" : "I8"),
                                 amk.Weight({4, 2}, "F16")};
      if (zeros) inputs.push_back(amk.Weight({4, 2}, "F16"));
      Json all = params;
      all["qdtype"] = qdtype;
      amk.Task("GEMV_TILE", inputs, {amk.Out({1, 4})}, all);
      const v1::Graph graph = Accepted(amk);
      EXPECT_THAT(Operators(graph), ElementsAre("gemv_quant"));
      EXPECT_EQ(graph.nodes(0).arguments(3).none(), !zeros);
      Amk dequant;
      inputs = {dequant.Weight({4, 16}, qdtype == 7 ? "I4" : "I8"), dequant.Weight({4, 2}, "F16")};
      if (zeros) inputs.push_back(dequant.Weight({4, 2}, "F32"));
      dequant.Task("DEQUANT", inputs, {dequant.Out({4, 16})}, {{"qdtype", qdtype}, {"group", 8}});
      EXPECT_THAT(Operators(Accepted(dequant)),
                  zeros ? Names({"copy", "dequant"}) : Names({"dequant"}));
    }
  }
}

TEST(AmkImportTest, UnsignedBytesWithoutZerosGetZerosOfZero) {
  Amk amk;
  amk.Task("DEQUANT", {amk.Weight({4, 16}, "U8"), amk.Weight({4, 2}, "F16")}, {amk.Out({4, 16})},
           {{"qdtype", 6}, {"group", 8}});
  EXPECT_THAT(Operators(Accepted(amk)), ElementsAre("zero", "dequant"));
}

TEST(AmkImportTest, RopeTakesThePositionFromABuffer) {
  Amk amk;
  const Json params = {{"head_dim", 8}, {"theta", 10000.0}};
  amk.Task("ROPE", {amk.In({2, 8}), amk.In({1}, "I32")}, {amk.Out({2, 8})}, params);
  const v1::Graph graph = Accepted(amk);
  EXPECT_THAT(Operators(graph), ElementsAre("rope_freqs", "copy", "mul", "rope"));
  // The product takes row 1 of the table: the angles of position 1.
  EXPECT_EQ(graph.nodes(2).arguments(1).tensor().offset(), 4);
  EXPECT_EQ(graph.nodes(3).arguments(4).i64(), 1);
  Amk rows;
  rows.Task("ROPE", {rows.In({3, 2, 8}), rows.In({3}, "I32")}, {rows.Out({3, 2, 8})}, params);
  Accepted(rows);
}

Json Window(int start, int length, int flags = 0) {
  return {{"head_dim", 4}, {"kv_start", start}, {"kv_len", length}, {"scale", 0.5},
          {"n_heads", 4},  {"n_kv_heads", 2},   {"flags", flags}};
}

TEST(AmkImportTest, AppendAndAttend) {
  Amk amk;
  const int k = amk.Buffer("KV_CACHE", "BF16", {16, 2, 4});
  const int v = amk.Buffer("KV_CACHE", "BF16", {16, 2, 4});
  amk.Task("KV_APPEND", {amk.In({1, 2, 4}), k}, {k}, {{"pos", 5}});
  amk.Task("KV_APPEND", {amk.In({1, 8}), v}, {v}, {{"pos", 5}});
  amk.Task("ATTENTION_TILE", {amk.In({4, 4}), k, v}, {amk.Out({1, 16})}, Window(2, 4));
  const v1::Graph graph = Accepted(amk);
  EXPECT_THAT(Operators(graph), ElementsAre("kv_append", "kv_append", "attention"));
  EXPECT_EQ(graph.nodes(2).arguments(1).tensor().offset(), 2 * 8);
  // The attention waits only for the second append, which waits for the first.
  amk.file["tasks"][2]["waits"] = Json::array();
  EXPECT_THAT(Codes(amk), ElementsAre(507));
}

TEST(AmkImportTest, BatchedAppendAndAttend) {
  Amk amk;
  const int k = amk.Buffer("KV_CACHE", "F16", {3, 16, 2, 4});
  amk.Task("KV_APPEND", {amk.In({3, 2, 4}), k}, {k}, {{"pos", 0}});
  amk.Task("ATTENTION_TILE", {amk.In({3, 4, 4}), k, k}, {amk.Out({3, 16})}, Window(0, 1));
  EXPECT_THAT(Operators(Accepted(amk)), ElementsAre("kv_append", "attention"));
}

TEST(AmkImportTest, PartialAttentionAndCombine) {
  Amk amk;
  const int q = amk.In({4, 4});
  const int k = amk.In({16, 2, 4});
  std::vector<int> parts;
  for (const int start : {0, 8, 16}) {
    parts.push_back(amk.Buffer("ACTIVATION", "F32", {4, 6}));
    amk.Task("ATTENTION_TILE", {q, k, k}, {parts.back()}, Window(start, start < 16 ? 8 : 0, 2));
  }
  amk.Task("ATTENTION_COMBINE", parts, {amk.Out({1, 16})}, {{"head_dim", 4}, {"n_heads", 4}});
  EXPECT_THAT(Operators(Accepted(amk)),
              ElementsAre("attention_partial", "copy", "copy", "copy", "attention_partial", "copy",
                          "copy", "copy", "zero", "fill", "zero", "copy", "copy", "copy", "copy",
                          "copy", "copy", "copy", "copy", "copy", "attention_combine"));
}

TEST(AmkImportTest, ArgmaxWritesTheOutputsDType) {
  Amk amk;
  amk.Task("SAMPLE_ARGMAX", {amk.In({1, 100})}, {amk.Out({1}, "I32")});
  EXPECT_THAT(Operators(Accepted(amk)), ElementsAre("argmax", "copy"));
}

TEST(AmkImportTest, AllReduceIsASum) {
  for (const size_t count : {1, 2, 8}) {
    Amk amk;
    std::vector<int> inputs;
    for (size_t i = 0; i < count; ++i) inputs.push_back(amk.In({8}, "F16"));
    amk.Task("ALLREDUCE_SHARD", inputs, {amk.Out({8}, "F16")});
    EXPECT_THAT(Operators(Accepted(amk)), count == 1 ? Names({"copy"}) : Names(count - 1, "add"));
  }
}

TEST(AmkImportTest, NopSignalsAfterItsWaits) {
  Amk amk;
  const int a = amk.Buffer("ACTIVATION", "F32", {4});
  amk.Task("COPY", {amk.In({4})}, {a});
  amk.Task("NOP", {}, {});
  amk.Task("COPY", {a}, {amk.Out({4})});
  EXPECT_THAT(Operators(Accepted(amk)), ElementsAre("copy", "zero", "copy"));
}

Json Recipe() {
  return {{"recipe",
           {{"steps",
             {{{"op", 5},
               {"args", {{{"in", 0}}, {{"in", 1}}}},
               {"out", 0},
               {"params", {{"K", 16}, {"N_tile", 8}, {"n_off", 0}}},
               {"out_shape", {1, 8}},
               {"out_dtype", "float16"}},
              {{"op", 11}, {"args", {{{"s", 0}}, {{"in", 2}}}}, {"out", "final"}}}}}}};
}

TEST(AmkImportTest, FusedRecipe) {
  Amk amk;
  const std::vector<int> inputs = {amk.In({1, 16}), amk.Weight({8, 16}), amk.In({1, 8})};
  Json& task = amk.Task("FUSED", inputs, {amk.Out({1, 8})}, Recipe());
  const v1::Graph graph = Accepted(amk);
  EXPECT_THAT(Operators(graph), ElementsAre("gemv", "add"));
  EXPECT_EQ(graph.tensors(4).dtype(), v1::DTYPE_F16);
  // The rest of a scratch that is written in part is 0.
  task["params"]["recipe"]["steps"][0]["params"]["N_tile"] = 4;
  EXPECT_THAT(Operators(Accepted(amk)), ElementsAre("zero", "gemv", "add"));
  task["params"]["recipe"]["steps"][1]["args"][0]["s"] = 3;
  ExpectRefused(amk, "task 0 (FUSED): step 1: it reads a scratch that no earlier step wrote");
  task["params"]["recipe"]["steps"][1]["op"] = 19;
  ExpectRefused(amk, "task 0 (FUSED): step 1: it is a FUSED recipe itself");
  task["params"]["recipe"]["steps"].erase(1);
  ExpectRefused(amk, "task 0 (FUSED): no step of its recipe writes \"final\"");
}

TEST(AmkImportTest, AssignmentBecomesBlocks) {
  Amk amk;
  const int a = amk.Buffer("ACTIVATION", "F32", {4});
  amk.Task("COPY", {amk.In({4})}, {a})["sm"] = 2;
  amk.Task("COPY", {a}, {amk.Out({4})})["sm"] = 1;
  amk.file["target"] = {{"name", "x"}, {"num_sms", 3}};
  const v1::Graph graph = Accepted(amk);
  EXPECT_EQ(graph.blocks(), 3u);
  EXPECT_EQ(graph.nodes(0).block(), 2u);
  amk.file["target"]["num_sms"] = 2;
  EXPECT_THAT(Codes(amk), ElementsAre(511));
  for (const uint64_t sm : {uint64_t{1} << 31, (uint64_t{1} << 32) - 1, ~uint64_t{0}}) {
    amk.file["tasks"][0]["sm"] = sm;
    ExpectRefused(amk, "task 0: (COPY): its sm is not a whole number from 0 to 2147483647");
  }
  amk.file["tasks"][0]["sm"] = nullptr;
  const auto imported = cli::ImportAmk("f", amk.file.dump());
  ASSERT_TRUE(imported.ok());
  EXPECT_EQ(imported->graph.blocks(), 0u);
  EXPECT_THAT(imported->notes,
              ElementsAre("the assignment to SMs is left out: 1 of 2 tasks have none"));
}

TEST(AmkImportTest, TasksAreSortedByTheirWaits) {
  Amk amk;
  const int a = amk.Buffer("ACTIVATION", "F32", {4});
  amk.Task("COPY", {a}, {amk.Out({4})})["waits"] = {{{"counter", 1}, {"threshold", 1}}};
  amk.Task("COPY", {amk.In({4})}, {a})["waits"] = Json::array();
  EXPECT_EQ(Accepted(amk).nodes(0).name(), "task1.COPY");
}

// The verdicts that differ from AMK's, by row of the table in docs/graph_amk.md.
TEST(AmkVerdictTest, AcceptedHereAndRefusedByAmk) {
  Amk redefinition;
  const int x = redefinition.Buffer("ACTIVATION", "F32", {4});
  const int in = redefinition.In({4});
  redefinition.Task("COPY", {in}, {x});
  redefinition.Task("COPY", {x}, {redefinition.Out({4})});
  redefinition.Task("ADD", {in, in}, {x});
  redefinition.Task("COPY", {x}, {redefinition.Out({4})});
  Accepted(redefinition);
  // On-chip memory that two SMs use, and buffers that share a page.
  redefinition.file["buffers"][static_cast<size_t>(x)]["space"] = "SMEM";
  for (Json& task : redefinition.file["tasks"]) task["sm"] = task["id"];
  redefinition.file["pages"] = {{"buffer_to_page", {{"0", 0}, {"1", 0}}}, {"pages", Json::array()}};
  Accepted(redefinition);
}

TEST(AmkVerdictTest, RefusedByTheValidator) {
  const auto two = [] {
    Amk amk;
    const int a = amk.Buffer("ACTIVATION", "F32", {4});
    amk.Task("COPY", {amk.In({4})}, {a});
    amk.Task("COPY", {a}, {amk.Out({4})});
    return amk;
  };
  Amk counter = two();
  counter.file["counters"][0]["init"] = 1;
  EXPECT_THAT(Codes(counter), ElementsAre(506));
  Amk self = two();
  self.file["tasks"][0]["waits"] = {{{"counter", 0}, {"threshold", 1}}};
  EXPECT_THAT(Codes(self), ElementsAre(505));
  Amk cycle = two();
  cycle.file["tasks"][0]["waits"] = {{{"counter", 1}, {"threshold", 1}}};
  EXPECT_THAT(Codes(cycle), ElementsAre(501));
  Amk threshold = two();
  threshold.file["tasks"][1]["waits"][0]["threshold"] = 2;
  EXPECT_THAT(Codes(threshold), ElementsAre(503));
  Amk weight;
  weight.Task("COPY", {weight.In({4})}, {weight.Weight({4})});
  EXPECT_THAT(Codes(weight), ElementsAre(402));
  Amk empty;
  EXPECT_THAT(Codes(empty), ElementsAre(107));
  // The second task overwrites what the first still reads.
  Amk reader = two();
  reader.Task("COPY", {1}, {0})["waits"] = {{{"counter", 0}, {"threshold", 1}}};
  reader.file["tasks"][2]["waits"] = {{{"counter", 0}, {"threshold", 1}}};
  EXPECT_THAT(Codes(reader), ElementsAre(508));
}

TEST(AmkVerdictTest, RefusedByTheImporter) {
  Amk shape;
  shape.In({4, -1});
  ExpectRefused(shape, "buffer 0: a dimension is not a whole number of at least 1");
  Amk eighth;
  const int eight_bits = eighth.In({4}, "F8E4M3");
  eighth.Task("COPY", {eight_bits}, {eighth.Out({4})});
  ExpectRefused(eighth, "task 0 (COPY): buffer 0 has dtype F8E4M3, which no operator accepts");
  Amk large;
  const int64_t half = int64_t{1} << 55;
  const int ids = large.In({half}, "I32");
  const int table = large.Weight({1, half});
  large.Task("EMBED", {ids, table}, {large.Out({4})}, {{"hidden", 4}});
  ExpectRefused(large,
                "task 0 (EMBED): 36028797018963968 rows of 36028797018963968 elements do not "
                "fill an output of shape [4]");
  Amk k;
  k.Task("GEMV_TILE", {k.In({1, 16}), k.Weight({8, 16})}, {k.Out({1, 8})},
         {{"K", 32}, {"N_tile", 8}, {"n_off", 0}});
  ExpectRefused(k, "task 0 (GEMV_TILE): K is 32 and the input has shape [1, 16]");
  Amk tile;
  tile.Task("GEMV_TILE", {tile.In({1, 16}), tile.Weight({8, 16})}, {tile.Out({1, 8})},
            {{"K", 16}, {"N_tile", 8}, {"n_off", 4}});
  ExpectRefused(tile,
                "task 0 (GEMV_TILE): columns 4 to 11 are outside of the output's shape [1, 8]");
  Amk pos;
  const int cache = pos.Buffer("KV_CACHE", "F32", {16, 2, 4});
  pos.Task("KV_APPEND", {pos.In({1, 8}), cache}, {cache}, {{"pos", 16}});
  ExpectRefused(pos, "task 0 (KV_APPEND): rows 16 to 16 are outside of the 16 rows of the cache");
  Amk dim;
  const int kv = dim.In({16, 1, 512});
  Json params = Window(0, 4);
  params.update({{"head_dim", 512}, {"n_heads", 1}, {"n_kv_heads", 1}});
  dim.Task("ATTENTION_TILE", {dim.In({1, 512}), kv, kv}, {dim.Out({1, 512})}, params);
  ExpectRefused(dim,
                "task 0 (ATTENTION_TILE): head_dim is 512; the operator attention takes at "
                "most 256");
  Amk scales;
  scales.Task("DEQUANT", {scales.Weight({4, 16}, "I8"), scales.Weight({4, 2})},
              {scales.Out({4, 16})}, {{"qdtype", 6}, {"group", 8}});
  ExpectRefused(scales,
                "task 0 (DEQUANT): the scales have dtype F32, and the operators of "
                "quantized weights take only F16");
  Amk boolean;
  boolean.Task("COPY", {boolean.In({4})}, {boolean.Out({4}, "BOOL")});
  ExpectRefused(boolean, "task 0 (COPY): the operator copy does not convert F32 to BOOL");
}

TEST(AmkImportTest, DamagedFilesAreRefused) {
  const auto message = [](const std::string& text) {
    const auto imported = cli::ImportAmk("f", text);
    return imported.ok() ? "accepted" : std::string(imported.status().message());
  };
  EXPECT_THAT(message("{\"tasks\": [}"), HasSubstr("byte 12: "));
  EXPECT_THAT(message("{\"x\": NaN}"), HasSubstr("byte 7: "));
  EXPECT_THAT(message(std::string(100000, '[')), HasSubstr("nested more than 64 levels deep"));
  EXPECT_THAT(message("[]"), HasSubstr("the file is not an object"));
  EXPECT_THAT(message("{}"), HasSubstr("'tasks' is not an array"));
  EXPECT_THAT(message("{\"ir_version\": \"1.0\"}"), HasSubstr("'ir_version' is '1.0'"));
  Amk amk;
  amk.Task("COPY", {amk.In({4})}, {amk.Out({4})});
  // Each value of the file is replaced by values that do not belong there: nothing crashes.
  const Json flat = amk.file.flatten();
  const std::vector<Json> values = {
      nullptr, true, -1, 1e300, 9223372036854775807, "x", Json::array(), Json::object()};
  for (const auto& [pointer, value] : flat.items()) {
    for (const Json& other : values) {
      Json file = amk.file;
      file[Json::json_pointer(pointer)] = other;
      const auto imported = cli::ImportAmk("f", file.dump());
      if (imported.ok()) Check(imported->graph);
    }
  }
  Json file = amk.file;
  file["tasks"][0]["op"] = "FLY";
  EXPECT_THAT(message(file.dump()), HasSubstr("task 0: the opcode 'FLY' is unknown"));
  file = amk.file;
  file["tasks"][0]["id"] = 1;
  EXPECT_THAT(message(file.dump()), HasSubstr("task 0: its id is not its index"));
  file = amk.file;
  file["tasks"][0]["out_counter"] = 7;
  EXPECT_THAT(message(file.dump()),
              HasSubstr("task 0 (COPY): it increments counter 7, which does not exist"));
}

}  // namespace
}  // namespace resident::testing
