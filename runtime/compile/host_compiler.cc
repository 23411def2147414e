
#include "runtime/compile/host_compiler.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/errors.h"
#include "runtime/compile/run_program.h"
#include "runtime/compile/unit.h"

namespace resident {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNames[] = {"g++", "c++", "clang++"};
// Programs that a compiler starts. A program that is built into the compiler is not found, and
// not needed.
constexpr const char* kPrograms[] = {"cc1plus", "collect2", "as", "ld", "ld.lld"};
// Folders of shared libraries and of the loader, which must be executable too.
constexpr const char* kLibraries[] = {"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu",
                                      "/lib64", "/usr/lib64"};
constexpr const char* kLoader = "/lib64/ld-linux-x86-64.so.2";

std::string RealPath(const std::string& path) {
  char resolved[PATH_MAX];
  return realpath(path.c_str(), resolved) == nullptr ? path : resolved;
}

// Returns the path of a program; empty: there is none of that name.
std::string FindInPath(const std::string& name) {
  if (absl::StrContains(name, '/')) return access(name.c_str(), X_OK) == 0 ? name : "";
  const char* const path = getenv("PATH");
  for (const absl::string_view folder :
       absl::StrSplit(path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path, ':')) {
    std::string candidate = absl::StrCat(folder, "/", name);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

// Adds the folders that the compiler reports: "programs: =/a:/b", "install: /c".
absl::Status FindParts(HostCompiler* compiler) {
  ASSIGN_OR_RETURN(const auto output, RunProgram({compiler->path, "-print-search-dirs"}, {}));
  std::vector<std::string> folders;
  for (const absl::string_view line : absl::StrSplit(output.text, '\n')) {
    const size_t equals = line.find('=');
    if (absl::StartsWith(line, "programs:") && equals != absl::string_view::npos) {
      for (const absl::string_view folder : absl::StrSplit(line.substr(equals + 1), ':')) {
        folders.emplace_back(folder);
      }
    }
    if (absl::StartsWith(line, "libraries:") && equals != absl::string_view::npos) {
      // The first folder has the compiler's own headers and libgcc.
      const absl::string_view all = line.substr(equals + 1);
      compiler->readable.emplace_back(all.substr(0, all.find(':')));
    }
  }
  folders.insert(folders.end(), {"/usr/local/bin", "/usr/bin", "/bin"});
  compiler->executable = {RealPath(compiler->path), RealPath(kLoader)};
  for (const char* program : kPrograms) {
    for (const std::string& folder : folders) {
      const std::string path = absl::StrCat(folder, "/", program);
      if (access(path.c_str(), X_OK) != 0) continue;
      compiler->executable.push_back(RealPath(path));
      break;
    }
  }
  compiler->readable.insert(compiler->readable.end(), std::begin(kLibraries), std::end(kLibraries));
  compiler->readable.insert(compiler->readable.end(), {"/etc/ld.so.cache", "/dev/urandom"});
  return absl::OkStatus();
}

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

absl::Status WriteFile(const fs::path& path, const std::string& text) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("cannot write ", path.string(), ": ",
                                                   error ? error.message() : strerror(errno),
                                                   ". Fix: free space on the disk"));
}

// Returns the compiler's output without the lines about the generated file.
std::string CleanLog(const std::string& text) {
  std::vector<absl::string_view> kept;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, "In file included from <stdin>:")) kept.push_back(line);
  }
  return absl::StrJoin(kept, "\n");
}

// Returns why the compiler failed. Its processes print a message when they reach a limit.
absl::Status DescribeFailure(const ProgramOutput& output) {
  if (absl::StrContains(output.text, "CPU time limit exceeded") ||
      absl::StrContains(output.text, "Killed signal terminated program")) {
    return absl::DeadlineExceededError(
        "the compiler reached its limit of CPU time. Fix: use fewer templates and constexpr "
        "loops, or raise --compile_cpu_time");
  }
  if (absl::StrContains(output.text, "out of memory") ||
      absl::StrContains(output.text, "virtual memory exhausted") ||
      absl::StrContains(output.text, "annot allocate memory")) {
    return absl::ResourceExhaustedError(
        "the compiler reached its limit of memory. Fix: use fewer templates and constexpr "
        "loops, or raise --compile_memory_mib");
  }
  if (absl::StrContains(output.text, "File size limit exceeded") ||
      absl::StrContains(output.text, "File too large")) {
    return absl::ResourceExhaustedError(absl::StrCat("the compiler wrote a file over the limit of ",
                                                     kMaxInstallObjectBytes,
                                                     " bytes. Fix: pass large tables as tensors"));
  }
  return DoesNotCompile(output.text);
}

}  // namespace

absl::StatusOr<HostCompiler> FindHostCompiler(const std::string& name) {
  HostCompiler compiler;
  if (!name.empty()) {
    compiler.path = FindInPath(name);
    if (compiler.path.empty()) {
      return absl::UnavailableError(
          absl::StrCat("there is no host compiler '", name,
                       "'. Fix: set --host_compiler to the path of g++ or clang++"));
    }
  }
  for (const char* candidate : kNames) {
    if (compiler.path.empty()) compiler.path = FindInPath(candidate);
  }
  if (compiler.path.empty()) {
    return absl::UnavailableError(
        "there is no host compiler: none of g++, c++, clang++ is in $PATH. Fix: install g++, or "
        "set --host_compiler");
  }
  ASSIGN_OR_RETURN(const auto output, RunProgram({compiler.path, "--version"}, {}));
  if (!output.success) {
    return absl::UnavailableError(absl::StrCat(compiler.path, " --version failed: ", output.text,
                                               ". Fix: set --host_compiler to a C++ compiler"));
  }
  compiler.version = output.text.substr(0, output.text.find('\n'));
  compiler.gcc = absl::StrContains(output.text, "Free Software Foundation");
  RETURN_IF_ERROR(FindParts(&compiler));
  return compiler;
}

absl::StatusOr<HostUnit> HostCompile(const HostCompiler& compiler, const std::string& folder,
                                     const Unit& unit,
                                     const std::map<std::string, std::string>& files,
                                     std::string* log) {
  const fs::path root(folder);
  for (const auto& [name, text] : files) {
    if (auto status = WriteFile(root / "src" / name, text); !status.ok()) return status;
  }
  for (const auto& [name, text] : SdkHeaders()) {
    if (auto status = WriteFile(root / "sdk" / name, text); !status.ok()) return status;
  }
  // The source is passed on standard input, so that messages name the files that were sent.
  const fs::path main = root / "main.cc";
  if (auto status = WriteFile(main, unit.main_text); !status.ok()) return status;

  std::vector<std::string> command = {compiler.path,
                                      "-shared",
                                      "-fPIC",
                                      "-O3",
                                      "-std=c++20",
                                      "-nostdinc",
                                      "-nostdinc++",
                                      "-nostdlib",
                                      "-fno-exceptions",
                                      "-fno-rtti",
                                      "-fno-threadsafe-statics",
                                      "-fno-math-errno",
                                      "-fno-asynchronous-unwind-tables",
                                      "-fno-stack-protector",
                                      "-fvisibility=hidden",
                                      "-Wall",
                                      "-Wno-unknown-pragmas",
                                      "-Wl,--build-id=none",
                                      "-Wl,-z,noexecstack"};
  command.insert(command.end(), unit.definitions.begin(), unit.definitions.end());
  if (compiler.gcc) {
    command.insert(command.end(), {"-fcallgraph-info=su", "-fmax-errors=20", "-dumpdir", "../",
                                   "-dumpbase", "unit", "-fno-use-linker-plugin"});
  }
  command.insert(command.end(), {"-iquote.", "-I../sdk", "-o", "../unit.so", "-xc++", "-"});
  // libgcc has operations without a processor instruction, such as 128-bit division.
  if (compiler.gcc) command.insert(command.end(), {"-xnone", "-lgcc"});

  ProgramPlace place;
  place.folder = (root / "src").string();
  place.input_file = main.string();
  place.temporary = folder;
  place.max_output = kMaxCompilerLogBytes;
  ASSIGN_OR_RETURN(const auto output, RunProgram(command, place));
  *log = CleanLog(output.text);
  if (!output.success) return DescribeFailure(output);
  HostUnit compiled;
  compiled.object = ReadFile(root / "unit.so");
  compiled.call_graph = ReadFile(root / "unit.ci");
  return compiled;
}

}  // namespace resident
