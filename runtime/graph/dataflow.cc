#include "runtime/graph/dataflow.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "runtime/graph/accesses.h"
#include "runtime/graph/history.h"
#include "runtime/graph/limits.h"
#include "runtime/graph/values.h"

namespace resident::graph {
namespace {

using absl::StrCat;

// The first byte of each root on the line of bytes.
std::vector<int64_t> PlaceRoots(const Graph& graph) {
  std::vector<int64_t> bases(graph.tensors.size(), 0);
  int64_t at = 0;
  for (uint32_t i = 0; i < graph.tensors.size(); ++i) {
    bases[i] = at;
    at += graph.root_bytes[i];
  }
  return bases;
}

// Pairs of a node (or kNone) and a tensor about which something was reported.
using Reported = absl::flat_hash_set<std::pair<uint32_t, uint32_t>>;

// One visit of all nodes.
class Visit {
 public:
  Visit(const Graph& graph, absl::Span<const int64_t> bases, Findings& findings, Reported& reported,
        CheckBudget& budget)
      : graph_(graph),
        bases_(bases),
        findings_(findings),
        reported_(reported),
        budget_(budget),
        history_(budget) {}

  // `values` of all scalars; empty: everything that nodes may access. `cover`: check what is read
  // and returned. `order`: null, or receives the dependencies. False: over a limit, or the check
  // has ended.
  bool Run(absl::Span<const double> values, bool cover, Dependencies* order) {
    values_ = values;
    cover_ = cover;
    return VisitNodes(0, order) && (!cover || CheckOutputs());
  }

  // Two steps; `order` receives the dependencies of the second one on the first one.
  bool RunTwoSteps(Dependencies* order) {
    return VisitNodes(0, nullptr) && VisitNodes(static_cast<uint32_t>(graph_.nodes.size()), order);
  }

 private:
  // The history knows the node by `first` + its index.
  bool VisitNodes(uint32_t first, Dependencies* order) {
    std::vector<Access> accesses;
    for (uint32_t index = 0; index < graph_.nodes.size(); ++index) {
      node_ = first + index;
      accesses.clear();
      ListAccesses(graph_, graph_.nodes[index], values_, &accesses);
      if (!budget_.BeginNode(index, 1 + 2 * accesses.size())) return false;
      found_.clear();
      sort_at_ = kMinSorted;
      for (const Access& access : accesses) {
        if (access.mode != Access::Mode::kRead) continue;
        if (IsReadOnly(graph_.tensors[access.tensor].kind)) continue;  // No node writes it.
        if (!Read(access)) return false;
      }
      for (const Access& access : accesses) {
        if (access.mode != Access::Mode::kRead && !Write(access)) return false;
      }
      if (order == nullptr) continue;
      if (first > 0) std::erase_if(found_, [&](const Dependency& d) { return d.after >= first; });
      SortFound();
      if (order->size() + found_.size() > kMaxDependencies) {
        findings_.Add(Code::kOverLimit, {.node = graph_.NodeName(index)},
                      StrCat("up to this node the graph has more than ", kMaxDependencies,
                             " derived dependencies. Fix: split the graph"));
        return false;
      }
      // A vector that grows.
      if (!budget_.Hold(found_.size() * 3 * sizeof(Dependency))) return false;
      order->Add(found_);
    }
    return !budget_.ended();
  }

  void Found(uint32_t after, DependencyKind kind) {
    if (after == kNone || after == node_) return;
    // Neighbouring segments usually have the same history.
    if (!found_.empty() && found_.back().after == after && found_.back().kind <= kind) return;
    if (found_.size() >= sort_at_) {
      // The same few again and again.
      SortFound();
      sort_at_ = std::max(kMinSorted, 2 * found_.size());
    }
    Dependency& found = found_.emplace_back();
    found.after = after;
    found.kind = kind;
  }

  void SortFound() {
    budget_.Take(found_.size());
    std::sort(found_.begin(), found_.end(), [](const Dependency& a, const Dependency& b) {
      return a.after != b.after ? a.after < b.after : a.kind < b.kind;
    });
    found_.erase(
        std::unique(found_.begin(), found_.end(),
                    [](const Dependency& a, const Dependency& b) { return a.after == b.after; }),
        found_.end());
  }

  bool DefinedAtFirst(uint32_t tensor) const { return IsDefined(graph_.tensors[tensor].kind); }
  int64_t Base(uint32_t tensor) const { return bases_[graph_.tensors[tensor].root]; }

  // False: the check has ended.
  bool Read(const Access& access) {
    const TensorKind kind = graph_.tensors[access.tensor].kind;
    const int64_t base = Base(access.tensor);
    Missing missing;
    const bool done = ForEachPiece(access.region, [&](int64_t begin, int64_t end) {
      return history_.Visit(base + begin, base + end, IsDefined(kind),
                            [&](History::Segment& segment) {
                              Found(segment.writer, DependencyKind::kReadAfterWrite);
                              if (!segment.defined) missing.Add(begin, segment);
                              missing.written |= segment.defined;
                              return history_.AddReader(segment, node_);
                            });
    });
    if (done && cover_ && missing.found) Report(missing, access.tensor, node_, access.region);
    return done;
  }

  // False: the check has ended.
  bool Write(const Access& access) {
    const int64_t base = Base(access.tensor);
    const bool defined = DefinedAtFirst(access.tensor);
    const bool update = access.mode == Access::Mode::kUpdate;
    // The list of readers that was walked last: segments side by side often have the same one.
    uint32_t walked = kNone;
    return ForEachPiece(access.region, [&](int64_t begin, int64_t end) {
      const bool done =
          history_.Visit(base + begin, base + end, defined, [&](History::Segment& segment) {
            // An update keeps elements, so what was written before is still needed.
            Found(segment.writer,
                  update ? DependencyKind::kReadAfterWrite : DependencyKind::kWriteAfterWrite);
            if (segment.readers != walked) {
              walked = segment.readers;
              for (uint32_t r = walked; r != kNone; r = history_.reader(r).next) {
                if (!budget_.Take()) return false;
                Found(history_.reader(r).node, DependencyKind::kWriteAfterRead);
              }
            }
            if (update) {
              segment.writer = node_;
              segment.readers = kNone;
              // What the node read without a value has been reported.
              segment.defined |= access.also_read;
            }
            return true;
          });
      return done && (update || history_.Overwrite(base + begin, base + end, node_));
    });
  }

  struct Missing {
    bool found = false;
    bool written = false;
    // The first byte, in the root's memory, of the piece in which something is missing.
    int64_t first = 0;

    void Add(int64_t piece_begin, const History::Segment&) {
      if (!found) first = piece_begin;
      found = true;
    }
  };

  std::string ValuesText() const {
    std::string text;
    for (size_t i = 0; i < values_.size(); ++i) {
      absl::StrAppend(&text, text.empty() ? ", with " : ", ", std::string(graph_.scalars[i].name),
                      " = ", values_[i]);
    }
    return text;
  }

  void Report(const Missing& missing, uint32_t tensor, uint32_t node, const Region& region) {
    if (!reported_.insert({node, tensor}).second) return;
    if (!findings_.keeps_errors()) return findings_.CountError();
    Findings::Place place{.tensor = graph_.TensorName(tensor)};
    if (node != kNone) place.node = graph_.NodeName(node);
    const Tensor& of = graph_.tensors[tensor];
    const int64_t element = (missing.first - of.view.offset) / SizeOf(of.view.dtype);
    const std::string where =
        region.pieces() == 1 ? "" : StrCat(", first in the row that begins at element ", element);
    if (node == kNone) {
      findings_.Add(
          missing.written ? Code::kWrittenInPart : Code::kOutputNotWritten, std::move(place),
          StrCat(KindText(of.kind),
                 missing.written ? StrCat(" is written only in part", where) : " is never written",
                 ValuesText(), ". Fix: add nodes that write all of it"));
    } else {
      findings_.Add(
          missing.written ? Code::kWrittenInPart : Code::kReadBeforeWrite, std::move(place),
          StrCat(
              missing.written
                  ? StrCat("it reads elements that no earlier node has written", where)
                  : StrCat("it reads ", KindText(of.kind), " to which no earlier node has written"),
              ValuesText(),
              ". Fix: write it before, for example with fill, or declare a state or an "
              "input"));
    }
  }

  bool CheckOutputs() {
    for (uint32_t t = 0; t < graph_.tensors.size(); ++t) {
      const Tensor& tensor = graph_.tensors[t];
      if ((tensor.kind != TensorKind::kOutput && tensor.kind != TensorKind::kStream)) continue;
      const Extents extents = values_.empty() ? MaxExtents(graph_, tensor.view)
                                              : ExtentsAt(graph_, tensor.view, values_);
      const Region region = MakeRegion(extents, tensor.view.offset, SizeOf(tensor.view.dtype));
      Missing missing;
      const bool done = ForEachPiece(region, [&](int64_t begin, int64_t end) {
        return history_.Visit(Base(t) + begin, Base(t) + end, false,
                              [&](History::Segment& segment) {
                                if (!segment.defined) missing.Add(begin, segment);
                                missing.written |= segment.defined;
                                return true;
                              });
      });
      if (!done) return false;
      if (missing.found) Report(missing, t, kNone, region);
    }
    return true;
  }

  const Graph& graph_;
  const absl::Span<const int64_t> bases_;
  Findings& findings_;
  Reported& reported_;
  absl::Span<const double> values_;
  bool cover_ = false;
  uint32_t node_ = 0;
  CheckBudget& budget_;
  History history_;
  // Of the node, sorted and without duplicates whenever there are `sort_at_` of them.
  std::vector<Dependency> found_;
  size_t sort_at_ = 0;
  static constexpr size_t kMinSorted = 4096;
};

// The scalars on which the size of a view or of a row window depends.
std::vector<uint32_t> FindSizeScalars(const Graph& graph, CheckBudget& budget) {
  std::vector<bool> used(graph.scalars.size(), false);
  for (const Axis& axis : graph.axes) {
    if (!budget.Take()) break;
    if (axis.scalar != kNone) used[axis.scalar] = true;
  }
  if (!graph.scalars.empty()) {
    for (const Node& node : graph.nodes) {
      if (!budget.Take(1 + node.argument_count)) break;
      for (uint32_t i = 0; i < node.argument_count; ++i) {
        const auto window = FindRowWindow(graph, node, i);
        if (window.has_value() && window->count.scalar != kNone) used[window->count.scalar] = true;
      }
    }
  }
  std::vector<uint32_t> scalars;
  for (uint32_t s = 0; s < used.size(); ++s) {
    if (used[s]) scalars.push_back(s);
  }
  return scalars;
}

// All of them small, all of them large, and each of them different from the others.
std::vector<std::vector<double>> ListEnds(const Graph& graph, absl::Span<const uint32_t> scalars) {
  const size_t count = graph.scalars.size();
  std::vector<double> min(count);
  std::vector<double> max(count);
  for (size_t s = 0; s < count; ++s) {
    min[s] = graph.scalars[s].min;
    max[s] = graph.scalars[s].max;
  }
  std::vector<std::vector<double>> ends = {max, min};
  for (const uint32_t s : scalars) {
    if (scalars.size() == 1) break;
    ends.push_back(max);
    ends.back()[s] = min[s];
    ends.push_back(min);
    ends.back()[s] = max[s];
  }
  return ends;
}

// 407: rows of a state are read by a node before a later node of the same step appends them. False:
// the check has ended.
bool CheckReadAhead(const Graph& graph, Findings& findings, CheckBudget& budget) {
  struct RowRead {
    uint32_t node;
    uint32_t tensor;
    ScalarExpression end;
    ByteRange bytes;
  };
  const auto hull = [&](const Argument& argument) {
    return *FindHull(MaxExtents(graph, argument.view), argument.view.offset,
                     SizeOf(argument.view.dtype));
  };
  // By root: the reads of rows so far.
  absl::flat_hash_map<uint32_t, std::vector<RowRead>> reads;
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const OperatorInfo& info = graph.operators[node.op];
    const bool attention = info.name == "attention" || info.name == "attention_partial";
    if (!info.builtin || (!attention && info.name != "kv_append")) continue;
    const absl::Span<const Argument> arguments = graph.ArgumentsOf(node);
    for (uint32_t i = 1; i <= (attention ? 2u : 1u); ++i) {
      const Argument& argument = arguments[i];
      if (argument.kind != Argument::Kind::kTensor) continue;
      const Tensor& tensor = graph.tensors[argument.tensor];
      if (tensor.kind != TensorKind::kState) continue;
      const std::optional<RowWindow> window = FindRowWindow(graph, node, i);
      std::vector<RowRead>& of_root = reads[tensor.root];
      if (attention) {
        const ScalarExpression all{
            kNone, 1, static_cast<double>(graph.axes[argument.view.first_axis + 2].size)};
        of_root.push_back(
            {n, argument.tensor, window.has_value() ? window->count : all, hull(argument)});
        continue;
      }
      const ByteRange bytes = hull(argument);
      if (!budget.BeginNode(n)) return false;
      for (const RowRead& read : of_root) {
        if (!budget.Take()) return false;
        if (read.bytes.low >= bytes.high || bytes.low >= read.bytes.high) continue;
        if (IsGreater(graph, read.end, *window->start) != true) continue;
        if (!findings.keeps_errors()) {
          findings.CountError();
          continue;
        }
        findings.Add(Code::kReadAhead,
                     {.node = graph.NodeName(read.node), .tensor = graph.TensorName(read.tensor)},
                     StrCat("it reads rows that node ", graph.NodeName(n),
                            " appends later in the same step. Fix: move ", graph.NodeName(n),
                            " before it, or reduce kv_len to the rows of earlier steps"));
      }
    }
  }
  return !budget.ended();
}

// 408: nodes whose results nothing uses. False: the check has ended.
bool CheckDeadNodes(const Graph& graph, const Dependencies& order, Findings& findings,
                    CheckBudget& budget) {
  std::vector<bool> live(graph.nodes.size(), false);
  std::vector<Access> accesses;
  for (uint32_t n = static_cast<uint32_t>(graph.nodes.size()); n-- > 0;) {
    if (!budget.BeginNode(n, 1 + graph.nodes[n].argument_count + order.Of(n).size())) return false;
    if (!live[n]) {
      accesses.clear();
      ListAccesses(graph, graph.nodes[n], {}, &accesses);
      for (const Access& access : accesses) {
        if (access.mode == Access::Mode::kRead) continue;
        live[n] =
            live[n] || graph.tensors[access.tensor].kind != TensorKind::kActivation ||
            (graph.loop.has_value() && graph.loop->stop_tensor != kNone &&
             graph.tensors[graph.loop->stop_tensor].root == graph.tensors[access.tensor].root);
      }
    }
    if (!live[n]) {
      findings.Add(Code::kDeadNode, {.node = graph.NodeName(n)},
                   "nothing reads what the node writes. Fix: remove it, or write to an output");
      continue;
    }
    for (const Dependency& dependency : order.Of(n)) {
      if (dependency.kind == DependencyKind::kReadAfterWrite) live[dependency.after] = true;
    }
  }
  return true;
}

}  // namespace

std::vector<uint32_t> Dependencies::Levels(CheckBudget* budget) const {
  std::vector<uint32_t> levels(nodes(), 0);
  for (uint32_t n = 0; n < levels.size(); ++n) {
    if (budget != nullptr && !budget->Take(1 + Of(n).size())) return {};
    for (const Dependency& dependency : Of(n)) {
      levels[n] = std::max(levels[n], levels[dependency.after] + 1);
    }
  }
  return levels;
}

uint32_t Dependencies::LongestChain(CheckBudget* budget) const {
  const std::vector<uint32_t> levels = Levels(budget);
  return levels.empty() ? 0 : *std::max_element(levels.begin(), levels.end()) + 1;
}

std::optional<Dependencies> DeriveOrder(const Graph& graph, Findings* findings,
                                        CheckBudget& budget) {
  assert(findings->errors() == 0);
  const std::vector<int64_t> bases = PlaceRoots(graph);
  const std::vector<uint32_t> scalars = FindSizeScalars(graph, budget);
  Reported reported;
  Dependencies order;
  if (!Visit(graph, bases, *findings, reported, budget).Run({}, scalars.empty(), &order)) {
    return std::nullopt;
  }
  if (!scalars.empty()) {
    for (const std::vector<double>& values : ListEnds(graph, scalars)) {
      Visit visit(graph, bases, *findings, reported, budget);
      if (!visit.Run(values, true, nullptr)) return std::nullopt;
    }
  }
  if (!CheckReadAhead(graph, *findings, budget)) return std::nullopt;
  if (findings->errors() == 0 && !CheckDeadNodes(graph, order, *findings, budget)) {
    return std::nullopt;
  }
  return order;
}

std::optional<Dependencies> DeriveStepOrder(const Graph& graph, Findings* findings,
                                            CheckBudget& budget) {
  assert(findings->errors() == 0);
  const std::vector<int64_t> bases = PlaceRoots(graph);
  Reported reported;
  Dependencies order;
  Visit visit(graph, bases, *findings, reported, budget);
  if (!visit.RunTwoSteps(&order)) return std::nullopt;
  return order;
}

}  // namespace resident::graph
