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
  // Sets the size of a function's own frame. A function that is called but was not added has
  // a frame of 0 bytes.
  void AddFunction(const std::string& name, uint64_t frame_bytes) { frames_[name] = frame_bytes; }
  void AddCall(const std::string& caller, const std::string& callee) {
    calls_[caller].insert(callee);
  }

  // Returns the stack of `name` with its deepest chain of calls. INVALID_ARGUMENT: the depth is
  // unknown because a function calls itself; the message has its demangled name.
  absl::StatusOr<uint64_t> ComputeStack(const std::string& name) const;

 private:
  std::map<std::string, uint64_t> frames_;
  std::map<std::string, std::set<std::string>> calls_;
};

// Returns the name as in the source, without the namespace of a unit:
// "float util::twice(float)".
std::string Demangle(const std::string& symbol);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_CALL_GRAPH_H_
