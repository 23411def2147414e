// What a batch costs between the message's bytes and the ring, and back:
//
//   bazel run -c opt //server/translation:translation_benchmark
//
// The baseline is parsing the message alone, which any server would have to do.
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "server/translation/batch_translator.h"
#include "server/translation/fake_device.h"
#include "server/translation/result_builder.h"

namespace resident {
namespace {

constexpr uint32_t kTasks = 1024;
constexpr ClientId kClient = 1;

// kTasks additions of 16 floats: inline and returned, or in one buffer each, by
// offsets.
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
    translator = std::make_unique<BatchTranslator>(
        BatchTranslator::Sources{&limits,
                                 registry.get(),
                                 buffers.get(),
                                 {{&device, std::make_shared<WindowGate>(64 << 20)}}});
  }
  Limits limits;
  FakeDevice device;
  std::unique_ptr<Registry> registry;
  std::unique_ptr<BufferTable> buffers;
  std::unique_ptr<BatchTranslator> translator;
  std::vector<std::shared_ptr<WindowUse>> use{std::make_shared<WindowUse>()};
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
  const Caller caller{kClient, &world.use};
  for (auto _ : state) {
    auto batch = world.translator->Translate(message, caller);
    if (!batch.ok()) state.SkipWithError(std::string(batch.status().message()).c_str());
    benchmark::DoNotOptimize(batch);
  }
  state.SetItemsProcessed(state.iterations() * kTasks);
}

void Answer(benchmark::State& state, const v1::Batch& message) {
  World world;
  const Caller caller{kClient, &world.use};
  const auto batch = *world.translator->Translate(message, caller);
  batch->status.assign(kTasks, TaskStatus::kOk);
  batch->device_ns.assign(kTasks, 700);
  batch->detail.assign(kTasks, 0);
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
