#include <algorithm>
#include <cassert>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/format.h"
#include "client/cli/graph_file.h"
#include "client/cli/proto_json.h"
#include "client/commands/graph_commands.h"

namespace resident::cli {
namespace {

// Nodes for which a node waits that are listed in a table.
constexpr int kMaxListed = 8;

std::string DimsText(const google::protobuf::RepeatedPtrField<v1::GraphDim>& shape) {
  if (shape.empty()) return "scalar";
  return absl::StrJoin(shape, "x", [](std::string* out, const v1::GraphDim& dim) {
    if (dim.scalar().empty()) {
      absl::StrAppend(out, dim.size());
    } else {
      absl::StrAppend(out, dim.scalar());
    }
  });
}

std::string AffineText(const std::string& scalar, bool has_factor, double factor, double addend) {
  std::string text = has_factor && factor != 1 ? absl::StrCat(factor, " * ", scalar) : scalar;
  if (addend != 0)
    absl::StrAppend(&text, addend < 0 ? " - " : " + ", addend < 0 ? -addend : addend);
  return text;
}

std::string ValueText(const v1::GraphArgument& argument) {
  switch (argument.value_case()) {
    case v1::GraphArgument::kTensor: {
      const v1::GraphView& view = argument.tensor();
      if (view.shape().empty() && !view.scalar_shape()) return view.name();
      return absl::StrCat(view.name(), "[", DimsText(view.shape()),
                          view.offset() == 0 ? "" : absl::StrCat(" from ", view.offset()), "]");
    }
    case v1::GraphArgument::kI64:
      return absl::StrCat(argument.i64());
    case v1::GraphArgument::kF64:
      return absl::StrCat(argument.f64());
    case v1::GraphArgument::kScalar:
      return AffineText(argument.scalar().name(), argument.scalar().has_factor(),
                        argument.scalar().factor(), argument.scalar().addend());
    case v1::GraphArgument::kNone:
      return "none";
    case v1::GraphArgument::VALUE_NOT_SET:
      break;
  }
  return "nothing";
}

std::string CallText(const v1::GraphNode& node) {
  return absl::StrCat(node.operator_(), "(",
                      absl::StrJoin(node.arguments(), ", ",
                                    [](std::string* out, const v1::GraphArgument& argument) {
                                      if (!argument.parameter().empty()) {
                                        absl::StrAppend(out, argument.parameter(), "=");
                                      }
                                      *out += ValueText(argument);
                                    }),
                      ")");
}

std::string Counted(uint64_t count, const std::string& one, const std::string& several) {
  return absl::StrCat(FormatExact(count), " ", count == 1 ? one : several);
}

// ", executed as 7": how many nodes remain if some are executed together.
std::string FusedText(const v1::Graph& graph, const v1::GraphReport& report) {
  if (report.fusions().empty()) return "";
  std::set<uint32_t> absorbed;
  for (const v1::GraphFusion& fusion : report.fusions()) {
    for (int i = 0; i + 1 < fusion.nodes_size(); ++i) absorbed.insert(fusion.nodes(i));
  }
  return absl::StrCat(", executed as ",
                      FormatExact(static_cast<uint64_t>(graph.nodes_size()) - absorbed.size()));
}

}  // namespace

std::string ReportText(const v1::Graph& graph, const v1::GraphReport& report) {
  std::string text;
  for (const v1::GraphFinding& finding : report.findings()) {
    absl::StrAppend(&text, finding.warning() ? "warning " : "error ", finding.code());
    if (!finding.node().empty()) absl::StrAppend(&text, " node ", finding.node());
    if (!finding.tensor().empty()) absl::StrAppend(&text, " tensor ", finding.tensor());
    absl::StrAppend(&text, ": ", finding.message(), "\n");
  }
  const uint64_t omitted =
      report.errors() + report.warnings() - static_cast<uint64_t>(report.findings_size());
  if (omitted > 0)
    absl::StrAppend(&text, Counted(omitted, "more finding", "more findings"), " not listed\n");
  absl::StrAppend(
      &text, graph.name().empty() ? "graph" : absl::StrCat("graph ", graph.name()),
      report.accepted() ? " accepted: " : " refused: ", Counted(report.errors(), "error", "errors"),
      ", ", Counted(report.warnings(), "warning", "warnings"));
  if (report.accepted()) {
    absl::StrAppend(
        &text, "; ", Counted(static_cast<uint64_t>(graph.nodes_size()), "node", "nodes"),
        FusedText(graph, report), ", ",
        Counted(report.dependency_count(), "dependency", "dependencies"), ", longest chain ",
        FormatExact(report.longest_chain()), "; weights ", FormatBytes(report.weight_bytes()),
        ", states ", FormatBytes(report.state_bytes()), ", activations ",
        FormatBytes(report.activation_bytes()), ", other ", FormatBytes(report.other_bytes()));
  }
  return text + "\n";
}

std::string GraphText(const v1::Graph& graph, const v1::GraphReport& report) {
  std::string text;
  Table tensors({"TENSOR", "KIND", "DTYPE", "SHAPE", "ALIAS OF"});
  for (const v1::GraphTensor& tensor : graph.tensors()) {
    tensors.Add({tensor.name(), EnumName(tensor.kind()), EnumName(tensor.dtype()),
                 DimsText(tensor.shape()), tensor.alias_of()});
  }
  if (!tensors.empty()) absl::StrAppend(&text, tensors.ToString(), "\n");
  Table scalars({"SCALAR", "DTYPE", "LEAST", "MOST", "INITIAL", "EACH STEP"});
  for (const v1::GraphScalar& scalar : graph.scalars()) {
    std::string update;
    for (const v1::GraphUpdate& each : graph.loop().updates()) {
      if (each.scalar() == scalar.name()) {
        update = AffineText(each.scalar(), each.has_factor(), each.factor(), each.addend());
      }
    }
    scalars.Add({scalar.name(), EnumName(scalar.dtype()), absl::StrCat(scalar.least()),
                 absl::StrCat(scalar.most()),
                 scalar.has_initial() ? absl::StrCat(scalar.initial()) : "", update});
  }
  if (!scalars.empty()) absl::StrAppend(&text, scalars.ToString(), "\n");
  if (graph.has_loop()) {
    absl::StrAppend(&text, "loop of up to ", Counted(graph.loop().max_steps(), "step", "steps"),
                    graph.loop().has_stop()
                        ? absl::StrCat(", ends when ", graph.loop().stop().tensor(), " is one of ",
                                       absl::StrJoin(graph.loop().stop().values(), ", "))
                        : "",
                    "\n\n");
  }

  // A node's stage is one more than that of the last node for which it waits: nodes of one stage
  // may run at the same time.
  const int count = graph.nodes_size();
  std::vector<uint32_t> stages(static_cast<size_t>(count), 1);
  std::vector<std::vector<std::string>> after(static_cast<size_t>(count));
  for (const v1::GraphDependency& dependency : report.dependencies()) {
    assert(std::max(dependency.node(), dependency.after()) < stages.size());
    stages[dependency.node()] = std::max(stages[dependency.node()], stages[dependency.after()] + 1);
    after[dependency.node()].push_back(GraphNodeName(graph, dependency.after()));
  }
  Table nodes({"STAGE", "NODE", "CALL", "AFTER"}, {Table::kRight});
  for (int n = 0; n < count; ++n) {
    std::vector<std::string>& names = after[static_cast<size_t>(n)];
    const size_t more = names.size() > kMaxListed ? names.size() - kMaxListed : 0;
    names.resize(names.size() - more);
    nodes.Add({absl::StrCat(stages[static_cast<size_t>(n)]),
               GraphNodeName(graph, static_cast<uint32_t>(n)), CallText(graph.nodes(n)),
               absl::StrCat(absl::StrJoin(names, ", "),
                            more > 0 ? absl::StrCat(" and ", more, " more") : "")});
  }
  absl::StrAppend(&text, nodes.ToString());
  Table fusions({"EXECUTED BY", "NODES"});
  for (const v1::GraphFusion& fusion : report.fusions()) {
    fusions.Add({fusion.operator_(),
                 absl::StrJoin(fusion.nodes(), ", ", [&](std::string* out, uint32_t node) {
                   *out += GraphNodeName(graph, node);
                 })});
  }
  if (!fusions.empty()) absl::StrAppend(&text, "\n", fusions.ToString());
  return text;
}

}  // namespace resident::cli
