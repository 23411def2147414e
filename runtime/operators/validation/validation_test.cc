// Operators that do one thing wrong each, and what a validation says of them; on the real
// engine process, the CPU's or with RESIDENT_TEST_ENGINE=cuda the GPU's.
#include "runtime/operators/validation/validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/device_harness.h"
#include "runtime/device/engine_process.h"
#include "runtime/device/spare_engine.h"
#include "runtime/operators/validation/check_examples.h"
#include "runtime/operators/validation/guarded_tensors.h"
#include "tests/units/trials.h"

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr char kTwiceSignature[] = "x: in f32[*S], out: out f32[*S]";
constexpr char kAxpySignature[] = "x: in f32[*S], y: inout f32[*S], a: scalar f32 = 3";
constexpr char kRowsSignature[] = "x: in f32[R, C], out: out f32[R]";

// What units are linked for; 0 for the CPU.
uint32_t Architecture() {
  static const uint32_t architecture = [] {
    if (!TestOnCuda()) return 0u;
    DeviceOptions options = DeviceHarness::Options();
    options.engine.start_parked = true;
    auto process = EngineProcess::Launch(options);
    if (!process.ok()) return 0u;
    const auto info = (*process)->Start(std::chrono::seconds(60));
    return info.ok() ? info->traits.architecture : 0u;
  }();
  return architecture;
}

std::string Bytes(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

ExampleValue Value(const std::vector<float>& values) {
  return {DType::kF32, Shape{static_cast<int64_t>(values.size())}, Bytes(values)};
}

// x of n elements, and twice as much expected, or nothing.
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

// A trial of operator `name`, in both builds.
ValidationJob Job(const std::string& name, const std::string& signature = kTwiceSignature) {
  ValidationJob job;
  job.operator_name = name;
  job.generation = testing::TrialsGeneration(Architecture());
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

ValidationReport Try(const ValidationJob& job) {
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
  const ValidationReport report = Try(job);
  EXPECT_EQ(report.status, absl::OkStatus());
  EXPECT_EQ(report.examples, 3u);
  EXPECT_EQ(report.tasks, 9u);  // Checked; as it would serve, twice.
  EXPECT_GT(report.run.count(), 0);
}

// A spare of the device, which leaves the place to another one.
std::shared_ptr<SpareEngine> MakeSpare(uint64_t staging_mib) {
  DeviceOptions device = DeviceHarness::Options();
  device.limits.staging_mib = staging_mib;
  auto spare = std::make_shared<SpareEngine>(device);
  spare->Refill();
  EXPECT_TRUE(Eventually([&] { return spare->pid() != 0; }));
  return spare;
}

TEST(ValidationTest, SpareEngineIsTakenAndAnotherOneIsPrepared) {
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

TEST(ValidationTest, SpareEngineThatDoesNotFitOrHasEndedIsDoneWithout) {
  ValidationOptions options = Options();
  options.spare = MakeSpare(8);
  const int64_t pid = options.spare->pid();
  EXPECT_EQ(ValidationEngine::Start(options)->Run(TwiceJob("twice")).status, absl::OkStatus());
  EXPECT_EQ(options.spare->pid(), pid);  // It is left to who can use it.
  kill(static_cast<pid_t>(options.spare->pid()), SIGKILL);
  EXPECT_EQ(ValidationEngine::Start(options)->Run(TwiceJob("twice")).status, absl::OkStatus());
}

TEST(ValidationTest, GoodWideOperatorPassesInEverySplit) {
  ValidationJob job = TwiceJob("twice");
  job.split = SplitBy(16);
  const ValidationReport report = Try(job);
  EXPECT_EQ(report.status, absl::OkStatus());
  EXPECT_EQ(report.tasks, 5u);  // And on one block, and in three chunks.
}

TEST(ValidationTest, InOutParameterIsFilledAnewForEachRun) {
  ValidationJob job = Job("axpy", kAxpySignature);
  Example example;
  example.values = {Value({1, 2}), Value({10, 20})};
  example.values[1].data += Bytes({13, 26});  // The scalar's default is 3.
  job.examples = {example};
  job.split = SplitBy(1, 0);
  EXPECT_EQ(Try(job).status, absl::OkStatus());
}

TEST(ValidationTest, BarriersAndBlockMemoryWorkInTheCheckedBuild) {
  ValidationJob job = Job("row_sums", kRowsSignature);
  Example example;
  example.values = {{DType::kF32, Shape{2, 3}, Bytes({1, 2, 3, 4, 5, 6})}, Value({6, 15})};
  job.examples = {example};
  job.split = SplitBy(1);
  EXPECT_EQ(Try(job).status, absl::OkStatus());
}

TEST(ValidationTest, WithoutExamplesTheyAreMadeFromTheSignature) {
  for (const auto& [name, signature] : {std::pair{"twice", kTwiceSignature},
                                        {"axpy", kAxpySignature},
                                        {"row_sums", kRowsSignature}}) {
    ValidationJob job = Job(name, signature);
    job.split = SplitBy(16, 0);
    const ValidationReport report = Try(job);
    EXPECT_EQ(report.status, absl::OkStatus());
    EXPECT_GE(report.examples, 5u);
  }
}

TEST(ValidationTest, GeneratedExampleMayBeRefused) {
  EXPECT_EQ(Try(Job("particular")).status, absl::OkStatus());
}

TEST(ValidationTest, GivenExampleMayNotBeRefused) {
  ExpectRefused(Try(TwiceJob("particular")), HasSubstr("it ended with INVALID_ARGUMENT"));
}

TEST(ValidationTest, ElementPastTheEndIsNamed) {
  ExpectRefused(
      Try(TwiceJob("element_past_the_end")),
      AllOf(HasSubstr("element_past_the_end, example 1 (checked build; x [100], out "
                      "[100]): it touched element 100 of 'out', which has 100 elements")));
}

TEST(ValidationTest, ElementPastTheEndInOneChunkOfManyIsNamed) {
  ValidationJob job = TwiceJob("element_past_the_end");
  job.split = SplitBy(10);
  ExpectRefused(Try(job), HasSubstr("it touched element 100 of 'out', which has 100 elements"));
}

TEST(ValidationTest, WithoutACheckedBuildTheRedZoneShowsIt) {
  ValidationJob job = TwiceJob("element_past_the_end");
  job.checked_slot.reset();
  ExpectRefused(Try(job), AllOf(HasSubstr("it wrote outside of its tensors"),
                                HasSubstr("past the end of 'out'")));
}

TEST(ValidationTest, RawWritePastTheEndIsSeen) {
  ExpectRefused(Try(TwiceJob("raw_write_past_the_end")), HasSubstr("past the end of 'out'"));
}

TEST(ValidationTest, RawWriteBeforeTheStartIsSeen) {
  ExpectRefused(Try(TwiceJob("raw_write_before_the_start")),
                HasSubstr("bytes before the start of 'out'"));
}

TEST(ValidationTest, StoreToNullEndsTheValidationAndNothingElse) {
  ExpectRefused(
      Try(TwiceJob("store_to_null")),
      AllOf(HasSubstr("it ended the engine: "),
            AnyOf(HasSubstr(TestOnCuda() ? "illegal" : "SIGSEGV"),
                  HasSubstr("killed by signal 11"))));  // A sanitizer's engine catches none.
}

TEST(ValidationTest, LoadFromNowhereEndsTheValidation) {
  ExpectRefused(Try(TwiceJob("load_from_nowhere")), HasSubstr("it ended the engine: "));
}

TEST(ValidationTest, TrapEndsTheValidation) {
  ExpectRefused(Try(TwiceJob("trap")), HasSubstr("it ended the engine: "));
}

TEST(ValidationTest, OperatorThatLeavesIsSeen) {
  ValidationJob job = TwiceJob("leaves");
  job.task_time_limit = std::chrono::milliseconds(300);
  // A GPU's threads are gone, and their block with them; a CPU's process is.
  ExpectRefused(Try(job), HasSubstr(TestOnCuda() ? "it has not returned within its time limit"
                                                 : "exited with status 0"));
}

TEST(ValidationTest, WriteToAnInputIsNamed) {
  ExpectRefused(Try(TwiceJob("write_to_input")),
                HasSubstr("it wrote to element 2 of its input 'x'"));
}

TEST(ValidationTest, UnwrittenElementIsNamed) {
  ExpectRefused(
      Try(TwiceJob("element_unwritten")),
      HasSubstr("it left 1 of the 100 elements of 'out' unwritten, the first is element 2"));
}

TEST(ValidationTest, UnwrittenElementIsFoundWithoutExamples) {
  ExpectRefused(Try(Job("element_unwritten")),
                AllOf(HasSubstr("generated example "), HasSubstr("the first is element 2")));
}

TEST(ValidationTest, NothingWrittenIsSeen) {
  ExpectRefused(Try(TwiceJob("nothing_written")), HasSubstr("left 100 of the 100 elements"));
}

TEST(ValidationTest, WrittenElementThatLooksLikePoisonIsWritten) {
  ValidationJob job = Job("poison_written");
  Example example = TwiceExample(3, /*expected=*/true);
  example.values[1].data = Bytes({std::nanf(""), std::nanf(""), std::nanf("")});
  job.examples = {example};
  EXPECT_EQ(Try(job).status, absl::OkStatus());
}

TEST(ValidationTest, WrongResultIsNamedWithBothValues) {
  ExpectRefused(Try(TwiceJob("wrong_result")),
                HasSubstr("'out' differs from what the example expects: element 1 is 77, not 4; 1 "
                          "of 100 elements differ, by at most 73"));
}

TEST(ValidationTest, ToleranceOfTheExampleCounts) {
  ValidationJob job = TwiceJob("wrong_result");
  job.examples[0].absolute_tolerance = 80;
  EXPECT_EQ(Try(job).status, absl::OkStatus());
}

TEST(ValidationTest, ActiveVersionIsTheReferenceWhereNothingIsExpected) {
  ValidationJob job = Job("wrong_result");
  job.active_slot = testing::TrialSlot("twice");
  job.examples = {TwiceExample(10, /*expected=*/false)};
  ExpectRefused(Try(job),
                HasSubstr("differs from the active version's result: element 1 is 77, not 4"));
}

TEST(ValidationTest, ActiveVersionThatFailsIsNoReference) {
  ValidationJob job = Job("twice");
  job.active_slot = testing::TrialSlot("fails");
  job.examples = {TwiceExample(10, /*expected=*/false)};
  ExpectRefused(Try(job), HasSubstr("the active version's outputs were to be what is expected"));
}

TEST(ValidationTest, OperatorThatNeverReturnsIsGivenUp) {
  ValidationJob job = TwiceJob("never_returns");
  job.task_time_limit = std::chrono::milliseconds(200);
  ExpectRefused(Try(job), HasSubstr("it has not returned within its time limit of 200 ms"));
}

TEST(ValidationTest, OperatorThatNeverReturnsForOneInputIsGivenUpThere) {
  ValidationJob job = TwiceJob("never_returns_for_13");
  job.examples.push_back(TwiceExample(4, /*expected=*/true, /*first=*/13));
  job.task_time_limit = std::chrono::milliseconds(500);
  const ValidationReport report = Try(job);
  ExpectRefused(report, AllOf(HasSubstr("example 2 "), HasSubstr("not returned")));
  EXPECT_EQ(report.examples, 2u);
}

TEST(ValidationTest, ReportedFailureIsAFailure) {
  ExpectRefused(Try(TwiceJob("fails")), HasSubstr("it ended with INTERNAL, detail 7"));
}

TEST(ValidationTest, OperatorThatIsRightInOneSplitOnlyIsRefused) {
  ValidationJob job = TwiceJob("fixed_split");
  job.split = SplitBy(64);
  ExpectRefused(Try(job), AllOf(HasSubstr("on one block"), HasSubstr("differs")));
}

TEST(ValidationTest, OperatorThatNeedsAlignmentIsRefused) {
  ExpectRefused(Try(TwiceJob("aligned_only")),
                AllOf(HasSubstr("one element off alignment"), HasSubstr("it ended the engine")));
}

TEST(ValidationTest, CodeThatDisagreesWithItsSignatureIsRefused) {
  ExpectRefused(Try(TwiceJob("wrong_element_type")),
                HasSubstr("it took 'x' as elements of 8 bytes, and it is f32, of 4"));
  ExpectRefused(Try(TwiceJob("missing_argument")),
                HasSubstr("it asked for argument 2, and its signature has 2 (x, out)"));
}

TEST(ValidationTest, ScratchPastTheEndIsRefused) {
  ExpectRefused(Try(TwiceJob("scratch_past_the_end")),
                HasSubstr("it asked for scratch() up to byte 524292, and there are 524288"));
}

TEST(ValidationTest, ResultsThatDifferWithinToleranceAreEqual) {
  ValidationJob job = TwiceJob("order_matters");
  job.split = SplitBy(16);
  EXPECT_EQ(Try(job).status, absl::OkStatus());
}

TEST(ValidationTest, DivergentBarrierIsCountedOnAGpu) {
  ValidationJob job = TwiceJob("divergent_barrier");
  job.task_time_limit = std::chrono::milliseconds(1000);
  const ValidationReport report = Try(job);
  if (TestOnCuda()) {
    ExpectRefused(report, HasSubstr("it came to a barrier with 128 of 256 threads"));
  } else {
    EXPECT_EQ(report.status, absl::OkStatus());  // One thread comes to all of them.
  }
}

TEST(ValidationTest, CodeThatCannotBeLoadedIsRefused) {
  ValidationJob job = TwiceJob("twice");
  auto generation = std::make_shared<Generation>(*job.generation);
  const auto garbage = std::make_shared<const std::string>("no object at all");
  for (auto& op : generation->operators) op.object = garbage;
  job.generation = generation;
  ExpectRefused(Try(job), HasSubstr("a validation cannot load it"));
}

TEST(ValidationTest, EngineThatDoesNotStartIsNotTheOperatorsFault) {
  ValidationOptions options = Options();
  options.engine_program = "/no/such/program";
  const ValidationReport report = ValidationEngine::Start(options)->Run(TwiceJob("twice"));
  EXPECT_EQ(report.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(report.status.message()), HasSubstr("/no/such/program"));
}

TEST(ValidationTest, CancelledRunEndsAtOnce) {
  ValidationJob job = TwiceJob("never_returns");
  const auto validation = ValidationEngine::Start(Options());
  std::thread canceller([&] { validation->Cancel(); });
  EXPECT_EQ(validation->Run(job).status.code(), absl::StatusCode::kCancelled);
  canceller.join();
}

// Children of this process, zombies included.
size_t Children() {
  size_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream children(task.path() / "children");
    for (std::string child; children >> child;) ++count;
  }
  return count;
}

TEST(ValidationTest, NoProcessIsLeft) {
  for (int i = 0; i < 3; ++i) ValidationEngine::Start(Options());  // And no Run.
  Try(TwiceJob("store_to_null"));
  Try(TwiceJob("twice"));
  EXPECT_TRUE(Eventually([] { return Children() == 0; })) << Children();
}

}  // namespace
}  // namespace resident
