
#include "tests/flux/native_units.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/ops/builtin.h"
#include "runtime/base/process/frames.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/compile_job.h"
#include "runtime/compile/host_compiler.h"
#include "runtime/compile/job_runner.h"
#include "tests/support/temp_folder.h"

namespace resident::flux {
namespace {

constexpr char kFile[] = "native_flux.cc";

absl::StatusOr<internal::CompileResponse> Compile(const internal::CompileRequest& request) {
  ASSIGN_OR_RETURN(const CompileTarget target, CompileTarget::Find(request.source().target()));
  if (target.toolchain == Toolchain::kCuda) return RunCudaJob(request);
  ASSIGN_OR_RETURN(const HostCompiler compiler, FindHostCompiler(""));
  const testing::TempFolder folder("native_units");
  return RunHostJob(compiler, folder.path(), request);
}

// Compiles, inspects and links the unit of a source.
absl::StatusOr<GenerationOperator> MakeOperator(size_t number, const std::string& source,
                                                const std::string& compile_target) {
  internal::CompileRequest request;
  internal::CompileSource* const job = request.mutable_source();
  job->set_target(compile_target);
  (*job->mutable_files())[kFile] = source;
  job->set_main_file(kFile);
  job->set_function(kNativeFunction);
  // Its first digits are the unit's name.
  job->set_content_hash(absl::StrFormat("%016x%048x", number, 0));
  // As native forms of a daemon are compiled.
  job->set_allow_spills(true);
  job->set_isolation(static_cast<uint32_t>(resident::Isolation::kTrusted));
  ASSIGN_OR_RETURN(const internal::CompileResponse response, Compile(request));
  absl::Status status = GetStatus(response.compiled());
  if (status.ok()) status = GetStatus(response.inspected());
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat("the native code of unit ", number, ": ",
                                                    status.message(), "\n", response.log()));
  }
  return GenerationOperator{NativeSlot(number), response.symbol(),
                            std::make_shared<const std::string>(response.object())};
}

}  // namespace

std::string ManyProgramsSource(const std::vector<Translation>& translations) {
  // Each program is a function of its own, because the time of a compilation rises faster than the
  // size of a function: 50 programs in one take three times as long.
  std::string source = R"(#include "kernels/flux/native_program.h"
#if RESIDENT_GPU
#define NOINLINE static __device__ __noinline__
#else
#define NOINLINE static __attribute__((noinline))
#endif
using resident::Args;
using resident::Block;
)";
  std::string cases;
  for (size_t i = 0; i < translations.size(); ++i) {
    absl::StrAppend(&source, "\nnamespace program_", i, " {\n", "using namespace resident;\n",
                    "using namespace resident::flux;\n", translations[i].program,
                    "NOINLINE void Run(Block& block, const Args& args) {\n"
                    "  RunNativeProgram<Program>(block, args);\n}\n}\n");
    absl::StrAppend(&cases, "    case ", i, ": return program_", i, "::Run(block, args);\n");
  }
  return absl::StrCat(
      source, "\nRESIDENT_OPERATOR(", kNativeFunction,
      ")(Block& block, const Args& args) {\n"
      "  const auto bytecode = args.tensor<const resident::u8>(resident::flux::kRunBytecode);\n"
      "  switch (bytecode[bytecode.size() - 1]) {\n",
      cases, "  }\n}\n");
}

uint32_t NativeSlot(size_t number) { return kFirstInstalledSlot + static_cast<uint32_t>(number); }

absl::StatusOr<std::shared_ptr<const Generation>> NativeGeneration(
    const std::vector<std::string>& sources, const std::string& compile_target) {
  std::vector<absl::StatusOr<GenerationOperator>> operators(sources.size());
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  const size_t processors = std::max(1u, std::thread::hardware_concurrency());
  for (size_t t = 0; t < std::min(processors, sources.size()); ++t) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < sources.size(); i = next++) {
        operators[i] = MakeOperator(i, sources[i], compile_target);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  auto generation = std::make_shared<Generation>();
  generation->number = 2;
  for (absl::StatusOr<GenerationOperator>& added : operators) {
    RETURN_IF_ERROR(added.status());
    generation->operators.push_back(*std::move(added));
  }
  return generation;
}

}  // namespace resident::flux
