#include "runtime/compile/call_graph.h"

#include <cxxabi.h>

#include <cstdlib>
#include <regex>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace resident {

absl::StatusOr<uint64_t> CallGraph::ComputeStack(const std::string& name) const {
  // Depth first, without recursion: a hostile unit may have chains of any length.
  struct Frame {
    std::string function;
    std::vector<std::string> callees;
    size_t next = 0;
    uint64_t deepest = 0;
  };
  std::map<std::string, uint64_t> done;
  std::set<std::string> open;
  std::vector<Frame> path;
  const auto enter = [&](const std::string& function) {
    Frame frame{function, {}, 0, 0};
    if (const auto found = calls_.find(function); found != calls_.end()) {
      frame.callees.assign(found->second.begin(), found->second.end());
    }
    open.insert(function);
    path.push_back(std::move(frame));
  };
  enter(name);
  while (true) {
    Frame& top = path.back();
    if (top.next < top.callees.size()) {
      const std::string callee = top.callees[top.next++];
      if (const auto found = done.find(callee); found != done.end()) {
        top.deepest = std::max(top.deepest, found->second);
      } else if (open.count(callee) != 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "'", Demangle(callee),
            callee == top.function ? "' calls itself" : "' calls itself through other functions",
            ": its stack use is unknown. Fix: write it as a loop"));
      } else {
        enter(callee);
      }
      continue;
    }
    const auto own = frames_.find(top.function);
    const uint64_t bytes = top.deepest + (own == frames_.end() ? 0 : own->second);
    done[top.function] = bytes;
    open.erase(top.function);
    path.pop_back();
    if (path.empty()) return bytes;
    path.back().deepest = std::max(path.back().deepest, bytes);
  }
}

std::string Demangle(const std::string& symbol) {
  // The demangler would read other names as codes of types: "s" as "short".
  if (symbol.compare(0, 2, "_Z") != 0) return symbol;
  int status = 0;
  char* const text = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  std::string name = status == 0 && text != nullptr ? text : symbol;
  std::free(text);
  static const std::regex* const kUnit = new std::regex("resident_unit_c?[0-9a-f]{16}::");
  return std::regex_replace(name, *kUnit, "");
}

}  // namespace resident
