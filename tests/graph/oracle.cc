#include "tests/graph/oracle.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace resident::testing {
namespace {

using absl::StrCat;
using graph::Argument;
using graph::Axis;
using graph::kNone;

double ValueOf(const graph::Graph& graph, const Argument& argument,
               const std::vector<double>& values) {
  switch (argument.kind) {
    case Argument::Kind::kInteger:
      return static_cast<double>(argument.integer);
    case Argument::Kind::kFloat:
      return argument.number;
    case Argument::Kind::kExpression: {
      const graph::ScalarExpression& e = graph.expressions[argument.expression];
      return std::fma(e.factor, values[e.scalar], e.addend);
    }
    default:
      return 0;
  }
}

// The elements of a view, in row-major order, as the bytes at which they begin; with the index in
// dimension `row_axis` (0 without).
struct Element {
  int64_t byte;
  int64_t row;
};
std::vector<Element> ListElements(const graph::Graph& graph, const graph::View& view,
                                  const std::vector<double>& values, uint32_t row_axis = 99) {
  std::vector<Element> elements = {{view.offset, 0}};
  uint32_t d = 0;
  for (const Axis& axis : graph.AxesOf(view)) {
    const int64_t size =
        axis.scalar == kNone ? axis.size : static_cast<int64_t>(values[axis.scalar]);
    std::vector<Element> next;
    for (const Element& element : elements) {
      for (int64_t i = 0; i < size; ++i) {
        next.push_back({element.byte + i * axis.stride, d == row_axis ? i : element.row});
      }
    }
    elements = std::move(next);
    ++d;
  }
  return elements;
}

}  // namespace

void Oracle::ListNode(uint32_t n, const std::vector<double>& values) {
  const graph::Node& node = graph_.nodes[n];
  const std::string& op = graph_.operators[node.op].name;
  const auto arguments = graph_.ArgumentsOf(node);
  const auto scalar = [&](uint32_t i, double otherwise) {
    return i < arguments.size() ? ValueOf(graph_, arguments[i], values) : otherwise;
  };
  std::vector<ByteAccess> writes;
  for (uint32_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].kind != Argument::Kind::kTensor) continue;
    const graph::Tensor& tensor = graph_.tensors[arguments[i].tensor];
    int64_t base = 0;
    for (uint32_t t = 0; t < tensor.root; ++t) base += graph_.root_bytes[t];
    const ParameterKind kind = graph_.operators[node.op].signature.parameters()[i].kind;
    bool reads = kind != ParameterKind::kOutput;
    const bool writes_it = kind != ParameterKind::kInput;
    int64_t first_row = 0;
    int64_t end_row = INT64_MAX;
    if (op == "kv_append" && i == 1) {
      const Axis& rows = graph_.axes[arguments[0].view.first_axis + 2];
      reads = false;
      first_row = static_cast<int64_t>(scalar(2, 0));
      end_row = first_row +
                (rows.scalar == kNone ? rows.size : static_cast<int64_t>(values[rows.scalar]));
    } else if (op == "attention" && (i == 1 || i == 2)) {
      const double length = scalar(7, -1);
      if (length >= 0) end_row = static_cast<int64_t>(length);
    } else if (op == "gemm" && i == 2 && scalar(4, 0) == 0) {
      reads = false;
    }
    const int64_t element_bytes = SizeOf(arguments[i].view.dtype);
    for (const Element& element : ListElements(graph_, arguments[i].view, values, 2)) {
      if (end_row != INT64_MAX && (element.row < first_row || element.row >= end_row)) continue;
      for (int64_t b = 0; b < element_bytes; ++b) {
        if (reads) accesses_[n].push_back({base + element.byte + b, false});
        if (writes_it) writes.push_back({base + element.byte + b, true});
      }
    }
  }
  // A node reads everything before it writes.
  accesses_[n].insert(accesses_[n].end(), writes.begin(), writes.end());
}

Oracle::Oracle(const graph::Graph& graph, const std::vector<std::vector<double>>& values)
    : graph_(graph),
      accesses_(graph.nodes.size()),
      expected_(graph.nodes.size()),
      expected_reads_(graph.nodes.size()) {
  std::vector<bool> defined;
  std::vector<uint32_t> root_of;
  for (uint32_t t = 0; t < graph.tensors.size(); ++t) {
    defined.insert(defined.end(), static_cast<size_t>(graph.root_bytes[t]),
                   graph::IsDefined(graph.tensors[t].kind));
  }
  bytes_ = static_cast<int64_t>(defined.size());
  std::vector<Tag> tags(defined.size());
  std::vector<uint32_t> reads(defined.size(), 0);
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    ListNode(n, values[n]);
    for (const ByteAccess& access : accesses_[n]) {
      const size_t byte = static_cast<size_t>(access.byte);
      expected_[n].push_back(tags[byte]);
      expected_reads_[n].push_back(reads[byte]);
      if (access.write) {
        tags[byte] = {static_cast<int32_t>(n), tags[byte].writes + 1};
        reads[byte] = 0;
        defined[byte] = true;
      } else {
        if (!defined[byte] && missing_.empty()) {
          missing_ = StrCat("node ", n, " reads byte ", byte, ", which has no value");
        }
        ++reads[byte];
      }
    }
  }
  int64_t base = 0;
  for (uint32_t t = 0; t < graph.tensors.size(); ++t) {
    const graph::Tensor& tensor = graph.tensors[t];
    if (tensor.kind == graph::TensorKind::kOutput && tensor.root == t) {
      for (const Element& element : ListElements(graph, tensor.view, values.back())) {
        if (defined[static_cast<size_t>(base + element.byte)] || !missing_.empty()) continue;
        missing_ = StrCat("output ", t, " is not written at byte ", element.byte);
      }
    }
    base += graph.root_bytes[t];
  }
}

bool Oracle::Conflict(uint32_t a, uint32_t b) const {
  for (const ByteAccess& one : accesses_[a]) {
    for (const ByteAccess& other : accesses_[b]) {
      if (one.byte == other.byte && (one.write || other.write)) return true;
    }
  }
  return false;
}

template <typename Ready, typename Done>
std::string Oracle::Run(std::mt19937_64& random, Ready ready, Done done) const {
  const uint32_t count = static_cast<uint32_t>(accesses_.size());
  std::vector<Tag> tags(static_cast<size_t>(bytes_));
  std::vector<uint32_t> reads(static_cast<size_t>(bytes_), 0);
  std::vector<uint32_t> waiting(count);
  for (uint32_t n = 0; n < count; ++n) waiting[n] = n;
  struct Running {
    uint32_t node;
    size_t next;
  };
  std::vector<Running> running;
  // Nodes that run at the same time: one executes a node after the other in a random order, which
  // exchanges more; several interleave their chunks.
  const size_t lanes = 1 + random() % 3;
  // Some runs prefer late nodes, to meet missing dependencies early.
  const bool backwards = random() % 2 == 0;
  while (!waiting.empty() || !running.empty()) {
    std::vector<size_t> startable;
    for (size_t w = 0; w < waiting.size() && running.size() < lanes; ++w) {
      if (ready(waiting[w])) startable.push_back(w);
    }
    if (!startable.empty()) {
      const size_t pick =
          backwards && random() % 4 != 0 ? startable.size() - 1 : random() % startable.size();
      running.push_back({waiting[startable[pick]], 0});
      waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(startable[pick]));
      continue;
    }
    if (running.empty()) return StrCat("deadlock: ", waiting.size(), " nodes never start");
    const size_t which = random() % running.size();
    Running& run = running[which];
    const std::vector<ByteAccess>& accesses = accesses_[run.node];
    // A chunk of random size.
    const size_t end = std::min(accesses.size(), run.next + 1 + random() % (accesses.size() + 1));
    for (; run.next < end; ++run.next) {
      const ByteAccess& access = accesses[run.next];
      const size_t byte = static_cast<size_t>(access.byte);
      const Tag& expected = expected_[run.node][run.next];
      if (tags[byte].writer != expected.writer || tags[byte].writes != expected.writes) {
        return StrCat("node ", run.node, " meets the value of node ", tags[byte].writer,
                      " in place of node ", expected.writer, " at byte ", byte);
      }
      if (!access.write) {
        ++reads[byte];
        continue;
      }
      if (reads[byte] != expected_reads_[run.node][run.next]) {
        return StrCat("node ", run.node, " overwrites byte ", byte, " before it was read");
      }
      tags[byte] = {static_cast<int32_t>(run.node), tags[byte].writes + 1};
      reads[byte] = 0;
    }
    if (run.next < accesses.size()) continue;
    done(run.node);
    running.erase(running.begin() + static_cast<ptrdiff_t>(which));
  }
  return "";
}

std::string Oracle::TryDerived(const graph::Dependencies& order, int count,
                               std::mt19937_64& random) const {
  for (int i = 0; i < count; ++i) {
    std::vector<bool> ended(accesses_.size(), false);
    const std::string wrong = Run(
        random,
        [&](uint32_t n) {
          return std::ranges::all_of(order.Of(n), [&](const graph::Dependency& dependency) {
            return ended[dependency.after];
          });
        },
        [&](uint32_t n) { ended[n] = true; });
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string Oracle::TryExplicit(int count, std::mt19937_64& random) const {
  // By node: the node before it in its block.
  std::vector<uint32_t> before(accesses_.size(), kNone);
  std::vector<uint32_t> last(graph_.blocks, kNone);
  for (uint32_t n = 0; n < accesses_.size() && graph_.blocks > 0; ++n) {
    before[n] = last[graph_.nodes[n].block];
    last[graph_.nodes[n].block] = n;
  }
  for (int i = 0; i < count; ++i) {
    std::vector<bool> ended(accesses_.size(), false);
    std::vector<uint32_t> counters;
    for (const graph::Counter& counter : graph_.counters) counters.push_back(counter.initial);
    const std::string wrong = Run(
        random,
        [&](uint32_t n) {
          if (before[n] != kNone && !ended[before[n]]) return false;
          return std::ranges::all_of(graph_.WaitsOf(graph_.nodes[n]), [&](const graph::Wait& wait) {
            return counters[wait.counter] >= wait.threshold;
          });
        },
        [&](uint32_t n) {
          ended[n] = true;
          if (graph_.nodes[n].signals != kNone) ++counters[graph_.nodes[n].signals];
        });
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace resident::testing
