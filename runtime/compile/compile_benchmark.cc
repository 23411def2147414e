// Compiles operators for a GPU as a compile process does (RunCudaJob: NVRTC, inspection,
// nvJitLink), in the build that serves, trusted and stoppable, and in the checked build. An install
// that is not in the cache waits for one that serves and the checked one, which run at the same
// time: for the latter. Needs no GPU.
//
//   bazel run //runtime/compile:compile_benchmark -- --benchmark_repetitions=5
//       --benchmark_report_aggregates_only
//
// The "CPU" column is the processor time of one job, which other load of the machine changes
// little.
#include <benchmark/benchmark.h>

#include <string>

#include "resident/internal/compile.pb.h"
#include "runtime/base/process/frames.h"
#include "runtime/compile/job_runner.h"

namespace resident {
namespace {

constexpr char kSmall[] = R"(
RESIDENT_OPERATOR(op)(resident::Block& block, const resident::Args& args) {
  auto x = args.tensor<const float>(0);
  auto y = args.tensor<const float>(1);
  auto out = args.tensor<float>(2);
  block.for_each(block.share(x.size()), [&](resident::i64 i) { out[i] = x[i] + y[i]; });
})";

constexpr char kReduction[] = R"(
RESIDENT_OPERATOR(op)(resident::Block& block, const resident::Args& args) {
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  const float scale = args.scalar<float>(2);
  const resident::i64 n = x.size() / out.size();
  const resident::Range rows = block.share(out.size(), 4);
  float* const kept = block.memory<float>(0, 256);
  for (resident::i64 row = rows.begin; row < rows.end; ++row) {
    float sum = 0;
    for (resident::i64 i = block.thread(); i < n; i += block.threads()) sum += x[row * n + i];
    kept[block.thread()] = sum;
    const float total = block.reduce_sum(sum);
    if (block.thread() == 0) out[row] = scale * total + kept[1];
    block.barrier();
  }
})";

constexpr char kMatrix[] = R"(
RESIDENT_OPERATOR(op)(resident::Block& block, const resident::Args& args) {
  auto a = args.tensor<const float>(0);
  auto b = args.tensor<const float>(1);
  auto out = args.tensor<float>(2);
  const resident::i64 columns = out.shape(1);
  block.for_each(block.share(out.size()), [&](resident::i64 i) {
    const resident::i64 row = i / columns;
    const resident::i64 column = i - row * columns;
    float sum = 0;
    for (resident::i64 k = 0; k < a.shape(1); ++k) sum += a.at(row, k) * b.at(k, column);
    out.at(row, column) = sum;
  });
})";

void BM_Compile(benchmark::State& state, const std::string& source, bool checked,
                Isolation isolation) {
  if (const auto tools = WarmCudaTools(); !tools.ok()) {
    state.SkipWithError(tools.status().ToString().c_str());
    return;
  }
  internal::CompileRequest request;
  internal::CompileSource& job = *request.mutable_source();
  job.set_target("sm_90");
  (*job.mutable_files())["op.cc"] = source;
  job.set_main_file("op.cc");
  job.set_function("op");
  job.set_content_hash(std::string(64, 'a'));
  job.set_checked(checked);
  job.set_isolation(static_cast<uint32_t>(isolation));
  uint32_t code_bytes = 0;
  for (auto _ : state) {
    const internal::CompileResponse response = RunCudaJob(request);
    const absl::Status compiled = GetStatus(response.compiled());
    const absl::Status inspected = GetStatus(response.inspected());
    if (!compiled.ok() || !inspected.ok()) {
      state.SkipWithError((compiled.ok() ? inspected : compiled).ToString().c_str());
      return;
    }
    code_bytes = response.code_bytes();
  }
  state.counters["code_bytes"] = code_bytes;
}

#define BENCHMARK_BUILD(name, ...) \
  BENCHMARK_CAPTURE(BM_Compile, name, __VA_ARGS__)->Unit(benchmark::kMillisecond)
#define BENCHMARK_OPERATOR(name, source)                                   \
  BENCHMARK_BUILD(name, source, false, Isolation::kTrusted);               \
  BENCHMARK_BUILD(name##_stoppable, source, false, Isolation::kStoppable); \
  BENCHMARK_BUILD(name##_checked, source, true, Isolation::kTrusted)

BENCHMARK_OPERATOR(small, kSmall);
BENCHMARK_OPERATOR(reduction, kReduction);
BENCHMARK_OPERATOR(matrix, kMatrix);

}  // namespace
}  // namespace resident

BENCHMARK_MAIN();
