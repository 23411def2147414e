// Operators with one error each, and how a validation reports it; on the real engine
// process, the CPU's or with RESIDENT_TEST_ENGINE=cuda the GPU's.
#include "runtime/operators/validation/validation.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/device_harness.h"
#include "runtime/device/engine_process.h"
#include "runtime/device/spare_engine.h"
#include "runtime/operators/validation/example.h"
#include "runtime/operators/validation/guarded_tensors.h"
#include "runtime/ring/shared_region.h"
#include "tests/units/trials.h"

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr char kTwiceSignature[] = "x: in f32[*S], out: out f32[*S]";
constexpr char kAxpySignature[] = "x: in f32[*S], y: inout f32[*S], a: scalar f32 = 3";
constexpr char kRowsSignature[] = "x: in f32[R, C], out: out f32[R]";

// What units are linked for.
const std::string& FindCompileTarget() {
  static const auto* const target = new std::string([]() -> std::string {
    if (!TestOnCuda()) return "x86-64";
    DeviceOptions options = DeviceHarness::Options();
    options.engine.start_parked = true;
    auto process = EngineProcess::Launch(options);
    if (!process.ok()) return "";
    const auto info = (*process)->Start(std::chrono::seconds(60));
    return info.ok() ? info->traits.compile_target : "";
  }());
  return *target;
}

std::string Bytes(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

ExampleValue Value(const std::vector<float>& values) {
  return {DType::kF32, Shape{static_cast<int64_t>(values.size())}, Bytes(values)};
}

// x has n elements; out expects twice x, or has no expected data.
Example TwiceExample(int64_t n, bool expected, float first = 1) {
  std::vector<float> x(static_cast<size_t>(n)), out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = 2 * (x[i] = first + static_cast<float>(i));
  Example example;
  example.values = {Value(x), Value(out)};
  if (!expected) example.values[1].data.clear();
  return example;
}

SplitRule SplitBy(uint64_t grain, int parameter = 1) {
  SplitRule split;
  split.parameter = parameter;
  split.grain = grain;
  return split;
}

ValidationOptions Options() {
  ValidationOptions options;
  options.engine = {TestEngineType(), 0};
  options.engine_program = EngineProgramForTest();
  return options;
}

// Validates operator `name`, in both builds.
ValidationJob Job(const std::string& name, const std::string& signature = kTwiceSignature) {
  ValidationJob job;
  job.operator_name = name;
  job.generation = testing::TrialsGeneration(FindCompileTarget());
  job.slot = testing::TrialSlot(name);
  job.checked_slot = testing::CheckedTrialSlot(name);
  job.signature = *Signature::Parse(signature);
  job.task_time_limit = std::chrono::seconds(20);
  return job;
}

ValidationJob TwiceJob(const std::string& name) {
  ValidationJob job = Job(name);
  job.examples = {TwiceExample(100, /*expected=*/true)};
  return job;
}

ValidationReport Validate(const ValidationJob& job) {
  EXPECT_EQ(CheckExamples(job.operator_name, job.signature, job.examples), absl::OkStatus());
  return ValidationEngine::Start(Options())->Run(job);
}

void ExpectRefused(const ValidationReport& report, const ::testing::Matcher<std::string>& message) {
  EXPECT_EQ(report.status.code(), absl::StatusCode::kInvalidArgument) << report.status;
  EXPECT_THAT(std::string(report.status.message()), AllOf(message, HasSubstr(". Fix: ")));
}

TEST(ValidationTest, GoodOperatorPasses) {
  ValidationJob job = TwiceJob("twice");
  job.examples.push_back(TwiceExample(1, /*expected=*/true));
  job.examples.push_back(TwiceExample(0, /*expected=*/true));
  const ValidationReport report = Validate(job);
  EXPECT_EQ(report.status, absl::OkStatus());
  EXPECT_EQ(report.examples, 3u);
  EXPECT_EQ(report.tasks, 9u);  // Per example: checked, and twice as served.
  EXPECT_GT(report.run.count(), 0);
}

// A spare of the device, which is refilled after it was taken.
std::shared_ptr<SpareEngine> MakeSpare(uint64_t staging_mib) {
  DeviceOptions device = DeviceHarness::Options();
  device.limits.staging_mib = staging_mib;
  auto spare = std::make_shared<SpareEngine>(device);
  spare->Refill();
  EXPECT_TRUE(Eventually([&] { return spare->pid() != 0; }));
  return spare;
}

TEST(ValidationTest, SpareEngineIsUsedAndAnotherOneIsPrepared) {
  ValidationOptions options = Options();
  options.spare = MakeSpare(GuardedTensors::kStagingBytes >> 20);
  const int64_t pid = options.spare->pid();
  for (const char* name : {"twice", "twice"}) {
    EXPECT_TRUE(Eventually([&] { return options.spare->pid() != 0; }));
    std::unique_ptr<ValidationEngine> validation = ValidationEngine::Start(options);
    EXPECT_TRUE(Eventually([&] { return options.spare->pid() == 0; }));
    EXPECT_EQ(validation->Run(TwiceJob(name)).status, absl::OkStatus());
    validation = nullptr;
    EXPECT_TRUE(
        Eventually([&] { return options.spare->pid() != 0 && options.spare->pid() != pid; }));
  }
}

TEST(ValidationTest, UnsuitableOrEndedSpareEngineIsNotNeeded) {
  ValidationOptions options = Options();
  options.spare = MakeSpare(8);
  const int64_t pid = options.spare->pid();
  EXPECT_EQ(ValidationEngine::Start(options)->Run(TwiceJob("twice")).status, absl::OkStatus());
  EXPECT_EQ(options.spare->pid(), pid);  // The unsuitable spare is kept for other uses.
  kill(static_cast<pid_t>(options.spare->pid()), SIGKILL);
  EXPECT_EQ(ValidationEngine::Start(options)->Run(TwiceJob("twice")).status, absl::OkStatus());
}

TEST(ValidationTest, GoodWideOperatorPassesInEverySplit) {
  ValidationJob job = TwiceJob("twice");
  job.split = SplitBy(16);
  const ValidationReport report = Validate(job);
  EXPECT_EQ(report.status, absl::OkStatus());
  EXPECT_EQ(report.tasks, 5u);  // Also on one block, and in three chunks.
}

TEST(ValidationTest, InOutParameterIsInitialisedForEachRun) {
  ValidationJob job = Job("axpy", kAxpySignature);
  Example example;
  example.values = {Value({1, 2}), Value({10, 20})};
  example.values[1].data += Bytes({13, 26});  // The scalar's default is 3.
  job.examples = {example};
  job.split = SplitBy(1, 0);
  EXPECT_EQ(Validate(job).status, absl::OkStatus());
}

TEST(ValidationTest, BarriersAndBlockMemoryWorkInTheCheckedBuild) {
  ValidationJob job = Job("row_sums", kRowsSignature);
  Example example;
  example.values = {{DType::kF32, Shape{2, 3}, Bytes({1, 2, 3, 4, 5, 6})}, Value({6, 15})};
  job.examples = {example};
  job.split = SplitBy(1);
  EXPECT_EQ(Validate(job).status, absl::OkStatus());
}

TEST(ValidationTest, ExamplesAreGeneratedFromTheSignatureIfThereAreNone) {
  for (const auto& [name, signature] : {std::pair{"twice", kTwiceSignature},
                                        {"axpy", kAxpySignature},
                                        {"row_sums", kRowsSignature}}) {
    ValidationJob job = Job(name, signature);
    job.split = SplitBy(16, 0);
    const ValidationReport report = Validate(job);
    EXPECT_EQ(report.status, absl::OkStatus());
    EXPECT_GE(report.examples, 5u);
  }
}

TEST(ValidationTest, GeneratedExampleMayBeRefused) {
  EXPECT_EQ(Validate(Job("particular")).status, absl::OkStatus());
}

TEST(ValidationTest, ExampleOfTheInstallMayNotBeRefused) {
  ExpectRefused(Validate(TwiceJob("particular")), HasSubstr("it ended with INVALID_ARGUMENT"));
}

TEST(ValidationTest, ElementPastTheEndIsNamed) {
  ExpectRefused(
      Validate(TwiceJob("element_past_the_end")),
      AllOf(HasSubstr("element_past_the_end, example 1 (checked build; x [100], out "
                      "[100]): it touched element 100 of 'out', which has 100 elements")));
}

TEST(ValidationTest, ElementPastTheEndInOneChunkOfManyIsNamed) {
  ValidationJob job = TwiceJob("element_past_the_end");
  job.split = SplitBy(10);
  ExpectRefused(Validate(job),
                HasSubstr("it touched element 100 of 'out', which has 100 elements"));
}

TEST(ValidationTest, WithoutACheckedBuildTheRedZoneDetectsIt) {
  ValidationJob job = TwiceJob("element_past_the_end");
  job.checked_slot.reset();
  ExpectRefused(Validate(job), AllOf(HasSubstr("it wrote outside of its tensors"),
                                     HasSubstr("past the end of 'out'")));
}

TEST(ValidationTest, RawWritePastTheEndIsDetected) {
  ExpectRefused(Validate(TwiceJob("raw_write_past_the_end")), HasSubstr("past the end of 'out'"));
}

TEST(ValidationTest, RawWriteBeforeTheStartIsDetected) {
  ExpectRefused(Validate(TwiceJob("raw_write_before_the_start")),
                HasSubstr("bytes before the start of 'out'"));
}

TEST(ValidationTest, StoreToNullEndsTheValidationAndNothingElse) {
  ExpectRefused(
      Validate(TwiceJob("store_to_null")),
      AllOf(HasSubstr("it ended the engine: "),
            AnyOf(HasSubstr(TestOnCuda() ? "illegal" : "SIGSEGV"),
                  HasSubstr(
                      "killed by signal 11"))));  // A sanitizer's engine does not catch signals.
}

TEST(ValidationTest, LoadFromAnInvalidAddressEndsTheValidation) {
  ExpectRefused(Validate(TwiceJob("load_from_nowhere")), HasSubstr("it ended the engine: "));
}

TEST(ValidationTest, TrapEndsTheValidation) {
  ExpectRefused(Validate(TwiceJob("trap")), HasSubstr("it ended the engine: "));
}

TEST(ValidationTest, OperatorThatExitsIsDetected) {
  ValidationJob job = TwiceJob("leaves");
  job.task_time_limit = std::chrono::milliseconds(300);
  // On a GPU the block's threads have exited; on the CPU the process has.
  ExpectRefused(Validate(job), HasSubstr(TestOnCuda() ? "it has not returned within its time limit"
                                                      : "exited with status 0"));
}

TEST(ValidationTest, WriteToAnInputIsNamed) {
  ExpectRefused(Validate(TwiceJob("write_to_input")),
                HasSubstr("it wrote to element 2 of its input 'x'"));
}

TEST(ValidationTest, UnwrittenElementIsNamed) {
  ExpectRefused(
      Validate(TwiceJob("element_unwritten")),
      HasSubstr("it left 1 of the 100 elements of 'out' unwritten, the first is element 2"));
}

TEST(ValidationTest, UnwrittenElementIsFoundWithoutExamples) {
  ExpectRefused(Validate(Job("element_unwritten")),
                AllOf(HasSubstr("generated example "), HasSubstr("the first is element 2")));
}

TEST(ValidationTest, NothingWrittenIsDetected) {
  ExpectRefused(Validate(TwiceJob("nothing_written")), HasSubstr("left 100 of the 100 elements"));
}

TEST(ValidationTest, WrittenElementThatEqualsThePoisonCountsAsWritten) {
  ValidationJob job = Job("poison_written");
  Example example = TwiceExample(3, /*expected=*/true);
  example.values[1].data = Bytes({std::nanf(""), std::nanf(""), std::nanf("")});
  job.examples = {example};
  EXPECT_EQ(Validate(job).status, absl::OkStatus());
}

TEST(ValidationTest, WrongResultIsNamedWithBothValues) {
  ExpectRefused(Validate(TwiceJob("wrong_result")),
                HasSubstr("'out' differs from what the example expects: element 1 is 77, not 4; 1 "
                          "of 100 elements differ, by at most 73"));
}

TEST(ValidationTest, ToleranceOfTheExampleApplies) {
  ValidationJob job = TwiceJob("wrong_result");
  job.examples[0].absolute_tolerance = 80;
  EXPECT_EQ(Validate(job).status, absl::OkStatus());
}

TEST(ValidationTest, ActiveVersionIsTheReferenceWithoutExpectedData) {
  ValidationJob job = Job("wrong_result");
  job.active_slot = testing::TrialSlot("twice");
  job.examples = {TwiceExample(10, /*expected=*/false)};
  ExpectRefused(Validate(job),
                HasSubstr("differs from the active version's result: element 1 is 77, not 4"));
}

TEST(ValidationTest, ActiveVersionThatFailsIsNotAReference) {
  ValidationJob job = Job("twice");
  job.active_slot = testing::TrialSlot("fails");
  job.examples = {TwiceExample(10, /*expected=*/false)};
  ExpectRefused(Validate(job), HasSubstr("the active version's outputs are the expected values"));
}

TEST(ValidationTest, OperatorThatNeverReturnsTimesOut) {
  ValidationJob job = TwiceJob("never_returns");
  job.task_time_limit = std::chrono::milliseconds(200);
  ExpectRefused(Validate(job), HasSubstr("it has not returned within its time limit of 200 ms"));
}

TEST(ValidationTest, OperatorThatNeverReturnsForOneInputTimesOutThere) {
  ValidationJob job = TwiceJob("never_returns_for_13");
  job.examples.push_back(TwiceExample(4, /*expected=*/true, /*first=*/13));
  job.task_time_limit = std::chrono::milliseconds(500);
  const ValidationReport report = Validate(job);
  ExpectRefused(report, AllOf(HasSubstr("example 2 "), HasSubstr("not returned")));
  EXPECT_EQ(report.examples, 2u);
}

TEST(ValidationTest, ReportedFailureIsAFailure) {
  ExpectRefused(Validate(TwiceJob("fails")), HasSubstr("it ended with INTERNAL, detail 7"));
}

TEST(ValidationTest, OperatorThatIsCorrectInOnlyOneSplitIsRefused) {
  ValidationJob job = TwiceJob("fixed_split");
  job.split = SplitBy(64);
  ExpectRefused(Validate(job), AllOf(HasSubstr("on one block"), HasSubstr("differs")));
}

TEST(ValidationTest, OperatorThatNeedsAlignmentIsRefused) {
  ExpectRefused(Validate(TwiceJob("aligned_only")),
                AllOf(HasSubstr("one element off alignment"), HasSubstr("it ended the engine")));
}

TEST(ValidationTest, CodeThatDoesNotMatchItsSignatureIsRefused) {
  ExpectRefused(Validate(TwiceJob("wrong_element_type")),
                HasSubstr("it read 'x' as elements of 8 bytes, but its type is f32 (4 bytes)"));
  ExpectRefused(Validate(TwiceJob("missing_argument")),
                HasSubstr("it requested argument 2, but its signature has 2 (x, out)"));
}

TEST(ValidationTest, ScratchPastTheEndIsRefused) {
  ExpectRefused(Validate(TwiceJob("scratch_past_the_end")),
                HasSubstr("it requested scratch() up to byte 524292, but there are 524288"));
}

TEST(ValidationTest, ResultsThatDifferWithinToleranceAreEqual) {
  ValidationJob job = TwiceJob("order_matters");
  job.split = SplitBy(16);
  EXPECT_EQ(Validate(job).status, absl::OkStatus());
}

TEST(ValidationTest, DivergentBarrierIsCountedOnAGpu) {
  ValidationJob job = TwiceJob("divergent_barrier");
  job.task_time_limit = std::chrono::milliseconds(1000);
  const ValidationReport report = Validate(job);
  if (TestOnCuda()) {
    ExpectRefused(report, HasSubstr("it reached a barrier with 128 of 256 threads"));
  } else {
    EXPECT_EQ(report.status, absl::OkStatus());  // There is only one thread.
  }
}

TEST(ValidationTest, CodeThatCannotBeLoadedIsRefused) {
  ValidationJob job = TwiceJob("twice");
  auto generation = std::make_shared<Generation>(*job.generation);
  const auto garbage = std::make_shared<const std::string>("no object at all");
  for (auto& op : generation->operators) op.object = garbage;
  job.generation = generation;
  ExpectRefused(Validate(job), HasSubstr("a validation cannot load it"));
}

TEST(ValidationTest, EngineThatDoesNotStartIsNotTheOperatorsFault) {
  ValidationOptions options = Options();
  options.engine_program = "/no/such/program";
  const ValidationReport report = ValidationEngine::Start(options)->Run(TwiceJob("twice"));
  EXPECT_EQ(report.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(report.status.message()), HasSubstr("/no/such/program"));
}

TEST(ValidationTest, CancelledRunEndsImmediately) {
  ValidationJob job = TwiceJob("never_returns");
  const auto validation = ValidationEngine::Start(Options());
  std::thread canceller([&] { validation->Cancel(); });
  EXPECT_EQ(validation->Run(job).status.code(), absl::StatusCode::kCancelled);
  canceller.join();
}

// The child processes of this process, including zombies.
std::vector<pid_t> Children() {
  std::vector<pid_t> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream children(task.path() / "children");
    for (pid_t child = 0; children >> child;) found.push_back(child);
  }
  return found;
}

// The inode of the memory that this process shares with an engine in which a task of the job's
// version has begun; nullopt: there is none, except those that are `known`.
std::optional<ino_t> FindEngineThatRuns(const ValidationJob& job, const std::set<ino_t>& known) {
  for (const auto& descriptor : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    const std::string target = std::filesystem::read_symlink(descriptor.path(), closed);
    if (closed || target.find("memfd:residentd-region") == std::string::npos) continue;
    const int fd = open(descriptor.path().c_str(), O_RDWR | O_CLOEXEC);
    struct stat info = {};
    if (fd < 0 || fstat(fd, &info) != 0) continue;
    const auto region = SharedRegion::Attach(fd);
    if (!region.ok() || known.contains(info.st_ino)) continue;
    for (uint32_t worker = 0; worker < (*region)->control()->worker_count; ++worker) {
      Breadcrumb& breadcrumb = (*region)->breadcrumbs()[worker];
      if (__atomic_load_n(&breadcrumb.stamp, __ATOMIC_ACQUIRE) == 0) continue;
      const uint32_t slot = __atomic_load_n(&breadcrumb.operator_slot, __ATOMIC_RELAXED);
      if (slot == job.slot || slot == job.checked_slot) return info.st_ino;
    }
  }
  return std::nullopt;
}

// Validates while others kill up to `kills` engines, each after a task of the version has begun in
// it. Returns the number of those that were killed.
size_t ValidateWithKills(const ValidationJob& job, size_t kills, ValidationReport* report) {
  const std::vector<pid_t> before =
      Children();  // Engines of earlier tests, which are being reaped.
  const auto validation = ValidationEngine::Start(Options());
  std::atomic<bool> ended{false};
  std::set<pid_t> killed;
  std::thread killer([&] {
    std::set<ino_t> known;
    while (!ended && killed.size() < kills) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const std::optional<ino_t> running = FindEngineThatRuns(job, known);
      if (!running.has_value()) continue;
      known.insert(*running);
      // The validation has one engine at a time.
      for (const pid_t child : Children()) {
        if (killed.contains(child)) continue;
        if (std::find(before.begin(), before.end(), child) != before.end()) continue;
        kill(child, SIGKILL);
        killed.insert(child);
      }
    }
  });
  *report = validation->Run(job);
  ended = true;
  killer.join();
  return killed.size();
}

TEST(ValidationTest, EngineThatIsKilledOnceIsReplaced) {
  ValidationJob job = TwiceJob("never_returns");
  job.task_time_limit = std::chrono::seconds(5);
  ValidationReport report;
  EXPECT_EQ(ValidateWithKills(job, 1, &report), 1u);
  // The second one has found what is wrong.
  ExpectRefused(report, HasSubstr("it has not returned within its time limit of 5000 ms"));
  EXPECT_EQ(report.examples, 1u);
}

TEST(ValidationTest, EngineThatIsKilledTwiceIsNotTheOperatorsFault) {
  ValidationReport report;
  EXPECT_EQ(ValidateWithKills(TwiceJob("never_returns"), 2, &report), 2u);
  EXPECT_EQ(report.status.code(), absl::StatusCode::kUnavailable) << report.status;
  EXPECT_THAT(std::string(report.status.message()),
              AllOf(HasSubstr("killed by signal 9"), HasSubstr("try again")));
}

TEST(ValidationTest, NoProcessRemains) {
  for (int i = 0; i < 3; ++i) ValidationEngine::Start(Options());  // Without Run.
  Validate(TwiceJob("store_to_null"));
  Validate(TwiceJob("twice"));
  EXPECT_TRUE(Eventually([] { return Children().empty(); })) << Children().size();
}

}  // namespace
}  // namespace resident
