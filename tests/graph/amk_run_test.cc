// Imported files of AMK, loaded and run on a real daemon: the outputs are those of references in
// float64 (amk_reference.h).
//
// All opcodes of the importer are run. One that is added to its table needs a graph in Cases().
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/importers/amk/file.h"
#include "tests/graph/amk_reference.h"
#include "tests/graph/amk_runs.h"
#include "tests/support/float64.h"

namespace resident::testing::amk {
namespace {

class AmkRunTest : public AmkRuns {
 protected:
  // By opcode: what runs a graph with it.
  using Case = void (AmkRunTest::*)();
  static std::map<std::string, Case> Cases();

  void Copy();
  void Embed();
  void Norms(const std::string& op);
  void RmsNorms() { Norms("RMSNORM"); }
  void LayerNorms() { Norms("LAYERNORM"); }
  void Tiles(const std::string& op, int64_t rows);
  void GemvTiles() { Tiles("GEMV_TILE", 1); }
  void GemmTiles() { Tiles("GEMM_TILE", 4); }
  void AttentionTile();
  void AttentionCombine();
  void Rope();
  void Elementwise();
  void Dequant();
  void SoftmaxAlongDimensions();
  void AllReduceShard();
  void KvAppend();
  void SampleArgmax();
  void Fused();
  void Nop();
};

void AmkRunTest::Nop() {
  ValuedAmk amk;
  const int in = amk.RandomIn({4});
  const int between = amk.Buffer("ACTIVATION", "F32", {4});
  const int out = amk.Out({4});
  amk.Task("COPY", {in}, {between});
  amk.Task("NOP", {}, {});
  amk.Task("COPY", {between}, {out});
  Check(amk, {{out, amk[in]}});
}

void AmkRunTest::Copy() {
  ValuedAmk amk;
  const int in = amk.RandomIn({2, 3});
  const int half = amk.Out({2, 3}, "BF16");
  amk.Task("COPY", {in}, {half});
  const int whole = amk.GivenIn({6}, "F16", {-3, 0, 7, 100, 1, -128});
  const int integers = amk.Out({2, 3}, "I32");
  amk.Task("COPY", {whole}, {integers});
  const int row = amk.RandomIn({3}, "F16");
  const int rows = amk.Out({2, 3});
  amk.Task("COPY", {row}, {rows});
  Reals twice = amk[row];
  twice.insert(twice.end(), amk[row].begin(), amk[row].end());
  Check(amk, {{half, amk[in]}, {integers, amk[whole]}, {rows, twice}});
}

void AmkRunTest::Embed() {
  ValuedAmk amk;
  const int ids = amk.GivenIn({4}, "I32", {3, 0, 4, 3});
  const int table = amk.RandomWeight({5, 6}, "BF16");
  const int rows = amk.Out({4, 6});
  amk.Task("EMBED", {ids, table}, {rows}, {{"hidden", 6}});
  const int first = amk.GivenIn({1}, "I32", {0});
  const int flat = amk.RandomIn({1, 8});
  const int reshaped = amk.Out({2, 4});
  amk.Task("EMBED", {first, flat}, {reshaped}, {{"hidden", 4}});
  Reals expected;
  for (const double id : amk[ids]) {
    const Reals row = Slice(amk[table], static_cast<size_t>(id) * 6, 6);
    expected.insert(expected.end(), row.begin(), row.end());
  }
  Check(amk, {{rows, expected}, {reshaped, amk[flat]}});
}

void AmkRunTest::Norms(const std::string& op) {
  ValuedAmk amk;
  const Json params = {{"eps", 0.125}, {"hidden", 8}};
  const int x = amk.RandomIn({3, 8});
  const int w = amk.RandomWeight({8}, "F16");
  const int out = amk.Out({3, 8});
  amk.Task(op, {x, w}, {out}, params);
  if (op == "RMSNORM") return Check(amk, {{out, RmsNorm(amk[x], amk[w], 0.125)}});
  const int bias = amk.RandomWeight({8});
  const int moved = amk.Out({3, 8});
  amk.Task(op, {x, w, bias}, {moved}, params);
  Check(amk, {{out, LayerNorm(amk[x], amk[w], Reals(8, 0), 0.125)},
              {moved, LayerNorm(amk[x], amk[w], amk[bias], 0.125)}});
}

// Tiles of 4 columns and at most 2 rows: with and without a bias, and with quantized weights.
void AmkRunTest::Tiles(const std::string& op, int64_t rows) {
  ValuedAmk amk;
  const int x = amk.RandomIn({rows, 16});
  const auto tiles = [&](const std::vector<int>& inputs, Json params) {
    const int out = amk.Out({rows, 8});
    for (int64_t row = 0; row < rows; row += 2) {
      for (const int column : {0, 4}) {
        params.update({{"K", 16}, {"N_tile", 4}, {"n_off", column}});
        if (op == "GEMM_TILE") params.update({{"M_tile", 2}, {"m_off", row}});
        amk.Task(op, inputs, {out}, params);
      }
    }
    return out;
  };
  std::map<int, Reals> expected;
  const int w = amk.RandomWeight({8, 16}, "BF16");
  expected[tiles({x, w}, Json::object())] = Product(amk[x], amk[w], 16);
  const int bias = amk.RandomWeight({8});
  expected[tiles({x, w, bias}, Json::object())] = Product(amk[x], amk[w], 16, amk[bias]);
  const int scales = amk.RandomWeight({8, 2}, "F16");
  const int zeros = amk.RandomWhole({8, 2}, "F16", 0, 15);
  const int bytes = amk.RandomWhole({8, 16}, "I8", -128, 127);
  const int halves = amk.RandomWhole({8, 16}, "I4", 0, 15);
  const auto quantized = [&](int q, const Reals& zero) {
    return Product(amk[x], Dequantized(amk[q], amk[scales], zero, 16, 8), 16);
  };
  const Json eight = {{"qdtype", 6}, {"group", 8}}, four = {{"qdtype", 7}, {"group", 8}};
  expected[tiles({x, bytes, scales}, eight)] = quantized(bytes, Reals(16, 0));
  expected[tiles({x, halves, scales}, four)] = quantized(halves, Reals(16, 8));
  expected[tiles({x, halves, scales, zeros}, four)] = quantized(halves, amk[zeros]);
  Check(amk, expected);
}

constexpr Heads kHeads = {.heads = 4, .kv_heads = 2, .dim = 4, .scale = 0.5};

Json Window(const Heads& heads, int start, int length, int flags = 0) {
  return {{"head_dim", heads.dim}, {"kv_start", start},      {"kv_len", length},
          {"scale", heads.scale},  {"n_heads", heads.heads}, {"n_kv_heads", heads.kv_heads},
          {"flags", flags}};
}

void AmkRunTest::AttentionTile() {
  ValuedAmk amk;
  const int q = amk.RandomIn({4, 4});
  const int k = amk.RandomIn({16, 2, 4}, "BF16");
  const int v = amk.RandomIn({16, 2, 4}, "F16");
  const int out = amk.Out({1, 16});
  amk.Task("ATTENTION_TILE", {q, k, v}, {out}, Window(kHeads, 2, 7));
  // Two sequences.
  const int queries = amk.RandomIn({2, 4, 4});
  const int keys = amk.RandomIn({2, 16, 2, 4});
  const int values = amk.RandomIn({2, 16, 2, 4});
  const int both = amk.Out({2, 16});
  amk.Task("ATTENTION_TILE", {queries, keys, values}, {both}, Window(kHeads, 0, 16));
  Reals expected;
  for (const size_t i : {0, 1}) {
    const Reals one =
        Attend(kHeads, Slice(amk[queries], i * 16, 16), Slice(amk[keys], i * 128, 128),
               Slice(amk[values], i * 128, 128), 0, 16);
    expected.insert(expected.end(), one.begin(), one.end());
  }
  Check(amk, {{out, Attend(kHeads, amk[q], amk[k], amk[v], 2, 9)}, {both, expected}});
}

// The third part has no keys.
void AmkRunTest::AttentionCombine() {
  ValuedAmk amk;
  const int q = amk.RandomIn({4, 4});
  const int k = amk.RandomIn({16, 2, 4});
  const int v = amk.RandomIn({16, 2, 4});
  std::vector<int> parts;
  for (const auto& [start, length] : {std::pair(1, 7), std::pair(8, 5), std::pair(13, 0)}) {
    parts.push_back(amk.Buffer("ACTIVATION", "F32", {4, 6}));
    amk.Task("ATTENTION_TILE", {q, k, v}, {parts.back()}, Window(kHeads, start, length, 2));
  }
  const int out = amk.Out({1, 16});
  amk.Task("ATTENTION_COMBINE", parts, {out}, {{"head_dim", 4}, {"n_heads", 4}});
  Check(amk, {{out, Attend(kHeads, amk[q], amk[k], amk[v], 1, 13)}});
}

void AmkRunTest::Rope() {
  ValuedAmk amk;
  const Json params = {{"head_dim", 8}, {"theta", 100.0}};
  const int x = amk.RandomIn({3, 2, 8});
  const int positions = amk.GivenIn({3}, "I32", {0, 5, 11});
  const int out = amk.Out({3, 2, 8});
  amk.Task("ROPE", {x, positions}, {out}, params);
  const int one = amk.RandomIn({2, 8}, "F16");
  const int position = amk.GivenIn({1}, "I32", {7});
  const int rotated = amk.Out({2, 8});
  amk.Task("ROPE", {one, position}, {rotated}, params);
  Check(amk, {{out, Rotated(amk[x], amk[positions], 8, 100)},
              {rotated, Rotated(amk[one], {7}, 8, 100)}});
}

void AmkRunTest::Elementwise() {
  ValuedAmk amk;
  const int x = amk.RandomIn({3, 8});
  const int y = amk.RandomIn({3, 8}, "F16");
  std::map<int, Reals> expected;
  const auto task = [&](const char* op, const std::vector<int>& inputs, const Reals& result) {
    const int out = amk.Out({3, 8});
    amk.Task(op, inputs, {out}, {{"scale", 0.375}});
    expected[out] = result;
  };
  task("ADD", {x, y}, Sum(amk[x], amk[y]));
  task("MUL", {x, y}, Map(amk[x], amk[y], [](double a, double b) { return a * b; }));
  task("MUL", {x}, Map(amk[x], [](double a) { return a * 0.375; }));
  task("SILU_MUL", {x, y}, SiluTimes(amk[x], amk[y]));
  task("GELU", {x}, Map(amk[x], [](double a) { return a / 2 * (1 + std::erf(a / std::sqrt(2))); }));
  Check(amk, expected);
}

void AmkRunTest::Dequant() {
  ValuedAmk amk;
  const int scales = amk.RandomWeight({4, 2}, "F16");
  const int zeros = amk.RandomWhole({4, 2}, "F32", 0, 15);
  std::map<int, Reals> expected;
  const auto task = [&](int q, int qdtype, std::optional<double> zero) {
    const int out = amk.Out({4, 12});
    std::vector<int> inputs = {q, scales};
    if (!zero.has_value()) inputs.push_back(zeros);
    amk.Task("DEQUANT", inputs, {out}, {{"qdtype", qdtype}, {"group", 8}});
    expected[out] =
        Dequantized(amk[q], amk[scales], zero.has_value() ? Reals(8, *zero) : amk[zeros], 12, 8);
  };
  const int bytes = amk.RandomWhole({4, 12}, "I8", -128, 127);
  const int natural = amk.RandomWhole({4, 12}, "U8", 0, 255);
  const int halves = amk.RandomWhole({4, 12}, "I4", 0, 15);
  task(bytes, 6, 0);
  task(natural, 6, 0);
  task(halves, 7, 8);
  for (const int q : {bytes, natural}) task(q, 6, std::nullopt);
  task(halves, 7, std::nullopt);
  Check(amk, expected);
}

void AmkRunTest::SoftmaxAlongDimensions() {
  ValuedAmk amk;
  const int x = amk.RandomIn({2, 3, 4});
  std::map<int, Reals> expected;
  const auto task = [&](int dim, size_t n, size_t inner) {
    const int out = amk.Out({2, 3, 4});
    amk.Task("SOFTMAX", {x}, {out}, {{"dim", dim}});
    expected[out] = Softmax(amk[x], n, inner);
  };
  task(-1, 4, 1);
  task(1, 3, 4);
  task(0, 2, 12);
  Check(amk, expected);
}

void AmkRunTest::AllReduceShard() {
  ValuedAmk amk;
  std::map<int, Reals> expected;
  for (const size_t count : {1, 3, 8}) {
    std::vector<int> inputs;
    Reals sum(6, 0);
    for (size_t i = 0; i < count; ++i) {
      inputs.push_back(amk.RandomIn({2, 3}, "F16"));
      sum = Sum(sum, amk[inputs.back()]);
    }
    const int out = amk.Out({2, 3});
    amk.Task("ALLREDUCE_SHARD", inputs, {out});
    expected[out] = sum;
  }
  Check(amk, expected);
}

void AmkRunTest::KvAppend() {
  ValuedAmk amk;
  std::map<int, Reals> expected;
  const int cache = amk.Buffer("KV_CACHE", "F32", {6, 2, 4});
  const int last = amk.RandomIn({1, 2, 4});
  const int firsts = amk.RandomIn({2, 8}, "F16");
  amk.Task("KV_APPEND", {last, cache}, {cache}, {{"pos", 4}});
  amk.Task("KV_APPEND", {firsts, cache}, {cache}, {{"pos", 1}});
  const int rows = amk.Out({6, 2, 4});
  amk.Task("COPY", {cache}, {rows});
  Reals all(48, 0);
  std::ranges::copy(amk[last], all.begin() + 4 * 8);
  std::ranges::copy(amk[firsts], all.begin() + 1 * 8);
  expected[rows] = all;
  // Two sequences, one row each.
  const int caches = amk.Buffer("KV_CACHE", "BF16", {2, 6, 2, 4});
  const int row = amk.RandomIn({2, 2, 4});
  amk.Task("KV_APPEND", {row, caches}, {caches}, {{"pos", 3}});
  const int both = amk.Out({2, 6, 2, 4});
  amk.Task("COPY", {caches}, {both});
  Reals sequences(96, 0);
  std::ranges::copy(Slice(amk[row], 0, 8), sequences.begin() + 3 * 8);
  std::ranges::copy(Slice(amk[row], 8, 8), sequences.begin() + (6 + 3) * 8);
  expected[both] = sequences;
  Check(amk, expected);
}

void AmkRunTest::SampleArgmax() {
  ValuedAmk amk;
  const int x = amk.GivenIn({3, 4}, "F16", {1, 2, 2, 0, -3, -1, -2, -1, 5, 5, 5, 5});
  const int out = amk.Out({3}, "I32");
  amk.Task("SAMPLE_ARGMAX", {x}, {out});
  EXPECT_EQ(Largest(amk[x], 4), (Reals{1, 1, 0}));
  Check(amk, {{out, Largest(amk[x], 4)}});
}

// A product, of which the recipe computes all or the first half, plus an input.
void AmkRunTest::Fused() {
  for (const size_t width : {8, 4}) {
    ValuedAmk amk;
    const int x = amk.RandomIn({1, 16});
    const int w = amk.RandomWeight({8, 16});
    const int y = amk.RandomIn({1, 8});
    const int out = amk.Out({1, 8});
    amk.Task("FUSED", {x, w, y}, {out},
             {{"recipe",
               {{"steps",
                 {{{"op", 5},
                   {"args", {{{"in", 0}}, {{"in", 1}}}},
                   {"out", 0},
                   {"params", {{"K", 16}, {"N_tile", width}, {"n_off", 0}}},
                   {"out_shape", {1, 8}},
                   {"out_dtype", "float32"}},
                  {{"op", 11}, {"args", {{{"s", 0}}, {{"in", 2}}}}, {"out", "final"}}}}}}});
    Reals product = Product(amk[x], amk[w], 16);
    std::fill(product.begin() + static_cast<ptrdiff_t>(width), product.end(), 0);
    Check(amk, {{out, Sum(product, amk[y])}});
  }
}

std::map<std::string, AmkRunTest::Case> AmkRunTest::Cases() {
  return {
      {"NOP", &AmkRunTest::Nop},
      {"COPY", &AmkRunTest::Copy},
      {"EMBED", &AmkRunTest::Embed},
      {"RMSNORM", &AmkRunTest::RmsNorms},
      {"LAYERNORM", &AmkRunTest::LayerNorms},
      {"GEMV_TILE", &AmkRunTest::GemvTiles},
      {"GEMM_TILE", &AmkRunTest::GemmTiles},
      {"ATTENTION_TILE", &AmkRunTest::AttentionTile},
      {"ROPE", &AmkRunTest::Rope},
      {"SILU_MUL", &AmkRunTest::Elementwise},
      {"GELU", &AmkRunTest::Elementwise},
      {"ADD", &AmkRunTest::Elementwise},
      {"MUL", &AmkRunTest::Elementwise},
      {"DEQUANT", &AmkRunTest::Dequant},
      {"SOFTMAX", &AmkRunTest::SoftmaxAlongDimensions},
      {"ALLREDUCE_SHARD", &AmkRunTest::AllReduceShard},
      {"KV_APPEND", &AmkRunTest::KvAppend},
      {"SAMPLE_ARGMAX", &AmkRunTest::SampleArgmax},
      {"ATTENTION_COMBINE", &AmkRunTest::AttentionCombine},
      {"FUSED", &AmkRunTest::Fused},
  };
}

TEST_F(AmkRunTest, EveryOpcode) {
  const std::map<std::string, Case> cases = Cases();
  for (size_t i = 0; i < cli::amk::kOpCount; ++i) {
    const std::string name = cli::amk::GetOpInfo(static_cast<cli::amk::Op>(i)).name;
    SCOPED_TRACE(name);
    const auto found = cases.find(name);
    ASSERT_NE(found, cases.end()) << "no graph with the opcode is run";
    ran_.clear();
    (this->*found->second)();
    EXPECT_TRUE(ran_.contains(name)) << "the case has no task with the opcode";
  }
}

// One layer of a decode step on two SMs: tiles that signal one counter, a cache, two windows of
// attention, and the token.
TEST_F(AmkRunTest, ADecodeStep) {
  constexpr Heads kGroup = {.heads = 2, .kv_heads = 1, .dim = 4, .scale = 0.5};
  ValuedAmk amk;
  const auto activation = [&](ValuedAmk::Shape shape) {
    return amk.Buffer("ACTIVATION", "F32", std::move(shape));
  };
  const auto product = [&](int x, int w, int out, int64_t k, int64_t n) {
    amk.Task("GEMV_TILE", {x, w}, {out}, {{"K", k}, {"N_tile", n}, {"n_off", 0}});
  };
  const Json norm = {{"eps", 1e-5}, {"hidden", 8}};
  const int token = amk.GivenIn({1}, "I32", {9});
  const int zero = amk.GivenIn({1}, "I32", {0});
  const int position = amk.GivenIn({1}, "I32", {3});
  const int table = amk.RandomWeight({12, 8});
  const int norms[] = {amk.RandomWeight({8}), amk.RandomWeight({8})};
  const int wq = amk.RandomWeight({8, 8}), wk = amk.RandomWeight({4, 8}),
            wv = amk.RandomWeight({4, 8}), wo = amk.RandomWeight({8, 8}),
            gate = amk.RandomWeight({16, 8}), up = amk.RandomWeight({16, 8}),
            down = amk.RandomWeight({8, 16}), head = amk.RandomWeight({12, 8});
  // Three rows that the cache has before the step.
  const int old_keys = amk.RandomIn({3, 4}), old_values = amk.RandomIn({3, 4});
  const int keys = amk.Buffer("KV_CACHE", "F32", {8, 1, 4}),
            values = amk.Buffer("KV_CACHE", "F32", {8, 1, 4});
  const int h = activation({1, 8}), n = activation({1, 8}), flat = activation({1, 8}),
            q = activation({2, 4}), turned = activation({2, 4}), k = activation({1, 4}),
            new_key = activation({1, 4}), v = activation({1, 4}), first = activation({2, 6}),
            second = activation({2, 6}), attended = activation({1, 8}), o = activation({1, 8}),
            h2 = activation({1, 8}), n2 = activation({1, 8}), g = activation({1, 16}),
            u = activation({1, 16}), m = activation({1, 16}), d = activation({1, 8}),
            h3 = activation({1, 8});
  const int logits = amk.Out({1, 12}), chosen = amk.Out({1}, "I32");

  amk.Task("EMBED", {token, table}, {h}, {{"hidden", 8}});
  amk.Task("RMSNORM", {h, norms[0]}, {n}, norm);
  // Two tiles that run at the same time; the next task waits for both.
  amk.Task("GEMV_TILE", {n, wq}, {flat}, {{"K", 8}, {"N_tile", 4}, {"n_off", 0}});
  Json& tile = amk.Task("GEMV_TILE", {n, wq}, {flat}, {{"K", 8}, {"N_tile", 4}, {"n_off", 4}});
  tile["waits"] = {{{"counter", 1}, {"threshold", 1}}};
  tile["out_counter"] = 2;
  amk.Task("EMBED", {zero, flat}, {q},
           {{"hidden", 4}})["waits"] = {{{"counter", 2}, {"threshold", 2}}};
  amk.Task("ROPE", {q, position}, {turned}, {{"head_dim", 4}, {"theta", 100.0}});
  product(n, wk, k, 8, 4);
  amk.Task("ROPE", {k, position}, {new_key}, {{"head_dim", 4}, {"theta", 100.0}});
  product(n, wv, v, 8, 4);
  amk.Task("KV_APPEND", {old_keys, keys}, {keys}, {{"pos", 0}});
  amk.Task("KV_APPEND", {old_values, values}, {values}, {{"pos", 0}});
  amk.Task("KV_APPEND", {new_key, keys}, {keys}, {{"pos", 3}});
  amk.Task("KV_APPEND", {v, values}, {values}, {{"pos", 3}});
  amk.Task("ATTENTION_TILE", {turned, keys, values}, {first}, Window(kGroup, 0, 2, 2));
  amk.Task("ATTENTION_TILE", {turned, keys, values}, {second}, Window(kGroup, 2, 2, 2));
  amk.Task("ATTENTION_COMBINE", {first, second}, {attended}, {{"head_dim", 4}, {"n_heads", 2}});
  product(attended, wo, o, 8, 8);
  amk.Task("ADD", {h, o}, {h2});
  amk.Task("RMSNORM", {h2, norms[1]}, {n2}, norm);
  product(n2, gate, g, 8, 16);
  product(n2, up, u, 8, 16);
  amk.Task("SILU_MUL", {g, u}, {m});
  product(m, down, d, 16, 8);
  amk.Task("ADD", {h2, d}, {h3});
  product(h3, head, logits, 8, 12);
  amk.Task("SAMPLE_ARGMAX", {logits}, {chosen});
  amk.file["target"] = {{"name", "x"}, {"num_sms", 2}};
  for (Json& task : amk.file["tasks"]) task["sm"] = task["id"].get<int>() % 2;

  const Reals x = Slice(amk[table], 9 * 8, 8);
  const Reals normed = RmsNorm(x, amk[norms[0]], 1e-5);
  const auto with = [](Reals rows, const Reals& row) {
    rows.insert(rows.end(), row.begin(), row.end());
    return rows;
  };
  const Reals sum =
      Sum(x, Product(Attend(kGroup, Rotated(Product(normed, amk[wq], 8), {3}, 4, 100),
                            with(amk[old_keys], Rotated(Product(normed, amk[wk], 8), {3}, 4, 100)),
                            with(amk[old_values], Product(normed, amk[wv], 8)), 0, 4),
                     amk[wo], 8));
  const Reals normed2 = RmsNorm(sum, amk[norms[1]], 1e-5);
  const Reals result = Product(
      Sum(sum, Product(SiluTimes(Product(normed2, amk[gate], 8), Product(normed2, amk[up], 8)),
                       amk[down], 16)),
      amk[head], 8);
  Check(amk, {{logits, result}, {chosen, Largest(result, 12)}});
}

}  // namespace
}  // namespace resident::testing::amk
