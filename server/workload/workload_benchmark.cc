// Measures the cost of a batch from the message's bytes to the ring, and back:
//
//   bazel run -c opt //server/workload:workload_benchmark
//
// The baseline is only parsing the message, which any server has to do.
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/fake_device.h"
#include "server/admission/admission.h"
#include "server/workload/planner.h"
#include "server/workload/result_builder.h"

namespace resident {
namespace {

constexpr uint32_t kTasks = 1024;
constexpr ClientId kClient = 1;

// kTasks additions of 16 floats: with inline and returned columns, or with one buffer for each
// column, by offsets.
v1::Batch InlineBatch() {
  v1::Batch batch;
  batch.mutable_tasks()->set_operator_("add");
  batch.mutable_tasks()->set_count(kTasks);
  for (int i = 0; i < 2; ++i) {
    v1::InlineColumn* in = batch.mutable_tasks()->add_arguments()->mutable_inline_();
    in->set_dtype(v1::DTYPE_F32);
    in->add_shape(16);
    in->set_data(std::string(kTasks * 64, 'x'));
  }
  v1::ReturnedColumn* out = batch.mutable_tasks()->add_arguments()->mutable_returned();
  out->set_dtype(v1::DTYPE_F32);
  out->add_shape(16);
  return batch;
}

v1::Batch BufferBatch(bool offsets) {
  v1::Batch batch;
  batch.mutable_tasks()->set_operator_("add");
  batch.mutable_tasks()->set_count(kTasks);
  for (int i = 0; i < 3; ++i) {
    v1::BufferColumn* column = batch.mutable_tasks()->add_arguments()->mutable_buffer();
    column->add_buffer_ids(1);
    column->add_shape(16);
    column->set_stride_bytes(64);
    for (uint32_t t = 0; offsets && t < kTasks; ++t) column->add_offsets(64 * (t * 7 % kTasks));
  }
  return batch;
}

struct World {
  World() : device(0, 64 << 20, 64 << 20) {
    registry = *Registry::Create({});
    buffers = std::make_unique<BufferTable>(limits);
    buffers->AddOwner(kClient);
    BufferSpec spec;
    spec.shape = {kTasks * 16};
    (void)buffers->Allocate(spec, kClient, *device.session());
    planner = std::make_unique<Planner>(PlanSources{.limits = &limits,
                                                    .registry = registry.get(),
                                                    .buffers = buffers.get(),
                                                    .devices = {&device},
                                                    .staging_bytes = 64 << 20});
    admission.AddDevice(64 << 20);
  }

  // Translates the message to a batch that can be queued.
  absl::StatusOr<std::shared_ptr<RequestBatch>> Translate(const v1::Batch& message) {
    ASSIGN_OR_RETURN(auto work, planner->Plan(message, kClient));
    ASSIGN_OR_RETURN(auto ticket, admission.TryAcquire(client, work->ResourcesNeeded()));
    return Planner::Fill(message, Clock::time_point::max(), std::move(work), std::move(ticket));
  }

  Limits limits;
  FakeDevice device;
  std::unique_ptr<Registry> registry;
  std::unique_ptr<BufferTable> buffers;
  std::unique_ptr<Planner> planner;
  DrainGate gate;
  Admission admission{limits, &gate, TimeSource::Steady()};
  const std::shared_ptr<ClientAccounts> client = std::make_shared<ClientAccounts>(
      std::make_shared<Account>("anonymous", Rights{}, /*shared=*/true), 1);
};

void Parse(benchmark::State& state, const v1::Batch& message) {
  const std::string bytes = message.SerializeAsString();
  v1::Batch parsed;
  for (auto _ : state) {
    benchmark::DoNotOptimize(parsed.ParseFromString(bytes));
  }
  state.SetItemsProcessed(state.iterations() * kTasks);
}

void Translate(benchmark::State& state, const v1::Batch& message) {
  World world;
  for (auto _ : state) {
    auto batch = world.Translate(message);
    if (!batch.ok()) state.SkipWithError(std::string(batch.status().message()).c_str());
    benchmark::DoNotOptimize(batch);
  }
  state.SetItemsProcessed(state.iterations() * kTasks);
}

void Answer(benchmark::State& state, const v1::Batch& message) {
  World world;
  const auto batch = *world.Translate(message);
  if (!batch->range) {
    batch->status.assign(kTasks, TaskStatus::kOk);
    batch->device_ns.assign(kTasks, 700);
    batch->detail.assign(kTasks, 0);
  }
  batch->finished = batch->count();
  std::string bytes;
  for (auto _ : state) {
    v1::BatchResult result;
    BuildResult(*batch, &result);
    result.SerializeToString(&bytes);
  }
  state.SetItemsProcessed(state.iterations() * kTasks);
}

BENCHMARK_CAPTURE(Parse, inline_columns, InlineBatch());
BENCHMARK_CAPTURE(Parse, buffer_offsets, BufferBatch(true));
BENCHMARK_CAPTURE(Translate, inline_columns, InlineBatch());
BENCHMARK_CAPTURE(Translate, buffer_stride, BufferBatch(false));
BENCHMARK_CAPTURE(Translate, buffer_offsets, BufferBatch(true));
BENCHMARK_CAPTURE(Answer, inline_columns, InlineBatch());
BENCHMARK_CAPTURE(Answer, buffer_stride, BufferBatch(false));

}  // namespace
}  // namespace resident

BENCHMARK_MAIN();
