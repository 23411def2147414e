// NativePrograms: compiles translated FLUX programs with the host's compiler and runs them, without
// a daemon. Many programs make one shared object, because a compiler needs longer to start than
// for a program.
//
//   std::vector<NativeProgram> programs = {{bytecode, /*unknown_nop=*/false}};
//   auto native = NativePrograms::Compile(programs);   // absl::StatusOr.
//   RunResult result = (*native)->Run(0, options);
//
// Thread safety: Compile and Run may be called from several threads concurrently.
#ifndef RESIDENT_TESTS_FLUX_NATIVE_PROGRAMS_H_
#define RESIDENT_TESTS_FLUX_NATIVE_PROGRAMS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/flux/run.h"
#include "runtime/flux/translator.h"

namespace resident::flux {

struct NativeProgram {
  Bytecode bytecode;
  bool unknown_nop = false;
};

class NativePrograms {
 public:
  // Changes the source of a program before it is compiled, to show that the tests notice it.
  using Mutate = std::function<std::string(std::string source)>;

  // `optimize`: the compiler's option, e.g. "-O1". Errors: those of Translate; INTERNAL: the source
  // does not compile, with the compiler's output.
  static absl::StatusOr<std::unique_ptr<NativePrograms>> Compile(
      const std::vector<NativeProgram>& programs, const std::string& optimize = "-O1",
      const Mutate& mutate = nullptr);
  ~NativePrograms();

  // Runs program i; options.unknown_nop must be what it was translated for.
  RunResult Run(size_t i, const RunOptions& options) const;

  // Runs program i once for each element of `registers`, which are its initial registers and
  // become its final ones. Returns the sum of the cycles.
  uint64_t RunAll(size_t i, std::span<RegisterValues> registers, uint64_t max_cycles) const;

  const Translation& translation(size_t i) const { return translations_[i]; }

 private:
  using Function = void (*)(const uint8_t* code, uint32_t length, bool unknown_nop,
                            int32_t* registers, int32_t* stack, uint32_t max_cycles,
                            uint32_t* error, uint32_t* cycles);

  std::vector<NativeProgram> programs_;
  std::vector<Translation> translations_;
  void* library_ = nullptr;
  const Function* functions_ = nullptr;
};

}  // namespace resident::flux

#endif  // RESIDENT_TESTS_FLUX_NATIVE_PROGRAMS_H_
