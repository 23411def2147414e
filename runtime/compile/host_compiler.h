// Finds the host's C++ compiler and compiles a unit to a shared object with it.
//
// Thread safety: the functions may be called from any thread.
//
//   ASSIGN_OR_RETURN(HostCompiler compiler, FindHostCompiler(""));
//   absl::StatusOr<HostUnit> unit = HostCompile(compiler, folder, sources, &log);
#ifndef RESIDENT_RUNTIME_COMPILE_HOST_COMPILER_H_
#define RESIDENT_RUNTIME_COMPILE_HOST_COMPILER_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/compile/unit.h"

namespace resident {

struct HostCompiler {
  std::string path;
  // The first line of --version, which is part of the cache's key.
  std::string version;
  bool gcc = false;
  // Files and folders that it opens and executes, for the sandbox.
  std::vector<std::string> readable;
  std::vector<std::string> executable;
};

// `name`: a path, or a name in $PATH; empty: the first of g++, c++, clang++. UNAVAILABLE:
// there is none; the message says what to do.
absl::StatusOr<HostCompiler> FindHostCompiler(const std::string& name);

struct HostUnit {
  std::string object;
  // GCC's call graph with stack use; empty where the compiler writes none.
  std::string call_graph;
};

// Works in `folder`, which must be empty. Writes the compiler's whole output to `log`. Errors:
// see CompileResult::compiled.
absl::StatusOr<HostUnit> HostCompile(const HostCompiler& compiler, const std::string& folder,
                                     const Unit& unit,
                                     const std::map<std::string, std::string>& files,
                                     std::string* log);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_HOST_COMPILER_H_
