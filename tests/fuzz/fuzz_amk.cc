// Fuzz target: a file of AMK as text, or one with all opcodes in which values or bytes are changed.
// The importer must end, and refuse with a message that says what to do. What it imports calls
// operators that exist with arguments of their form; the check of the graph must end, and its JSON
// must be the same graph.
#include <google/protobuf/util/message_differencer.h>

#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/graph_file.h"
#include "client/importers/amk/import.h"
#include "resident/v1/graphs.pb.h"
#include "runtime/graph/check.h"
#include "server/graphs/graph_messages.h"
#include "tests/graph/amk_maker.h"
#include "tests/graph/builtin_catalog.h"

namespace {

using resident::testing::Amk;
using Json = nlohmann::json;

// Files that are accepted, which together have all opcodes.
std::vector<Json> MakeFiles() {
  const Json norm = {{"eps", 1e-5}, {"hidden", 8}};
  Amk plain;
  const int x = plain.In({1, 8}), y = plain.In({1, 8}, "BF16"), w = plain.Weight({8}, "F16");
  const auto unary = [&](const char* op, Json params = Json::object()) {
    plain.Task(op, {x}, {plain.Out({1, 8})}, std::move(params));
  };
  const auto binary = [&](const char* op) { plain.Task(op, {x, y}, {plain.Out({1, 8}, "F16")}); };
  plain.Task("NOP", {}, {});
  unary("COPY");
  plain.Task("EMBED", {plain.In({2}, "I32"), plain.Weight({5, 4})}, {plain.Out({2, 4})},
             {{"hidden", 4}});
  plain.Task("RMSNORM", {x, w}, {plain.Out({1, 8})}, norm);
  plain.Task("LAYERNORM", {x, w, w}, {plain.Out({1, 8})}, norm);
  binary("SILU_MUL");
  unary("GELU");
  binary("ADD");
  unary("MUL", {{"scale", 0.5}});
  unary("SOFTMAX", {{"dim", 0}});
  plain.Task("ALLREDUCE_SHARD", {x, y, x}, {plain.Out({1, 8}, "I32")});
  plain.Task("SAMPLE_ARGMAX", {x}, {plain.Out({1}, "I32")});
  plain.Task("ROPE", {plain.In({3, 2, 8}), plain.In({3}, "I32")}, {plain.Out({3, 2, 8})},
             {{"head_dim", 8}, {"theta", 100.0}});

  Amk matrix;
  const int rows = matrix.In({2, 16}), row = matrix.In({1, 16});
  const int bytes = matrix.Weight({8, 16}, "U8"), halves = matrix.Weight({8, 16}, "I4"),
            scales = matrix.Weight({8, 2}, "F16"), zeros = matrix.Weight({8, 2});
  const int tiles = matrix.Out({1, 8});
  for (const int first : {0, 4}) {
    matrix.Task("GEMV_TILE", {row, halves, scales, zeros}, {tiles},
                {{"K", 16}, {"N_tile", 4}, {"n_off", first}, {"qdtype", 7}, {"group", 8}});
  }
  matrix.Task("GEMM_TILE", {rows, matrix.Weight({8, 16}), matrix.Weight({8})}, {matrix.Out({2, 8})},
              {{"K", 16}, {"N_tile", 8}, {"n_off", 0}, {"M_tile", 2}, {"m_off", 0}});
  matrix.Task("DEQUANT", {bytes, scales}, {matrix.Out({8, 16})}, {{"qdtype", 6}, {"group", 8}});
  const Json product = {{"op", 5},
                        {"args", {{{"in", 0}}, {{"in", 1}}}},
                        {"out", 0},
                        {"params", {{"K", 16}, {"N_tile", 4}, {"n_off", 0}}},
                        {"out_shape", {1, 8}},
                        {"out_dtype", "float16"}};
  const Json sum = {{"op", 11}, {"args", {{{"s", 0}}, {{"in", 2}}}}, {"out", "final"}};
  matrix.Task("FUSED", {row, matrix.Weight({8, 16}), matrix.In({8})}, {matrix.Out({1, 8})},
              {{"recipe", {{"steps", {product, sum}}}}});
  matrix.file["target"] = {{"name", "x"}, {"num_sms", 2}};
  for (Json& task : matrix.file["tasks"]) task["sm"] = task["id"].get<int>() % 2;

  Amk attention;
  const int cache = attention.Buffer("KV_CACHE", "BF16", {16, 2, 4}), q = attention.In({4, 4});
  attention.Task("KV_APPEND", {attention.In({1, 8}), cache}, {cache}, {{"pos", 5}});
  std::vector<int> parts;
  for (const int length : {0, 6}) {
    parts.push_back(attention.Buffer("ACTIVATION", "F32", {4, 6}));
    attention.Task("ATTENTION_TILE", {q, cache, cache}, {parts.back()},
                   {{"head_dim", 4},
                    {"kv_start", 0},
                    {"kv_len", length},
                    {"scale", 0.5},
                    {"n_heads", 4},
                    {"n_kv_heads", 2},
                    {"flags", 2}});
  }
  attention.Task("ATTENTION_COMBINE", parts, {attention.Out({1, 16})},
                 {{"head_dim", 4}, {"n_heads", 4}});
  return {plain.file, matrix.file, attention.file};
}

const std::vector<Json>& Files() {
  static const auto* const files = new std::vector<Json>(MakeFiles());
  return *files;
}

// Returns whether the graph is accepted.
bool Check(const std::string& text) {
  static const auto* const catalog = new resident::testing::BuiltinCatalog;
  const auto imported = resident::cli::ImportAmk("input", text);
  if (!imported.ok()) {
    if (imported.status().message().find("Fix: ") == std::string::npos) std::abort();
    return false;
  }
  resident::graph::Findings findings;
  const resident::graph::Graph graph = resident::ReadGraph(imported->graph, *catalog, &findings);
  const resident::graph::GraphCheck check = resident::graph::CheckGraph(graph, &findings);
  for (const resident::graph::Finding& finding : findings.list()) {
    const int code = static_cast<int>(finding.code);
    // Names exist, and calls have the form that their operators need; 202: the tensors together are
    // too large.
    if (code == 104 || (code >= 200 && code < 400 && code != 202)) std::abort();
  }
  const auto json = resident::cli::GraphJson(imported->graph);
  if (!json.ok()) std::abort();
  const auto parsed = resident::cli::ParseGraph("input", *json);
  if (!parsed.ok() ||
      !google::protobuf::util::MessageDifferencer::Equals(*parsed, imported->graph)) {
    std::abort();
  }
  return check.accepted;
}

// Values that may not belong where they are put.
Json Interesting(uint8_t choice, const Json& flat) {
  switch (choice % 12) {
    case 0:
      return nullptr;
    case 1:
      return -1;
    case 2:
      return 0;
    case 3:
      return INT32_MAX;
    case 4:
      return INT64_MAX;
    case 5:
      return int64_t{1} << 28;
    case 6:
      return 1e300;
    case 7:
      return Json::array();
    case 8:
      return Json::object();
    case 9:
      return choice / 12 % 9 + 1;
    case 10:
      return "F16";
    default:
      // One that the file has elsewhere.
      return std::next(flat.begin(), choice % static_cast<ptrdiff_t>(flat.size())).value();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool accepted = [] {
    for (const Json& file : Files()) {
      if (!Check(file.dump())) std::abort();
    }
    return true;
  }();
  if (!accepted || size < 2) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  // The first byte chooses what is done, the second one the file; each further three change a value
  // or a byte of it.
  Json file = Files()[data[1] % Files().size()];
  if (data[0] % 3 == 0) {
    Check(text);
  } else if (data[0] % 3 == 1) {
    const Json flat = file.flatten();
    // With many changes, all files are refused because of the first ones.
    const size_t changes = 1 + data[0] / 3 % 3;
    for (size_t i = 0; i + 2 < text.size() && i < 3 * changes; i += 3) {
      const size_t at = (byte(i) * size_t{256} + byte(i + 1)) % flat.size();
      const Json::json_pointer place(std::next(flat.begin(), static_cast<ptrdiff_t>(at)).key());
      // A change may have removed it.
      if (file.contains(place)) file[place] = Interesting(byte(i + 2), flat);
    }
    Check(file.dump());
  } else {
    std::string bytes = file.dump();
    for (size_t i = 0; i + 2 < text.size(); i += 3) {
      bytes[(byte(i) * size_t{256} + byte(i + 1)) % bytes.size()] = text[i + 2];
    }
    Check(bytes);
  }
  return 0;
}
