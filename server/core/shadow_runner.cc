#include "server/core/shadow_runner.h"

#include <cassert>
#include <cstddef>
#include <cstring>
#include <optional>
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
  // The outputs of the twin.
  std::shared_ptr<const DeviceMemory> memory;
  // The tasks of the batch that the twin runs.
  std::vector<size_t> tasks;
  std::shared_ptr<Batch> twin;
  std::shared_ptr<Batch> comparison;
  // For each task of the comparison, the twin's task.
  std::vector<size_t> compared;
  // Of the twin on the version on trial. Once they are known, the twin is the second one, on the
  // batch's own version, of the tasks that differ.
  std::optional<uint64_t> compared_tasks;
};

ShadowRunner::ShadowRunner(const Registry& registry, std::vector<Device*> devices,
                           WorkerPool& after, Record record)
    : registry_(registry),
      devices_(std::move(devices)),
      after_(after),
      record_(std::move(record)),
      twin_bytes_(std::make_shared<std::vector<std::atomic<uint64_t>>>(devices_.size())) {
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
    if (!TakeMemory(*trial) || !StartTwin(trial, trial->batch->shadow.get())) trial->done();
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

bool ShadowRunner::TakeMemory(Trial& trial) {
  RequestBatch& batch = *trial.batch;
  if (batch.work != nullptr && !batch.work->WantsShadow(batch)) return false;
  const std::shared_ptr<EngineSession> session = devices_[batch.device]->session();
  if (session == nullptr || session->epoch() != batch.epoch) return false;
  uint64_t bytes = 1;
  for (size_t i = 0; i < batch.tasks.size(); ++i) {
    if (batch.status[i] != TaskStatus::kOk) continue;
    trial.tasks.push_back(i);
    for (const uint32_t output : batch.shadow_outputs)
      bytes += CountBytes(MakeTensor(batch, i, output));
  }
  if (trial.tasks.empty() || bytes > kMaxShadowBytes) return false;
  std::atomic<uint64_t>& used = (*twin_bytes_)[batch.device];
  if (used.fetch_add(bytes) + bytes > kMaxShadowBytes) {
    used -= bytes;
    return false;
  }
  auto memory = session->AllocateMemory(bytes);
  if (!memory.ok()) {
    used -= bytes;
    return false;
  }
  const DeviceMemory* const outputs = memory->get();
  trial.memory = std::shared_ptr<const DeviceMemory>(
      outputs, [memory = *std::move(memory), all = twin_bytes_, device = batch.device,
                bytes](const DeviceMemory*) mutable {
        memory = nullptr;
        (*all)[device] -= bytes;
      });
  return true;
}

bool ShadowRunner::StartTwin(const std::shared_ptr<Trial>& trial, const OperatorVersion* version) {
  RequestBatch& batch = *trial->batch;
  if (batch.cancelled) return false;
  const uint32_t arguments = batch.arguments_per_task;
  trial->twin = std::make_shared<Batch>();
  Batch& twin = *trial->twin;
  twin.arguments_per_task = arguments;
  twin.deadline = batch.deadline;
  twin.task_bound_ns = batch.task_bound_ns;
  twin.long_tasks = batch.long_tasks;
  twin.epoch = batch.epoch;
  if (version != nullptr) twin.stats = version->stats[batch.device].get();
  twin.keep_alive = {trial->memory, batch.shadow};
  twin.tasks.reserve(trial->tasks.size());
  twin.arguments.reserve(trial->tasks.size() * arguments);
  uint64_t address = trial->memory->address;
  for (const size_t i : trial->tasks) {
    TaskDescriptor& task = twin.tasks.emplace_back(batch.tasks[i]);
    if (version != nullptr) task.operator_slot = static_cast<u16>(version->slot);
    task.flags &= static_cast<u8>(~kTaskDeviceOutputs);
    const auto first = batch.arguments.begin() + static_cast<ptrdiff_t>(i * arguments);
    twin.arguments.insert(twin.arguments.end(), first, first + arguments);
    for (const uint32_t output : batch.shadow_outputs) {
      const size_t index = twin.tasks.size() - 1;
      const uint64_t size = CountBytes(MakeTensor(twin, index, output));
      SetAddress(twin, index, output, address);
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
  trial->compared.clear();
  trial->comparison = std::make_shared<Batch>();
  Batch& comparison = *trial->comparison;
  for (size_t k = 0; k < trial->tasks.size(); ++k) {
    // A twin that was lost with its engine, or that came too late, is no evidence against the
    // version here. If the version caused the loss, it is quarantined separately.
    // One that exceeded its time limit, and was stopped, is.
    const bool too_slow = twin.status[k] == TaskStatus::kAborted && twin.detail[k] != 0;
    if (MayHaveRunInPart(twin.status[k]) && !too_slow) return false;
    if (twin.status[k] != TaskStatus::kOk) continue;
    for (const uint32_t output : batch.shadow_outputs) {
      TaskDescriptor task{};
      task.operator_slot = static_cast<u16>(compare->version->slot);
      task.set_argument_count(2);
      comparison.tasks.push_back(task);
      trial->compared.push_back(k);
      Argument argument;
      std::memset(&argument, 0, sizeof(argument));
      argument.tensor = MakeTensor(batch, trial->tasks[k], output);
      comparison.arguments.push_back(argument);
      argument.tensor = MakeTensor(twin, k, output);
      comparison.arguments.push_back(argument);
    }
  }
  if (comparison.tasks.empty()) return Judge(trial);
  comparison.arguments_per_task = 2;
  comparison.wants_results = true;
  comparison.epoch = batch.epoch;
  comparison.stats = compare->stats(batch.device);
  comparison.keep_alive = {compare->version};
  return Enqueue(batch.device, trial->comparison, [this, trial] {
    if (!Judge(trial)) trial->done();
  });
}

bool ShadowRunner::Judge(const std::shared_ptr<Trial>& trial) {
  const RequestBatch& batch = *trial->batch;
  std::vector<bool> differs(trial->tasks.size(), false);
  for (size_t k = 0; k < trial->tasks.size(); ++k) {
    differs[k] = trial->twin->status[k] != TaskStatus::kOk;
  }
  for (size_t c = 0; c < trial->compared.size(); ++c) {
    if (trial->comparison->status[c] != TaskStatus::kOk) return false;  // The engine has ended.
    uint64_t elements = 0;
    std::memcpy(&elements, trial->comparison->results[c].data(), sizeof(elements));
    if (elements != 0) differs[trial->compared[c]] = true;
  }
  std::vector<size_t> differing;
  for (size_t k = 0; k < trial->tasks.size(); ++k) {
    if (differs[k]) differing.push_back(trial->tasks[k]);
  }
  const OperatorVersion& judged = batch.judged == nullptr ? *batch.shadow : *batch.judged;
  if (trial->compared_tasks.has_value()) {
    // Those that differ from themselves are no evidence.
    const uint64_t tasks = *trial->compared_tasks - differing.size();
    if (tasks != 0) record_(judged, tasks, trial->tasks.size() - differing.size());
    return false;
  }
  if (differing.empty() || !batch.shadow_buffers) {
    record_(judged, trial->tasks.size(), differing.size());
    return false;
  }
  trial->compared_tasks = trial->tasks.size();
  trial->tasks = std::move(differing);
  return StartTwin(trial, nullptr);
}

}  // namespace resident
