#include "tests/flux/native_programs.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/flux/isa.h"
#include "runtime/base/status_macros.h"

namespace resident::flux {
namespace {

namespace fs = std::filesystem;

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string Source(const std::vector<Translation>& translations,
                   const NativePrograms::Mutate& mutate) {
  std::string source = R"(#include "kernels/flux/native_program.h"
using namespace resident;
using namespace resident::flux;
template <typename Program>
void Run(const u8* code, u32 length, bool unknown_nop, i32* registers, i32* stack, u32 max_cycles,
         u32* error, u32* cycles) {
  const RegisterFile<1> file{FastWords(reinterpret_cast<u32*>(registers))};
  const Outcome outcome =
      Program::Run(RawCode{code, length, unknown_nop}, file, Stack<1>{stack}, max_cycles);
  *error = outcome.error;
  *cycles = outcome.cycles;
}
)";
  std::string table =
      "extern \"C\" __attribute__((visibility(\"default\"))) void (*const "
      "programs[])(const u8*, u32, bool, i32*, i32*, u32, u32*, u32*) = {\n";
  for (size_t i = 0; i < translations.size(); ++i) {
    const std::string& program = translations[i].program;
    absl::StrAppend(&source, "namespace p", i, " {\n",
                    mutate == nullptr ? program : mutate(program), "}\n");
    absl::StrAppend(&table, "Run<p", i, "::Program>,\n");
  }
  return absl::StrCat(source, table, "};\n");
}

// Returns a new folder for a unit's files.
absl::StatusOr<fs::path> MakeFolder() {
  const char* const base = getenv("TEST_TMPDIR");
  std::string name = absl::StrCat(base == nullptr ? "/tmp" : base, "/native_XXXXXX");
  if (mkdtemp(name.data()) == nullptr) return absl::InternalError("mkdtemp failed");
  return fs::path(name);
}

absl::StatusOr<void*> CompileAndLoad(const std::string& source, const std::string& optimize) {
  ASSIGN_OR_RETURN(const fs::path folder, MakeFolder());
  std::ofstream(folder / "unit.cc") << source;
  // Run without a shell's quoting: the paths are the test's own.
  const std::string command =
      absl::StrCat("c++ -shared -fPIC -std=c++20 -fvisibility=hidden -I. ", optimize, " -o ",
                   (folder / "unit.so").string(), " ", (folder / "unit.cc").string(), " >",
                   (folder / "log").string(), " 2>&1");
  if (system(command.c_str()) != 0) {
    return absl::InternalError(absl::StrCat("the native code does not compile:\n",
                                            ReadFile(folder / "log").substr(0, 4000)));
  }
  void* const library = dlopen((folder / "unit.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::InternalError(dlerror());
  fs::remove_all(folder);
  return library;
}

}  // namespace

absl::StatusOr<std::unique_ptr<NativePrograms>> NativePrograms::Compile(
    const std::vector<NativeProgram>& programs, const std::string& optimize, const Mutate& mutate) {
  auto native = std::make_unique<NativePrograms>();
  native->programs_ = programs;
  for (const NativeProgram& program : programs) {
    ASSIGN_OR_RETURN(
        Translation translation,
        Translate(std::string_view(reinterpret_cast<const char*>(program.bytecode.data()),
                                   program.bytecode.size()),
                  program.unknown_nop));
    native->translations_.push_back(std::move(translation));
  }
  ASSIGN_OR_RETURN(native->library_,
                   CompileAndLoad(Source(native->translations_, mutate), optimize));
  native->functions_ = static_cast<const Function*>(dlsym(native->library_, "programs"));
  return native;
}

NativePrograms::~NativePrograms() {
  if (library_ != nullptr) dlclose(library_);
}

RunResult NativePrograms::Run(size_t i, const RunOptions& options) const {
  RunResult result;
  result.registers = options.initial;
  std::array<int32_t, kStackDepth> stack;
  // Poisoned, so that a read of a slot that was not written is noticed.
  stack.fill(0x5a5a5a5a);
  const Bytecode& code = programs_[i].bytecode;
  functions_[i](code.data(), static_cast<uint32_t>(code.size()), options.unknown_nop,
                result.registers.data(), stack.data(), static_cast<uint32_t>(options.max_cycles),
                &result.error, &result.cycles);
  return result;
}

uint64_t NativePrograms::RunAll(size_t i, std::span<RegisterValues> registers,
                                uint64_t max_cycles) const {
  std::array<int32_t, kStackDepth> stack;
  const NativeProgram& program = programs_[i];
  uint64_t sum = 0;
  for (RegisterValues& values : registers) {
    uint32_t error = 0;
    uint32_t cycles = 0;
    functions_[i](program.bytecode.data(), static_cast<uint32_t>(program.bytecode.size()),
                  program.unknown_nop, values.data(), stack.data(),
                  static_cast<uint32_t>(max_cycles), &error, &cycles);
    sum += cycles;
  }
  return sum;
}

}  // namespace resident::flux
