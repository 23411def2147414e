#include "runtime/graph/graph.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace resident::graph {

const char* KindText(TensorKind kind) {
  switch (kind) {
    case TensorKind::kWeight:
      return "a weight";
    case TensorKind::kConst:
      return "a constant";
    case TensorKind::kState:
      return "a state";
    case TensorKind::kActivation:
      return "an activation";
    case TensorKind::kInput:
      return "an input";
    case TensorKind::kOutput:
      return "an output";
    case TensorKind::kStream:
      return "a stream";
  }
  return "unknown";
}

std::string_view NameStore::Add(std::string_view name) {
  if (name.empty()) return {};
  constexpr size_t kBlockBytes = 64 << 10;
  if (blocks_.empty() || capacity_ - used_ < name.size()) {
    capacity_ = std::max(kBlockBytes, name.size());
    blocks_.push_back(std::make_unique<char[]>(capacity_));
    used_ = 0;
  }
  char* const to = blocks_.back().get() + used_;
  std::memcpy(to, name.data(), name.size());
  used_ += name.size();
  return {to, name.size()};
}

std::string Graph::NodeName(uint32_t node) const {
  const std::string_view own = nodes[node].name;
  return own.empty() ? absl::StrCat("#", node) : std::string(own);
}

}  // namespace resident::graph
