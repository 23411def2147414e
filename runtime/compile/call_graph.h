// CallGraph: how deep the stack of a function can get.
//
// Thread safety: an object belongs to one thread.
//
//   graph.AddFunction("f", 32); graph.AddCall("f", "g");
//   absl::StatusOr<uint64_t> bytes = graph.ComputeStack("f");
#ifndef RESIDENT_RUNTIME_COMPILE_CALL_GRAPH_H_
#define RESIDENT_RUNTIME_COMPILE_CALL_GRAPH_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/status/statusor.h"

namespace resident {

class CallGraph {
 public:
  // A function's own frame. One that is called and not added has none.
  void AddFunction(const std::string& name, uint64_t frame_bytes) { frames_[name] = frame_bytes; }
  void AddCall(const std::string& caller, const std::string& callee) {
    calls_[caller].insert(callee);
  }

  // Of `name` and its deepest chain of calls. INVALID_ARGUMENT: the depth is unknown,
  // since functions call themselves: which. Names in messages are demangled.
  absl::StatusOr<uint64_t> ComputeStack(const std::string& name) const;

 private:
  std::map<std::string, uint64_t> frames_;
  std::map<std::string, std::set<std::string>> calls_;
};

// The name as it stands in the source: "float util::twice(float)", without the namespace
// of a unit.
std::string Demangle(const std::string& symbol);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_CALL_GRAPH_H_
