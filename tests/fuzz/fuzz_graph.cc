// Fuzz target: a graph as bytes, as JSON as residentctl reads it, a random graph with changed
// bytes, or nodes with views of any shapes and strides of one state. The check must end within its
// budget of steps and bytes, which does not depend on the machine, and accept nothing whose views
// lie outside of their memory. An accepted graph is drawn, and its pictures are well-formed.
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

#include "client/cli/graph_file.h"
#include "resident/v1/graphs.pb.h"
#include "runtime/graph/check.h"
#include "runtime/graph/check_budget.h"
#include "runtime/graph/drawing.h"
#include "runtime/graph/values.h"
#include "server/graphs/graph_messages.h"
#include "tests/graph/builtin_catalog.h"
#include "tests/graph/random_graph.h"

namespace {

using resident::graph::Argument;
using resident::graph::CheckBudget;

// Nodes that read or write views of one state of 2^24 elements. Three bytes choose a dimension: its
// size, and its stride as a power of 2 or 3 and a remainder.
resident::v1::Graph MakeViews(const std::string& text) {
  resident::v1::Graph graph;
  graph.set_format(1);
  auto& state = *graph.add_tensors();
  state.set_name("s");
  state.set_kind(resident::v1::GraphTensor::KIND_STATE);
  state.set_dtype(resident::v1::DTYPE_F32);
  state.add_shape()->set_size(1 << 24);
  size_t at = 0;
  const auto next = [&] { return at < text.size() ? static_cast<uint8_t>(text[at++]) : 0; };
  while (at < text.size() && graph.nodes_size() < 64) {
    auto& node = *graph.add_nodes();
    const int kind = next();
    node.set_operator_(kind % 2 == 0 ? "sum" : "zero");
    auto& view = *node.add_arguments()->mutable_tensor();
    view.set_name("s");
    view.set_offset(next() * 256 + next());
    for (int rank = kind / 2 % 9; rank > 0; --rank) {
      const int size = next();
      view.add_shape()->set_size(size < 250 ? 1 + size : int64_t{1} << (size - 232));
      const int power = next() % 24;
      view.add_strides((power < 16 ? int64_t{1} << power : 2187 >> (power - 16)) + next() % 8);
    }
    view.set_scalar_shape(view.shape_size() == 0);
    if (kind % 2 != 0) continue;
    auto& out = *node.add_arguments()->mutable_tensor();
    out.set_name("s");
    out.set_scalar_shape(true);
    out.set_offset(next() * 65536 + next() * 256 + next());
    node.add_arguments()->set_i64(255);
  }
  return graph;
}

// Whether each tag and quote of an SVG is closed, and nothing else has their characters.
bool IsWellFormed(const std::string& svg) {
  bool tag = false, quoted = false;
  int depth = 0;
  for (size_t i = 0; i < svg.size(); ++i) {
    const char c = svg[i];
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n') return false;
    if (c == '<') {
      if (tag) return false;
      tag = true;
      depth += svg[i + 1] == '/' ? -1 : 1;
    } else if (c == '"' && tag) {
      quoted = !quoted;
    } else if (c == '>') {
      if (!tag || quoted) return false;
      tag = false;
      if (svg[i - 1] == '/') --depth;
    }
  }
  return !tag && depth == 0;
}

// Whether a text in the language of Graphviz has as many opening as closing quotes on each line.
bool HasClosedQuotes(const std::string& dot) {
  bool quoted = false;
  for (size_t i = 0; i < dot.size(); ++i) {
    if (quoted && dot[i] == '\\') {
      ++i;
    } else if (dot[i] == '"') {
      quoted = !quoted;
    } else if (dot[i] == '\n' && quoted) {
      return false;
    }
  }
  return !quoted;
}

void Draw(const resident::graph::Graph& graph, const resident::graph::Dependencies& order) {
  using resident::graph::DrawingFormat;
  const auto svg = DrawGraph(graph, order, DrawingFormat::kSvg);
  if (svg.ok() && !IsWellFormed(*svg)) std::abort();
  const auto dot = DrawGraph(graph, order, DrawingFormat::kDot);
  if (dot.ok() && !HasClosedQuotes(*dot)) std::abort();
}

void Check(const resident::v1::Graph& message) {
  static const auto* const catalog = new resident::testing::BuiltinCatalog;
  resident::graph::Findings findings;
  CheckBudget budget;
  const resident::graph::Graph graph = resident::ReadGraph(message, *catalog, &findings, &budget);
  const resident::graph::GraphCheck check =
      resident::graph::CheckGraph(graph, &findings, {}, &budget);
  // The last question or list may exceed a limit, and then the check ends.
  constexpr uint64_t kStepSlack = resident::graph::kMaxOverlapSteps + CheckBudget::kPollSteps;
  const auto check_steps = [&] {
    if (budget.steps() > budget.step_limit() + kStepSlack) std::abort();
  };
  check_steps();
  if (budget.peak_bytes() > budget.byte_limit() + CheckBudget::kReservedBytes) std::abort();
  if (check.accepted != (findings.errors() == 0)) std::abort();
  for (const resident::graph::Finding& finding : findings.list()) {
    if (finding.message.find("Fix: ") == std::string::npos) std::abort();
  }
  if (!check.accepted) return;
  for (const Argument& argument : graph.arguments) {
    if (argument.kind != Argument::Kind::kTensor) continue;
    const auto hull =
        resident::graph::FindHull(MaxExtents(graph, argument.view), argument.view.offset,
                                  resident::SizeOf(argument.view.dtype));
    const uint32_t root = graph.tensors[argument.tensor].root;
    if (!hull.has_value() || hull->low < 0 || hull->high > graph.root_bytes[root]) std::abort();
  }
  resident::v1::GraphReport report;
  resident::FillGraphReport(graph, check, findings, /*dependencies=*/true, budget, &report);
  check_steps();
  for (const auto& dependency : report.dependencies()) {
    if (dependency.after() >= dependency.node()) std::abort();
  }
  Draw(graph, *check.order);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  resident::v1::Graph message;
  if (data[0] % 4 == 0) {
    if (!message.ParseFromString(text)) return 0;
  } else if (data[0] % 4 == 1) {
    message = MakeViews(text);
  } else if (data[0] % 4 == 2) {
    // The first bytes choose the graph; each further three replace a byte of it.
    std::mt19937_64 random(text.empty() ? 0 : static_cast<unsigned char>(text[0]));
    std::string bytes = resident::testing::MakeRandomGraph(random).SerializeAsString();
    for (size_t i = 1; i + 2 < text.size(); i += 3) {
      const size_t at = static_cast<unsigned char>(text[i]) * size_t{256} +
                        static_cast<unsigned char>(text[i + 1]);
      bytes[at % bytes.size()] = text[i + 2];
    }
    if (!message.ParseFromString(bytes)) return 0;
  } else {
    const auto parsed = resident::cli::ParseGraph("input", text);
    if (!parsed.ok()) return 0;
    message = *parsed;
  }
  Check(message);
  return 0;
}
