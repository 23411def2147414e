#include "server/models/model_instances.h"

#include <algorithm>
#include <utility>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/errors.h"
#include "runtime/graph/memory.h"
#include "server/buffers/buffers.h"
#include "server/core/task_chain.h"
#include "server/graphs/graph_memory.h"
#include "server/models/errors.h"
#include "server/workload/copy_workload.h"

namespace resident {
namespace {

using graph::TensorKind;

uint64_t RoundUp(uint64_t bytes, uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

constexpr uint64_t kDeviceAlignment = 256;
constexpr uint64_t kStagingAlignment = 64;

}  // namespace

// Maker: makes one instance. It checks the graph if that is necessary, allocates, and then lets
// tasks write the weights, unless another instance has them, and the image.
class ModelInstances::Maker : public std::enable_shared_from_this<Maker> {
 public:
  explicit Maker(std::shared_ptr<ModelInstances> owner)
      : owner_(std::move(owner)),
        graphs_(owner_->graphs_),
        core_(graphs_.core),
        parts_(owner_->parts_),
        instance_(std::make_unique<ModelInstance>()) {}

  // Any thread.
  void Cancel() {
    std::shared_ptr<TaskChain> chain;
    {
      absl::MutexLock lock(&mu_);
      cancelled_ = true;
      chain = chain_;
    }
    if (chain != nullptr) chain->Cancel();
  }

  void Start() {
    absl::StatusOr<LoadedGraph::Checked> found = parts_.graph->FindChecked(core_.registry);
    if (!found.ok()) return End(found.status());
    instance_->checked = *std::move(found);
    if (instance_->checked != nullptr) return Allocate();
    const auto posted = graphs_.checker.Post(
        {.holder = parts_.holder, .runs = true},
        [self = shared_from_this()](graph::CheckBudget& budget) -> absl::Status {
          ASSIGN_OR_RETURN(self->instance_->checked,
                           self->parts_.graph->Check(self->core_.registry, budget));
          return absl::OkStatus();
        },
        [self = shared_from_this()](const absl::Status& status) {
          if (!status.ok()) return self->End(status);
          self->core_.runner.Post([self] { self->Allocate(); });
        });
    if (!posted.ok()) End(posted.status());
  }

 private:
  void Allocate() {
    const absl::Status allocated = DoAllocate();
    if (!allocated.ok()) return End(allocated);
    next_ = copies_.begin();
    const auto chain = std::make_shared<TaskChain>(
        core_, parts_.client, [self = shared_from_this()] { return self->NextCopy(); },
        Clock::time_point::max(),
        [self = shared_from_this()](const absl::Status& status) { self->End(status); });
    bool cancelled = false;
    {
      absl::MutexLock lock(&mu_);
      cancelled = cancelled_;
      if (!cancelled) chain_ = chain;
    }
    if (cancelled) return End(errors::Cancelled());
    chain->Start();
  }

  absl::Status DoAllocate() {
    ASSIGN_OR_RETURN(const Placement place, Place(core_.devices, parts_.device));
    instance_->independent_rows = FindRows(*instance_->checked, parts_.interface).independent();
    instance_->epoch = place.session->epoch();
    const graph::Graph& graph = instance_->checked->graph;
    instance_->quanta = GraphQuanta::Create(MakeQuantumSources(core_), *instance_->checked,
                                            graph::StreamRecords(), place);
    if (instance_->quanta == nullptr) return errors::ModelNeedsGraphsInEngine(parts_.device);
    RETURN_IF_ERROR(CheckNeeds(graph));
    std::vector<uint64_t> addresses(graph.tensors.size());
    RETURN_IF_ERROR(AllocateWeights(addresses));
    RETURN_IF_ERROR(AllocateActivations(graph, addresses));
    RETURN_IF_ERROR(AllocateStaging(place, addresses));
    ASSIGN_OR_RETURN(image_, AllocateBytes(instance_->quanta->device_bytes()));
    Keep(image_, instance_->activations);
    return instance_->quanta->PlaceAt(addresses, image_);
  }

  absl::Status CheckNeeds(const graph::Graph& graph) const {
    graph::MemorySum needs;
    const std::vector<uint64_t> bytes = graph::RunBytes(graph);
    for (uint32_t i = 0; i < graph.tensors.size(); ++i) {
      const graph::Tensor& tensor = graph.tensors[i];
      if (tensor.root == i && !InStaging(tensor.kind)) needs.Add(tensor.kind, bytes[i]);
    }
    needs.Add("the graph itself", instance_->quanta->device_bytes());
    return CheckDeviceMemory(graphs_.buffers, parts_.device, needs);
  }

  static bool InStaging(TensorKind kind) {
    return kind == TensorKind::kInput || kind == TensorKind::kOutput;
  }

  // Memory of the device that no client can name.
  absl::StatusOr<std::shared_ptr<const Buffer>> AllocateBytes(uint64_t bytes) {
    BufferSpec spec;
    spec.dtype = DType::kU8;
    spec.shape = {static_cast<int64_t>(bytes)};
    spec.internal = true;
    return AllocateBuffer(core_, *parts_.client, parts_.device, spec);
  }

  // Lets `hold` free the buffer, in addition to what it frees.
  void Keep(const std::shared_ptr<const Buffer>& buffer, std::shared_ptr<const void>& hold) {
    hold = std::shared_ptr<const void>(
        nullptr, [core = &core_, client = parts_.client, id = buffer->id,
                  before = std::move(hold)](const void*) {
          // NOT_FOUND: its engine has ended.
          core->buffers.Free(BufferTable::InternalAccess(client->id()), id).IgnoreError();
        });
  }

  absl::Status AllocateWeights(std::vector<uint64_t>& addresses) {
    const std::vector<uint32_t>& tensors = parts_.interface.weights;
    DeviceWeights& shared = owner_->device_weights_;
    instance_->weights = shared.memory.lock();
    if (instance_->weights == nullptr || shared.epoch != instance_->epoch) {
      shared = {.epoch = instance_->epoch, .memory = {}, .addresses = {}};
      uint64_t bytes = 0;
      for (const std::string& weight : parts_.weights) {
        shared.addresses.push_back(bytes);
        bytes += RoundUp(weight.size(), kDeviceAlignment);
      }
      instance_->weights = nullptr;
      if (bytes > 0) {
        ASSIGN_OR_RETURN(const auto buffer, AllocateBytes(bytes));
        Keep(buffer, instance_->weights);
        shared.memory = instance_->weights;
        for (size_t i = 0; i < tensors.size(); ++i) {
          copies_.push_back({buffer, shared.addresses[i], &parts_.weights[i]});
          shared.addresses[i] += buffer->memory->address;
        }
      }
    }
    for (size_t i = 0; i < tensors.size(); ++i) addresses[tensors[i]] = shared.addresses[i];
    return absl::OkStatus();
  }

  absl::Status AllocateActivations(const graph::Graph& graph, std::vector<uint64_t>& addresses) {
    const std::vector<uint64_t> bytes = graph::RunBytes(graph);
    uint64_t total = 0;
    for (uint32_t i = 0; i < graph.tensors.size(); ++i) {
      if (graph.tensors[i].root != i || graph.tensors[i].kind != TensorKind::kActivation) continue;
      addresses[i] = total;
      total += RoundUp(bytes[i], kDeviceAlignment);
    }
    if (total == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const auto buffer, AllocateBytes(total));
    Keep(buffer, instance_->activations);
    for (uint32_t i = 0; i < graph.tensors.size(); ++i) {
      if (graph.tensors[i].root != i || graph.tensors[i].kind != TensorKind::kActivation) continue;
      addresses[i] += buffer->memory->address;
    }
    return absl::OkStatus();
  }

  absl::Status AllocateStaging(const Placement& place, std::vector<uint64_t>& addresses) {
    uint64_t bytes = RoundUp(instance_->quanta->quantum_bytes(), kStagingAlignment);
    const auto add = [&](const std::vector<ModelPort>& ports, std::vector<uint64_t>& offsets) {
      for (const ModelPort& port : ports) {
        offsets.push_back(bytes);
        bytes += RoundUp(port.bytes, kStagingAlignment);
      }
    };
    add(parts_.interface.inputs, instance_->inputs);
    add(parts_.interface.outputs, instance_->outputs);
    Needs needs;
    needs.device = parts_.device;
    needs.session = place.session;
    needs.staging_bytes = bytes;
    needs.standing = true;
    auto ticket = core_.admission.TryAcquire(parts_.client->accounts(), needs);
    if (!ticket.ok()) {
      return absl::IsResourceExhausted(ticket.status())
                 ? errors::ModelStagingFull(bytes, core_.admission.staging_used(parts_.device))
                 : ticket.status();
    }
    instance_->staging = *std::move(ticket);
    const uint64_t base = instance_->staging.staging()->address;
    for (size_t i = 0; i < instance_->inputs.size(); ++i) {
      addresses[parts_.interface.inputs[i].tensor] = base + instance_->inputs[i];
    }
    for (size_t i = 0; i < instance_->outputs.size(); ++i) {
      addresses[parts_.interface.outputs[i].tensor] = base + instance_->outputs[i];
    }
    return absl::OkStatus();
  }

  // The next piece of the weights, then of the image; null: that was the last one.
  std::unique_ptr<Workload> NextCopy() {
    const PlanSources& sources = core_.planner.sources();
    const uint64_t piece = core_.admission.PieceBytes(parts_.device, kCopyPieceBytes);
    while (next_ != copies_.end()) {
      if (done_ == next_->bytes->size()) {
        ++next_;
        done_ = 0;
        continue;
      }
      std::string bytes = next_->bytes->substr(done_, piece);
      CopyWorkload::Part to{next_->to, next_->offset + done_};
      done_ += bytes.size();
      return CopyWorkload::WriteData(sources, std::move(to), std::move(bytes));
    }
    if (image_done_ == instance_->quanta->image_bytes()) {
      instance_->quanta->ReleaseImage();
      return nullptr;
    }
    std::string bytes = instance_->quanta->TakeImage(image_done_, piece);
    CopyWorkload::Part to{image_, image_done_};
    image_done_ += bytes.size();
    return CopyWorkload::WriteData(sources, std::move(to), std::move(bytes));
  }

  void End(const absl::Status& status) {
    {
      absl::MutexLock lock(&mu_);
      chain_ = nullptr;  // It refers to this object.
    }
    image_ = nullptr;
    copies_.clear();
    if (status.ok()) return owner_->OnMade(std::move(instance_));
    instance_ = nullptr;
    owner_->OnMade(status);
  }

  struct Copy {
    std::shared_ptr<const Buffer> to;
    uint64_t offset;
    const std::string* bytes;
  };

  const std::shared_ptr<ModelInstances> owner_;
  Graphs& graphs_;
  Core& core_;
  const Parts& parts_;
  std::unique_ptr<ModelInstance> instance_;
  std::shared_ptr<const Buffer> image_;
  std::vector<Copy> copies_;
  std::vector<Copy>::iterator next_;
  uint64_t done_ = 0;
  uint64_t image_done_ = 0;

  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<TaskChain> chain_ ABSL_GUARDED_BY(mu_);  // While its tasks run.
};

uint64_t ModelInstances::weight_bytes() const {
  uint64_t bytes = 0;
  for (const std::string& weight : parts_.weights) bytes += weight.size();
  return bytes;
}

uint64_t ModelInstances::max_batch() const {
  if (!rows_.independent()) return 0;
  const uint64_t max = parts_.max_combined_rows == 0
                           ? rows_.max
                           : std::min<uint64_t>(rows_.max, parts_.max_combined_rows);
  return max > 1 ? max : 0;
}

bool ModelInstances::AllBusy() const {
  absl::MutexLock lock(&mu_);
  return free_.empty() && count_ >= parts_.max_instances;
}

uint32_t ModelInstances::count() const {
  absl::MutexLock lock(&mu_);
  return count_;
}

absl::StatusOr<std::unique_ptr<ModelInstance>> ModelInstances::TryTake(
    const LoadedGraph::Checked& checked, uint64_t epoch) {
  std::vector<std::unique_ptr<ModelInstance>> unfit;
  std::unique_ptr<ModelInstance> taken;
  absl::Status failed;
  {
    absl::MutexLock lock(&mu_);
    while (taken == nullptr && !free_.empty()) {
      std::unique_ptr<ModelInstance> instance = std::move(free_.back());
      free_.pop_back();
      if (instance->checked == checked && instance->epoch == epoch) {
        taken = std::move(instance);
      } else {
        --count_;
        unfit.push_back(std::move(instance));
      }
    }
    if (taken == nullptr && !making_) {
      const bool recent = !failed_.ok() && Clock::now() - failed_at_ < kRetryAfter;
      if (recent && count_ == 0) failed = failed_;
      if (!recent && count_ < parts_.max_instances) StartMaking();
    }
  }
  if (!unfit.empty()) Drop(std::move(unfit));
  RETURN_IF_ERROR(failed);
  return taken;
}

void ModelInstances::Return(std::unique_ptr<ModelInstance> instance) {
  std::vector<std::unique_ptr<ModelInstance>> unfit;
  {
    absl::MutexLock lock(&mu_);
    if (!instance->quanta->in_step()) {
      free_.push_back(std::move(instance));
      return;
    }
    --count_;
    unfit.push_back(std::move(instance));
  }
  Drop(std::move(unfit));
}

void ModelInstances::MakeFirst(std::function<void(const absl::Status& status)> done) {
  absl::MutexLock lock(&mu_);
  assert(!making_ && count_ == 0);
  first_ = std::move(done);
  StartMaking();
}

void ModelInstances::CancelMaking() {
  std::shared_ptr<Maker> maker;
  {
    absl::MutexLock lock(&mu_);
    maker = maker_;
  }
  if (maker != nullptr) maker->Cancel();
}

void ModelInstances::StartMaking() {
  making_ = true;
  maker_ = std::make_shared<Maker>(shared_from_this());
  graphs_.core.runner.Post([maker = maker_] { maker->Start(); });
}

void ModelInstances::OnMade(absl::StatusOr<std::unique_ptr<ModelInstance>> made) {
  std::function<void(const absl::Status&)> first;
  std::shared_ptr<Maker> maker;  // Destroyed without the lock.
  const absl::Status status = made.status();
  {
    absl::MutexLock lock(&mu_);
    making_ = false;
    maker = std::move(maker_);
    failed_ = status;
    failed_at_ = Clock::now();
    if (made.ok()) {
      ++count_;
      free_.push_back(*std::move(made));
    }
    first = std::exchange(first_, nullptr);
  }
  graphs_.core.admission.Wake();
  if (first != nullptr) first(status);
}

void ModelInstances::Drop(std::vector<std::unique_ptr<ModelInstance>> instances) {
  // A function object can be copied, and instances cannot.
  const auto held =
      std::make_shared<std::vector<std::unique_ptr<ModelInstance>>>(std::move(instances));
  graphs_.core.runner.Post([held, self = shared_from_this()] { held->clear(); });
}

}  // namespace resident
