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
#include "server/models/model_rows.h"
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

// Maker: makes one instance. It makes the plan and checks its graph if that is necessary,
// allocates, and then lets tasks write the weights, unless another instance has them, and the
// image.
class ModelInstances::Maker : public std::enable_shared_from_this<Maker> {
 public:
  // `plan`: null: it is to be made.
  Maker(std::shared_ptr<ModelInstances> owner, std::shared_ptr<const ModelPlan> plan)
      : owner_(std::move(owner)),
        graphs_(owner_->graphs_),
        core_(graphs_.core),
        parts_(*owner_->parts_),
        instance_(std::make_unique<ModelInstance>()) {
    instance_->plan = std::move(plan);
  }

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
    if (instance_->plan != nullptr) {
      absl::StatusOr<LoadedGraph::Checked> found =
          instance_->plan->graph->FindChecked(core_.registry);
      if (!found.ok()) return End(found.status());
      instance_->checked = *std::move(found);
    }
    if (instance_->checked != nullptr) return Enter();
    const auto posted = graphs_.checker.Post(
        {.holder = parts_.holder, .runs = true},
        [self = shared_from_this()](graph::CheckBudget& budget) { return self->Check(budget); },
        [self = shared_from_this()](const absl::Status& status) {
          if (!status.ok()) return self->End(status);
          self->core_.runner.Post([self] { self->Enter(); });
        });
    if (!posted.ok()) End(posted.status());
  }

 private:
  absl::Status Check(graph::CheckBudget& budget) {
    if (instance_->plan == nullptr) {
      auto plan = Make(budget);
      // Plans that no request uses give way.
      while (absl::IsResourceExhausted(plan.status()) && DropOther(/*of_device=*/false)) {
        plan = Make(budget);
      }
      if (!plan.ok()) {
        return errors::ModelPlanFailed(SizesText(parts_.interface(), owner_->sizes_),
                                       plan.status());
      }
      instance_->plan = *std::move(plan);
      ASSIGN_OR_RETURN(instance_->checked, instance_->plan->graph->FindChecked(core_.registry));
      if (instance_->checked != nullptr) return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(instance_->checked, instance_->plan->graph->Check(core_.registry, budget));
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<const ModelPlan>> Make(graph::CheckBudget& budget) {
    return MakePlan(parts_, owner_->sizes_, core_.registry, budget, [this] {
      absl::MutexLock lock(&mu_);
      return cancelled_ || core_.gate.draining() || owner_->keeper_.expired();
    });
  }

  // For a plan that has no instance.
  bool DropOther(bool of_device) const {
    const auto keeper = owner_->keeper_.lock();
    return keeper != nullptr && owner_->count() == 0 && keeper->DropOther(*owner_, of_device);
  }

  // Waits for its turn among those who make instances of the version.
  void Enter() {
    keeper_ = owner_->keeper_.lock();
    if (keeper_ == nullptr) return End(errors::Cancelled());  // The version is gone.
    keeper_->Enter([self = shared_from_this()] { self->Allocate(); });
  }

  void Allocate() {
    absl::Status allocated = DoAllocate();
    while (absl::IsResourceExhausted(allocated)) {
      Undo();
      if (!DropOther(device_is_short_)) break;
      allocated = DoAllocate();
    }
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

  // Frees what was allocated.
  void Undo() {
    auto fresh = std::make_unique<ModelInstance>();
    fresh->plan = std::move(instance_->plan);
    fresh->checked = std::move(instance_->checked);
    instance_ = std::move(fresh);
    image_ = nullptr;
    copies_.clear();
  }

  absl::Status DoAllocate() {
    ASSIGN_OR_RETURN(const Placement place, Place(core_.devices, parts_.device));
    instance_->independent_rows =
        FindRows(*instance_->checked, instance_->interface()).independent();
    instance_->epoch = place.session->epoch();
    const graph::Graph& graph = instance_->checked->graph;
    instance_->quanta = GraphQuanta::Create(MakeQuantumSources(core_), *instance_->checked,
                                            graph::StreamRecords(), place);
    if (instance_->quanta == nullptr) return errors::ModelNeedsGraphsInEngine(parts_.device);
    RETURN_IF_ERROR(CheckNeeds(graph));
    std::vector<uint64_t> addresses(graph.tensors.size());
    RETURN_IF_ERROR(AllocateWeights(*parts_.weights, &instance_->weights));
    const std::shared_ptr<WeightSet>& own = instance_->plan->weights;
    if (own != nullptr) RETURN_IF_ERROR(AllocateWeights(*own, &instance_->own_weights));
    for (const uint32_t tensor : instance_->interface().weights) {
      const std::string name = graph.TensorName(tensor);
      const auto shared = parts_.weights->addresses.find(name);
      addresses[tensor] =
          shared != parts_.weights->addresses.end() ? shared->second : own->addresses.at(name);
    }
    RETURN_IF_ERROR(AllocateActivations(graph, addresses));
    RETURN_IF_ERROR(AllocateStaging(place, addresses));
    ASSIGN_OR_RETURN(image_, AllocateBytes(instance_->quanta->device_bytes()));
    instance_->memory_bytes += instance_->quanta->device_bytes();
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
    auto buffer = AllocateBuffer(core_, *parts_.client, parts_.device, spec);
    // Others need not give way for a quota of its identity.
    if (!buffer.ok()) device_is_short_ = ReserveBufferBytes(*parts_.client, &spec).ok();
    return buffer;
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

  // Sets what frees the weights on the device, which are there unless no instance has them.
  absl::Status AllocateWeights(WeightSet& set, std::shared_ptr<const void>* hold) {
    *hold = set.memory.lock();
    // It points to nothing, and only counts.
    if (hold->use_count() > 0 && set.epoch == instance_->epoch) return absl::OkStatus();
    set.kept = nullptr;
    set.addresses.clear();
    set.epoch = instance_->epoch;
    *hold = nullptr;
    uint64_t bytes = 0;
    for (const auto& [tensor, content] : set.contents) {
      set.addresses[tensor] = bytes;
      bytes += RoundUp(content.size(), kDeviceAlignment);
    }
    if (bytes == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const auto buffer, AllocateBytes(bytes));
    Keep(buffer, *hold);
    set.memory = *hold;
    for (const auto& [tensor, content] : set.contents) {
      copies_.push_back({buffer, set.addresses[tensor], &content});
      set.addresses[tensor] += buffer->memory->address;
    }
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
    instance_->memory_bytes += total;
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
    add(instance_->interface().inputs, instance_->inputs);
    add(instance_->interface().outputs, instance_->outputs);
    Needs needs;
    needs.device = parts_.device;
    needs.session = place.session;
    needs.staging_bytes = bytes;
    needs.standing = true;
    auto ticket = core_.admission.TryAcquire(parts_.client->accounts(), needs);
    if (!ticket.ok()) {
      device_is_short_ = true;
      return absl::IsResourceExhausted(ticket.status())
                 ? errors::ModelStagingFull(bytes, core_.admission.staging_used(parts_.device))
                 : ticket.status();
    }
    instance_->staging = *std::move(ticket);
    instance_->memory_bytes += bytes;
    const uint64_t base = instance_->staging.staging()->address;
    for (size_t i = 0; i < instance_->inputs.size(); ++i) {
      addresses[instance_->interface().inputs[i].tensor] = base + instance_->inputs[i];
    }
    for (size_t i = 0; i < instance_->outputs.size(); ++i) {
      addresses[instance_->interface().outputs[i].tensor] = base + instance_->outputs[i];
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
    // With plans that come and go, the weights stay.
    if (status.ok() && parts_.source != nullptr) parts_.weights->kept = instance_->weights;
    std::unique_ptr<ModelInstance> made = std::move(instance_);
    if (!status.ok()) made = nullptr;
    const auto keeper = std::move(keeper_);
    if (keeper != nullptr) keeper->Leave();
    if (!status.ok()) return owner_->OnMade(status);
    owner_->OnMade(std::move(made));
  }

  struct Copy {
    std::shared_ptr<const Buffer> to;
    uint64_t offset;
    const std::string* bytes;
  };

  const std::shared_ptr<ModelInstances> owner_;
  Graphs& graphs_;
  Core& core_;
  const ModelParts& parts_;
  std::unique_ptr<ModelInstance> instance_;
  std::shared_ptr<PlanKeeper> keeper_;  // Once it waits for its turn, or has it.
  std::shared_ptr<const Buffer> image_;
  std::vector<Copy> copies_;
  std::vector<Copy>::iterator next_;
  uint64_t done_ = 0;
  uint64_t image_done_ = 0;
  bool device_is_short_ = false;  // If memory could not be allocated: of the device.

  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<TaskChain> chain_ ABSL_GUARDED_BY(mu_);  // While its tasks run.
};

bool ModelInstances::AllBusy() const {
  absl::MutexLock lock(&mu_);
  return free_.empty() && count_ >= parts_->max_instances;
}

uint32_t ModelInstances::count() const {
  absl::MutexLock lock(&mu_);
  return count_;
}

uint64_t ModelInstances::memory_bytes() const {
  absl::MutexLock lock(&mu_);
  return memory_bytes_;
}

bool ModelInstances::ready() const {
  absl::MutexLock lock(&mu_);
  return plan_ != nullptr;
}

bool ModelInstances::present() const {
  absl::MutexLock lock(&mu_);
  return plan_ != nullptr || making_;
}

void ModelInstances::Describe(v1::ModelPlan* out) const {
  absl::MutexLock lock(&mu_);
  for (const int64_t size : sizes_) out->add_sizes(static_cast<uint64_t>(size));
  out->set_instances(count_);
  out->set_memory_bytes(memory_bytes_);
  if (plan_ == nullptr) return;
  out->set_nodes(plan_->graph->nodes());
  if (plan_->weights != nullptr) out->set_memory_bytes(memory_bytes_ + plan_->weights->bytes());
}

absl::StatusOr<std::unique_ptr<ModelInstance>> ModelInstances::TryTake(uint64_t epoch) {
  DroppedInstances unfit;
  std::unique_ptr<ModelInstance> taken;
  absl::Status failed;
  bool wants_more = false;
  {
    absl::MutexLock lock(&mu_);
    LoadedGraph::Checked checked;
    if (plan_ != nullptr) {
      ASSIGN_OR_RETURN(checked, plan_->graph->FindChecked(graphs_.core.registry));
    }
    while (taken == nullptr && !free_.empty()) {
      std::unique_ptr<ModelInstance> instance = std::move(free_.back());
      free_.pop_back();
      if (instance->checked == checked && instance->epoch == epoch) {
        taken = std::move(instance);
      } else {
        --count_;
        memory_bytes_ -= instance->memory_bytes;
        unfit.push_back(std::move(instance));
      }
    }
    if (taken == nullptr && !making_) {
      const bool recent = !failed_.ok() && Clock::now() - failed_at_ < kRetryAfter;
      if (recent && count_ == 0) failed = failed_;
      wants_more = !recent && count_ < parts_->max_instances;
    }
  }
  if (const auto keeper = keeper_.lock(); wants_more && keeper != nullptr) {
    keeper->Admit(*this, &unfit);
  }
  if (!unfit.empty()) DestroyLater(std::move(unfit));
  RETURN_IF_ERROR(failed);
  return taken;
}

void ModelInstances::Return(std::unique_ptr<ModelInstance> instance) {
  DroppedInstances unfit;
  {
    absl::MutexLock lock(&mu_);
    if (!instance->quanta->in_step()) {
      free_.push_back(std::move(instance));
      return;
    }
    --count_;
    memory_bytes_ -= instance->memory_bytes;
    unfit.push_back(std::move(instance));
  }
  DestroyLater(std::move(unfit));
}

void ModelInstances::MakeFirst(std::function<void(const absl::Status& status)> done) {
  absl::MutexLock lock(&mu_);
  assert(!making_ && count_ == 0);
  first_ = std::move(done);
  StartMaking();
}

void ModelInstances::MakeAnother() {
  absl::MutexLock lock(&mu_);
  if (!making_ && count_ < parts_->max_instances) StartMaking();
}

void ModelInstances::CancelMaking() {
  std::shared_ptr<Maker> maker;
  {
    absl::MutexLock lock(&mu_);
    maker = maker_;
  }
  if (maker != nullptr) maker->Cancel();
}

bool ModelInstances::Drop(bool gives_way, DroppedInstances* dropped) {
  std::shared_ptr<const ModelPlan> plan;  // Destroyed without the lock.
  absl::MutexLock lock(&mu_);
  if (making_ || count_ > free_.size()) return false;
  if (fixed_ && (!gives_way || count_ == 0)) return false;
  if (gives_way && line_.waiting.load() > 0) return false;
  for (std::unique_ptr<ModelInstance>& instance : free_) dropped->push_back(std::move(instance));
  free_.clear();
  count_ = 0;
  memory_bytes_ = 0;
  if (!fixed_) plan = std::move(plan_);
  return true;
}

void ModelInstances::StartMaking() {
  making_ = true;
  maker_ = std::make_shared<Maker>(shared_from_this(), plan_);
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
      memory_bytes_ += (*made)->memory_bytes;
      plan_ = (*made)->plan;
      free_.push_back(*std::move(made));
    }
    first = std::exchange(first_, nullptr);
  }
  graphs_.core.admission.Wake();
  if (first != nullptr) first(status);
}

void ModelInstances::DestroyLater(DroppedInstances instances) {
  // A function object can be copied, and instances cannot.
  const auto held = std::make_shared<DroppedInstances>(std::move(instances));
  graphs_.core.runner.Post([held, self = shared_from_this()] { held->clear(); });
}

}  // namespace resident
