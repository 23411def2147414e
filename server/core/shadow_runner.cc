#include "server/core/shadow_runner.h"

#include <cassert>
#include <cstring>
#include <utility>

#include "runtime/base/limits.h"

namespace resident {
namespace {

// The queues' client for twins; the ids of all other clients are far smaller.
constexpr ClientId kShadowClient = UINT64_MAX - 1;
// Device memory is aligned to this.
constexpr uint64_t kOutputAlignment = 256;

// Points argument c of task i to `address`.
void SetAddress(Batch& batch, size_t i, uint32_t c, uint64_t address) {
  if (batch.arguments_per_task == 0) {
    batch.tasks[i].set_compact_argument(c, address);
  } else {
    batch.arguments[i * batch.arguments_per_task + c].tensor.address = address;
  }
}

// Argument c of task i as a tensor.
TensorArgument MakeTensor(Batch& batch, size_t i, uint32_t c) {
  if (batch.arguments_per_task != 0) {
    return batch.arguments[i * batch.arguments_per_task + c].tensor;
  }
  TensorArgument tensor;
  std::memset(&tensor, 0, sizeof(tensor));
  tensor.address = batch.tasks[i].compact_argument(c);
  tensor.dtype = DType::kF32;
  tensor.rank = 1;
  tensor.shape[0] = static_cast<int64_t>(batch.tasks[i].elements());
  tensor.strides[0] = 1;
  return tensor;
}

uint64_t CountBytes(const TensorArgument& tensor) {
  uint64_t elements = 1;
  for (uint32_t d = 0; d < tensor.rank; ++d) elements *= static_cast<uint64_t>(tensor.shape[d]);
  const uint64_t bytes = elements * SizeOf(tensor.dtype);
  return (bytes + kOutputAlignment - 1) / kOutputAlignment * kOutputAlignment;
}

}  // namespace

struct ShadowRunner::Trial {
  std::shared_ptr<RequestBatch> batch;
  std::function<void()> done;
  std::shared_ptr<Batch> twin;
  std::shared_ptr<Batch> comparison;
  // For each task of the comparison, the index of the batch's task.
  std::vector<size_t> compared;
};

ShadowRunner::ShadowRunner(const Registry& registry, std::vector<Device*> devices,
                           WorkerPool& after, Record record)
    : registry_(registry), devices_(std::move(devices)), after_(after), record_(std::move(record)) {
  for (Device* device : devices_) device->queue().AddClient(kShadowClient);
}

void ShadowRunner::Run(std::shared_ptr<RequestBatch> batch, std::function<void()> done) {
  assert(batch->shadow != nullptr);
  auto trial = std::make_shared<Trial>();
  trial->batch = std::move(batch);
  trial->done = std::move(done);
  // Posted, because sizing and copying the tasks of a large batch takes long, and the dispatch loop
  // calls this function.
  after_.Post([this, trial] {
    if (!StartTwin(trial)) trial->done();
  });
}

bool ShadowRunner::Enqueue(uint32_t device, const std::shared_ptr<Batch>& batch,
                           std::function<void()> then) {
  // `then` refers to the batch. It is moved out when it is called, so that they do not keep each
  // other alive.
  auto once = std::make_shared<std::function<void()>>(std::move(then));
  batch->done = [this, once](Batch&) { after_.Post(std::exchange(*once, nullptr)); };
  const bool taken = devices_[device]->queue().Enqueue(kShadowClient, batch).ok();
  if (!taken) *once = nullptr;
  return taken;
}

bool ShadowRunner::StartTwin(const std::shared_ptr<Trial>& trial) {
  RequestBatch& batch = *trial->batch;
  if (batch.work != nullptr && !batch.work->WantsShadow(batch)) return false;
  const std::shared_ptr<EngineSession> session = devices_[batch.device]->session();
  if (session == nullptr || session->epoch() != batch.epoch) return false;
  uint64_t bytes = 0;
  for (size_t i = 0; i < batch.tasks.size(); ++i) {
    for (const uint32_t output : batch.shadow_outputs)
      bytes += CountBytes(MakeTensor(batch, i, output));
  }
  if (bytes > kMaxShadowBytes) return false;
  const auto memory = session->AllocateMemory(std::max<uint64_t>(bytes, 1));
  if (!memory.ok()) return false;

  trial->twin = std::make_shared<Batch>();
  Batch& twin = *trial->twin;
  twin.tasks = batch.tasks;
  twin.arguments_per_task = batch.arguments_per_task;
  twin.arguments = batch.arguments;
  twin.epoch = batch.epoch;
  twin.stats = batch.shadow->stats[batch.device].get();
  twin.keep_alive = {*memory, batch.shadow};
  uint64_t address = (*memory)->address;
  for (size_t i = 0; i < twin.tasks.size(); ++i) {
    twin.tasks[i].operator_slot = static_cast<u16>(batch.shadow->slot);
    twin.tasks[i].flags &= static_cast<u8>(~kTaskDeviceOutputs);
    for (const uint32_t output : batch.shadow_outputs) {
      const uint64_t size = CountBytes(MakeTensor(twin, i, output));
      SetAddress(twin, i, output, address);
      address += size;
    }
  }
  return Enqueue(batch.device, trial->twin, [this, trial] {
    if (!StartComparison(trial)) trial->done();
  });
}

bool ShadowRunner::StartComparison(const std::shared_ptr<Trial>& trial) {
  RequestBatch& batch = *trial->batch;
  Batch& twin = *trial->twin;
  const auto compare = registry_.Resolve(kCompareOperator, 0);
  if (!compare.ok()) return false;
  trial->comparison = std::make_shared<Batch>();
  Batch& comparison = *trial->comparison;
  for (size_t i = 0; i < batch.tasks.size(); ++i) {
    // A twin that was lost with its engine is no evidence against the version here. If the version
    // caused the loss, it is quarantined separately.
    if (twin.status[i] == TaskStatus::kUnavailable || twin.status[i] == TaskStatus::kAborted) {
      return false;
    }
    if (batch.status[i] != TaskStatus::kOk || twin.status[i] != TaskStatus::kOk) continue;
    for (const uint32_t output : batch.shadow_outputs) {
      TaskDescriptor task{};
      task.operator_slot = static_cast<u16>(compare->version->slot);
      task.set_argument_count(2);
      comparison.tasks.push_back(task);
      trial->compared.push_back(i);
      for (Batch* side : {static_cast<Batch*>(&batch), &twin}) {
        Argument argument;
        std::memset(&argument, 0, sizeof(argument));
        argument.tensor = MakeTensor(*side, i, output);
        comparison.arguments.push_back(argument);
      }
    }
  }
  if (comparison.tasks.empty()) {
    Finish(*trial);
    return false;
  }
  comparison.arguments_per_task = 2;
  comparison.wants_results = true;
  comparison.epoch = batch.epoch;
  comparison.stats = compare->stats(batch.device);
  comparison.keep_alive = {compare->version};
  return Enqueue(batch.device, trial->comparison, [this, trial] {
    Finish(*trial);
    trial->done();
  });
}

void ShadowRunner::Finish(const Trial& trial) {
  const RequestBatch& batch = *trial.batch;
  std::vector<bool> differs(batch.tasks.size(), false);
  for (size_t i = 0; i < batch.tasks.size(); ++i) {
    differs[i] = trial.twin->status[i] != TaskStatus::kOk;
  }
  for (size_t k = 0; k < trial.compared.size(); ++k) {
    if (trial.comparison->status[k] != TaskStatus::kOk) return;  // The engine has ended.
    uint64_t mismatches = 0;
    std::memcpy(&mismatches, trial.comparison->results[k].data(), sizeof(mismatches));
    if (mismatches != 0) differs[trial.compared[k]] = true;
  }
  uint64_t tasks = 0, mismatches = 0;
  for (size_t i = 0; i < batch.tasks.size(); ++i) {
    if (batch.status[i] != TaskStatus::kOk) continue;
    ++tasks;
    if (differs[i]) ++mismatches;
  }
  const OperatorVersion& judged = batch.judged == nullptr ? *batch.shadow : *batch.judged;
  if (tasks != 0) record_(judged, tasks, mismatches);
}

}  // namespace resident
