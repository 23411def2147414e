#include "runtime/graph/memory.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "runtime/graph/region.h"
#include "runtime/graph/values.h"
#include "runtime/model/dtype.h"

namespace resident::graph {
namespace {

// Between tensors in one buffer.
constexpr uint64_t kSpanAlignment = 256;

const char* PluralText(TensorKind kind) {
  switch (kind) {
    case TensorKind::kWeight:
      return "weights";
    case TensorKind::kConst:
      return "constants";
    case TensorKind::kState:
      return "states";
    case TensorKind::kActivation:
      return "activations";
    case TensorKind::kInput:
      return "inputs";
    case TensorKind::kOutput:
      return "outputs";
    case TensorKind::kStream:
      return "records of streams";
  }
  return "";
}

}  // namespace

void MemorySum::Add(std::string_view what, uint64_t bytes) {
  if (bytes == 0) return;
  for (auto& [name, sum] : parts_) {
    if (name != what) continue;
    sum += bytes;
    return;
  }
  parts_.emplace_back(what, bytes);
}

void MemorySum::Add(TensorKind kind, uint64_t bytes) { Add(PluralText(kind), bytes); }

uint64_t MemorySum::total() const {
  uint64_t total = 0;
  for (const auto& [name, bytes] : parts_) total += bytes;
  return total;
}

std::string MemorySum::Text() const {
  std::string text;
  for (const auto& [name, bytes] : parts_) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", bytes, " bytes for ", name);
  }
  return text;
}

std::vector<uint64_t> RunBytes(const Graph& graph) {
  assert(graph.root_bytes.size() == graph.tensors.size());
  std::vector<uint64_t> bytes(graph.tensors.size());
  for (uint32_t i = 0; i < graph.tensors.size(); ++i) {
    const Tensor& tensor = graph.tensors[i];
    if (tensor.kind != TensorKind::kStream) {
      bytes[i] = static_cast<uint64_t>(graph.root_bytes[i]);
      continue;
    }
    const auto hull =
        FindHull(MaxExtents(graph, tensor.view), tensor.view.offset, SizeOf(tensor.view.dtype));
    assert(hull.has_value());
    uint64_t& record = bytes[tensor.root];
    record = std::max(record, static_cast<uint64_t>(hull->high));
  }
  for (uint64_t& each : bytes) each = (each + kSpanAlignment - 1) / kSpanAlignment * kSpanAlignment;
  return bytes;
}

std::string DescribeShortage(const MemorySum& sum, const std::string& where, uint64_t limit) {
  return absl::StrCat("a run needs ", sum.total(), " bytes of a device's memory (", sum.Text(),
                      "), and ", where, " has ", limit,
                      " bytes. Fix: use smaller tensors, or the same activation several times; or "
                      "start the daemon with a larger --device_memory_mib");
}

void CheckMemory(const Graph& graph, const DeviceLimit& limit, Findings* findings) {
  const std::vector<uint64_t> bytes = RunBytes(graph);
  MemorySum sum;
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const TensorKind kind = graph.tensors[i].kind;
    const bool may_be_bound = kind != TensorKind::kActivation && kind != TensorKind::kStream;
    if (IsReadOnly(kind) || (may_be_bound && limit.shared_memory)) continue;
    sum.Add(kind, bytes[i]);
  }
  if (sum.total() <= limit.bytes) return;
  findings->Add(Code::kDeviceMemory, {}, DescribeShortage(sum, "the largest device", limit.bytes));
}

}  // namespace resident::graph
