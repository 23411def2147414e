// Measures ModelInfer beside Run in one daemon, one connection and one loop: lone tasks, and
// batches of 1,024 tasks.
//
//   bazel run -c opt //tests/inference:bench_inference -- [--out=FILE.json]
#include <grpcpp/client_context.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "inference/open_inference.grpc.pb.h"
#include "resident/v1/executor.grpc.pb.h"
#include "tests/daemon/daemon.h"
#include "tests/support/bench_report.h"

ABSL_FLAG(std::string, out, "", "file for the figures, as JSON");

namespace {

using resident::testing::BenchReport;
using resident::testing::Fail;
using resident::testing::Percentile;
using namespace resident;

constexpr uint64_t kElements = 64;

double Microseconds(const std::function<grpc::Status()>& call) {
  const auto start = std::chrono::steady_clock::now();
  const grpc::Status status = call();
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
  if (!status.ok()) Fail(status.error_message());
  return time.count();
}

v1::RunRequest NativeAdd(uint32_t tasks, const std::string& values) {
  v1::RunRequest request;
  v1::OperatorTasks* const work = request.mutable_batch()->mutable_tasks();
  work->set_operator_("add");
  work->set_count(tasks);
  for (int i = 0; i < 2; ++i) {
    v1::InlineColumn* const column = work->add_arguments()->mutable_inline_();
    column->set_dtype(v1::DTYPE_F32);
    column->add_shape(kElements);
    column->set_data(values);
  }
  v1::ReturnedColumn* const returned = work->add_arguments()->mutable_returned();
  returned->set_dtype(v1::DTYPE_F32);
  returned->add_shape(kElements);
  return request;
}

inference::ModelInferRequest OpenAdd(uint32_t tasks, const std::string& values) {
  inference::ModelInferRequest request;
  request.set_model_name(tasks == 1 ? "add" : "add:batch");
  for (const char* name : {"x", "y"}) {
    auto* const input = request.add_inputs();
    input->set_name(name);
    input->set_datatype("FP32");
    if (tasks > 1) input->add_shape(tasks);
    input->add_shape(kElements);
    request.add_raw_input_contents(values);
  }
  return request;
}

void Compare(const resident::testing::Daemon& daemon, uint32_t tasks, int calls,
             BenchReport& report) {
  const auto channel = daemon.Connect();
  const auto executor = v1::Executor::NewStub(channel);
  const auto open = inference::GRPCInferenceService::NewStub(channel);
  const std::string values(tasks * kElements * sizeof(float), '\0');
  const v1::RunRequest run = NativeAdd(tasks, values);
  const inference::ModelInferRequest infer = OpenAdd(tasks, values);
  std::vector<double> native_us;
  std::vector<double> open_us;
  // The first tenth is not measured.
  for (int i = -calls / 10; i < calls; ++i) {
    v1::RunResponse native_answer;
    inference::ModelInferResponse open_answer;
    const double native = Microseconds([&] {
      grpc::ClientContext context;
      return executor->Run(&context, run, &native_answer);
    });
    const double opened = Microseconds([&] {
      grpc::ClientContext context;
      return open->ModelInfer(&context, infer, &open_answer);
    });
    if (native_answer.result().outputs(0) != open_answer.raw_output_contents(0)) {
      Fail("the answers differ");
    }
    if (i < 0) continue;
    native_us.push_back(native);
    open_us.push_back(opened);
  }
  const std::string what = tasks == 1 ? "one task" : std::to_string(tasks) + " tasks";
  report.Add("ModelInfer, " + what + ", p50", Percentile(open_us, 0.5), "us",
             "Run, " + what + ", p50", Percentile(native_us, 0.5));
  report.Add("ModelInfer, " + what + ", p99", Percentile(open_us, 0.99), "us",
             "Run, " + what + ", p99", Percentile(native_us, 0.99));
}

}  // namespace

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const resident::testing::Daemon daemon;
  BenchReport report;
  Compare(daemon, 1, 20'000, report);
  Compare(daemon, 1024, 1'000, report);
  report.Write(absl::GetFlag(FLAGS_out), {{"device", daemon.Device().name()}});
  return 0;
}
