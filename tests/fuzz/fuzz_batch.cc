// Fuzz target: data that a client can send, through the translation into the runtime's
// batches and back.
//
// An input is the bytes of a resident.v1.Batch, or (first byte odd) a recipe for a batch of
// nearly valid values, so that later checks are reached. For every accepted batch: each
// tensor of each task must be within the buffer that the client named or within the batch's
// staging memory; building the answer must read only existing memory (the fake memory has
// exact bounds, so a sanitizer detects a read past the end); nothing may leak.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "resident/v1/executor.pb.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/buffer_table.h"
#include "runtime/device/fake_device.h"
#include "runtime/operators/registry/registry.h"
#include "server/admission/admission.h"
#include "server/workload/planner.h"
#include "server/workload/result_builder.h"

namespace {

using namespace resident;

constexpr ClientId kClient = 1;
constexpr uint64_t kStagingBytes = 1 << 20;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "fuzz_batch: %s\n", what);
  std::abort();
}

// The environment of a batch: two devices and some buffers.
struct World {
  World() {
    limits.max_batch_tasks = 1000;
    registry = *Registry::Create({.devices = 2, .test_operators = true});
    buffers = std::make_unique<BufferTable>(limits);
    buffers->AddOwner(kClient);
    buffers->AddOwner(kClient + 1);
    Add(0, kClient, DType::kF32, {64});
    Add(0, kClient, DType::kF32, {8, 8});
    Add(0, kClient, DType::kU8, {7});
    Add(1, kClient, DType::kF32, {64});
    Add(0, kClient + 1, DType::kF32, {64});  // Another client's buffer.
    for (int d = 0; d < 2; ++d) admission.AddDevice(kStagingBytes);
    planner = std::make_unique<Planner>(PlanSources{.limits = &limits,
                                                    .registry = registry.get(),
                                                    .buffers = buffers.get(),
                                                    .devices = {&device0, &device1},
                                                    .staging_bytes = kStagingBytes});
  }

  void Add(uint32_t device, ClientId owner, DType dtype, Shape shape) {
    BufferSpec spec;
    spec.dtype = dtype;
    spec.shape = shape;
    spec.device = device;
    EngineSession& session = *(device == 0 ? device0 : device1).session();
    if (!buffers->Allocate(spec, owner, session).ok()) Fail("no buffer");
  }

  // Whether the client may access these bytes on the device.
  bool Allowed(uint32_t device, uint64_t address, uint64_t bytes, const RequestBatch& batch) {
    if (bytes == 0) return true;
    for (const auto& buffer : buffers->List(kClient)) {
      if (buffer->device == device && buffer->owner == kClient &&
          address >= buffer->memory->address &&
          address - buffer->memory->address <= buffer->size_bytes &&
          bytes <= buffer->size_bytes - (address - buffer->memory->address)) {
        return true;
      }
    }
    // If it is not a buffer, it must be memory of the batch.
    const StagingMemory* const staging = batch.ticket.staging();
    return staging != nullptr && address >= staging->address && bytes <= staging->size_bytes &&
           address - staging->address <= staging->size_bytes - bytes;
  }

  Limits limits;
  FakeDevice device0{0, 1 << 20, kStagingBytes};
  FakeDevice device1{1, 1 << 20, kStagingBytes};
  DrainGate gate;
  Admission admission{limits, &gate, TimeSource::Steady()};
  std::unique_ptr<Registry> registry;
  std::unique_ptr<BufferTable> buffers;
  std::unique_ptr<Planner> planner;
};

absl::StatusOr<std::shared_ptr<RequestBatch>> Translate(World& world, const v1::Batch& message) {
  ASSIGN_OR_RETURN(auto work, world.planner->Plan(message, kClient));
  ASSIGN_OR_RETURN(auto ticket,
                   world.admission.TryAcquire(
                       std::make_shared<ClientAccounts>(
                           std::make_shared<Account>("anonymous", Rights{}, /*shared=*/true), 2),
                       work->ResourcesNeeded()));
  return Planner::Fill(message, Clock::time_point::max(), std::move(work), std::move(ticket));
}

// Reads choices from the input; zeros after its end.
class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint32_t Byte() { return at_ < size_ ? data_[at_++] : 0; }
  uint32_t Below(uint32_t n) { return Byte() % n; }
  uint64_t Number() {
    static constexpr uint64_t kNumbers[] = {0,
                                            1,
                                            2,
                                            3,
                                            4,
                                            7,
                                            8,
                                            16,
                                            32,
                                            64,
                                            255,
                                            256,
                                            1u << 20,
                                            UINT32_MAX,
                                            uint64_t{1} << 40,
                                            uint64_t{1} << 62,
                                            UINT64_MAX,
                                            UINT64_MAX - 3};
    return kNumbers[Below(std::size(kNumbers))];
  }
  // Nearly always small, so that some batches are accepted.
  uint64_t Small() { return Below(8) == 0 ? Number() : Below(9); }
  std::string Bytes(size_t size) {
    std::string bytes(size < 4096 ? size : 4096, '\0');
    for (char& c : bytes) c = static_cast<char>(Byte());
    return bytes;
  }

 private:
  const uint8_t* const data_;
  const size_t size_;
  size_t at_ = 0;
};

template <typename Column>
void AddShape(Choices& choose, Column* column) {
  for (uint32_t rank = choose.Below(8) == 0 ? choose.Below(12) : choose.Below(3); rank > 0;
       --rank) {
    column->add_shape(choose.Small());
  }
  column->set_dtype(static_cast<v1::DType>(choose.Below(4) == 0 ? choose.Below(12) : 1));
}

void AddColumn(Choices& choose, uint32_t count, v1::Column* column) {
  switch (choose.Below(5)) {
    case 0: {
      v1::BufferColumn* buffer = column->mutable_buffer();
      const uint32_t ids = choose.Below(4) == 0 ? choose.Below(4) : choose.Below(2) ? 1 : count;
      for (uint32_t i = 0; i < ids; ++i) {
        buffer->add_buffer_ids(choose.Below(8) == 0 ? choose.Number() : 1 + choose.Below(5));
      }
      if (choose.Below(2) == 0) {
        for (uint32_t i = 0; i < count; ++i) buffer->add_offsets(4 * choose.Small());
      }
      buffer->set_stride_bytes(choose.Small() * (choose.Below(4) == 0 ? 1 : 4));
      if (choose.Below(3) != 0) AddShape(choose, buffer);
      for (int d = choose.Below(3) == 0 ? buffer->shape_size() : choose.Below(16) / 13; d > 0;
           --d) {
        const auto stride = static_cast<int64_t>(choose.Small());
        buffer->add_strides(choose.Below(4) == 0 ? -stride : stride);
      }
      break;
    }
    case 1: {
      v1::InlineColumn* in = column->mutable_inline_();
      AddShape(choose, in);
      uint64_t bytes = 4;
      for (const uint64_t dim : in->shape()) bytes *= dim;
      if (choose.Below(2) == 0) bytes *= count;
      if (choose.Below(8) == 0) bytes = choose.Small();
      in->set_data(choose.Bytes(bytes));
      break;
    }
    case 2:
      AddShape(choose, column->mutable_returned());
      break;
    case 3:
      for (uint32_t i = choose.Below(4) == 0 ? count : 1; i > 0; --i) {
        column->mutable_scalar()->add_f64(static_cast<double>(choose.Number()));
      }
      break;
    default:
      column->mutable_scalar()->add_i64(static_cast<int64_t>(choose.Number()));
      break;
  }
}

void MakeTasks(Choices& choose, const Registry& registry, v1::Batch* batch) {
  const auto operators = registry.List();
  const Operator& op = *operators[choose.Below(static_cast<uint32_t>(operators.size()))].op;
  v1::OperatorTasks* tasks = batch->mutable_tasks();
  tasks->set_operator_(op.name());
  tasks->set_version(choose.Below(8) == 0 ? choose.Below(3) : 0);
  const uint32_t count =
      choose.Below(8) == 0 ? static_cast<uint32_t>(choose.Number()) : 1 + choose.Below(5);
  tasks->set_count(count);
  const size_t columns = op.signature().parameters().size();
  for (size_t c = 0; c < columns; ++c) {
    AddColumn(choose, count < 8 ? count : 8, tasks->add_arguments());
  }
}

void MakePrograms(Choices& choose, v1::Batch* batch) {
  v1::FluxPrograms* programs = batch->mutable_programs();
  programs->set_bytecode(choose.Bytes(choose.Below(64)));
  uint32_t offset = 0;
  for (uint32_t i = choose.Below(5); i > 0; --i) {
    programs->add_offsets(offset);
    offset += choose.Below(16);
  }
  programs->set_count(static_cast<uint32_t>(choose.Small()));
  for (uint32_t i = choose.Below(3) == 0 ? programs->count() % 16 : 0; i > 0; --i) {
    programs->add_program_index(choose.Below(5));
  }
  programs->set_initial_width(choose.Below(18));
  programs->set_initial(choose.Bytes(programs->initial_width() * 4 *
                                     (choose.Below(2) == 0 ? 1 : programs->count() % 64)));
  for (uint32_t i = choose.Below(18); i > 0; --i) programs->add_wanted(choose.Below(17));
  if (choose.Below(4) != 0) programs->set_max_cycles(choose.Number());
  programs->set_unknown_opcode(static_cast<v1::FluxPrograms::UnknownOpcode>(choose.Below(3)));
}

// The bytes from the tensor's first element to its last one.
struct Reach {
  uint64_t address;
  uint64_t bytes;
};
Reach ComputeReach(const TensorArgument& tensor) {
  const int64_t element = SizeOf(tensor.dtype);
  __int128 before = 0;
  __int128 from = element;
  for (uint32_t d = 0; d < tensor.rank; ++d) {
    if (tensor.shape[d] == 0) return {tensor.address, 0};
    const __int128 step = __int128{tensor.shape[d] - 1} * tensor.strides[d] * element;
    (step < 0 ? before : from) += step < 0 ? -step : step;
  }
  if (before > tensor.address || before + from > INT64_MAX) Fail("a tensor without bounds");
  return {tensor.address - static_cast<uint64_t>(before), static_cast<uint64_t>(before + from)};
}

// Whether two elements of the tensor have the same address.
bool Overlaps(const TensorArgument& tensor) {
  std::set<int64_t> offsets;
  std::vector<int64_t> index(tensor.rank, 0);
  while (offsets.size() < 100) {
    int64_t offset = 0;
    for (uint32_t d = 0; d < tensor.rank; ++d) {
      if (tensor.shape[d] == 0) return false;
      offset += index[d] * tensor.strides[d];
    }
    if (!offsets.insert(offset).second) return true;
    uint32_t d = tensor.rank;
    while (d > 0 && ++index[d - 1] == tensor.shape[d - 1]) index[--d] = 0;
    if (d == 0) break;
  }
  return false;
}

// Checks the memory that a range needs besides its tensors.
void CheckRange(World& world, const RequestBatch& batch) {
  const TaskRange& range = *batch.range;
  if (range.columns.size() != range.arguments.size() ||
      range.values.size() != range.columns.size()) {
    Fail("a range with columns missing");
  }
  if (range.arguments.size() > kMaxRangeArguments) Fail("a range with too many arguments");
  const auto check = [&](uint64_t address, uint64_t element) {
    if (!world.Allowed(batch.device, address, range.count * element, batch)) {
      Fail("a range's column outside of staging memory");
    }
  };
  check(range.descriptor.outcomes, sizeof(RangeOutcome));
  for (const RangeColumn& column : range.columns) {
    if (column.values != 0) check(column.values, sizeof(uint64_t));
  }
}

// Checks every tensor of every task against the memory that the client may access.
void CheckTasks(World& world, const v1::Batch& message, const RequestBatch& batch) {
  const Operator* op = nullptr;
  if (message.has_tasks()) op = world.registry->Resolve(message.tasks().operator_(), 0)->op;
  if (batch.range) CheckRange(world, batch);
  std::vector<Argument> arguments;
  for (uint32_t t = 0; t < batch.count(); ++t) {
    TaskDescriptor task;
    if (batch.range) {
      task = batch.range->Describe(t, &arguments);
    } else {
      task = batch.tasks[t];
      const auto first = batch.arguments.begin() + ptrdiff_t{t} * batch.arguments_per_task;
      arguments.assign(first, first + batch.arguments_per_task);
    }
    const bool compact = (task.flags & kTaskCompact) != 0;
    const auto version = world.registry->FindBySlot(task.operator_slot);
    if (version == nullptr) Fail("a task without an operator");
    const Operator* called = version->op.get();
    if (op != nullptr && called != op) Fail("a task of another operator");
    const auto& parameters = called->signature().parameters();
    if (compact ? parameters.size() > kCompactArguments
                : task.argument_count() != parameters.size()) {
      Fail("a task with the wrong number of arguments");
    }
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (parameters[p].scalar()) continue;
      if (compact) {
        if (!world.Allowed(batch.device, task.compact_argument(p), task.elements() * 4, batch)) {
          Fail("a compact tensor outside of the client's memory");
        }
        continue;
      }
      const TensorArgument& tensor = arguments[p].tensor;
      if (tensor.rank > kMaxRank || SizeOf(tensor.dtype) == 0) Fail("a malformed tensor");
      const Reach reach = ComputeReach(tensor);
      if (!world.Allowed(batch.device, reach.address, reach.bytes, batch)) {
        Fail("a tensor outside of the client's memory");
      }
      if (parameters[p].kind != ParameterKind::kInput && Overlaps(tensor)) {
        Fail("an output whose elements overlap");
      }
    }
  }
}

// Pretends that the tasks ran: fills their outputs with poison, and answers the batch.
void Answer(const World& world, const v1::Batch& message, RequestBatch& batch, uint32_t failing) {
  const size_t count = batch.count();
  const bool each = !batch.range || batch.range->times();
  batch.device_ns.assign(each ? count : 0, 1);
  batch.range_ns = failing;
  if (failing % 3 == 0 || !batch.range) {
    batch.status.assign(count, TaskStatus::kOk);
    batch.detail.assign(count, 0);
  }
  if (failing % 3 == 0) {
    batch.status[failing % count] = TaskStatus::kAborted;
    batch.failed = 1;
  }
  v1::BatchResult result;
  BuildResult(batch, &result);
  int returned = 0;
  for (int c = 0; c < message.tasks().arguments_size(); ++c) {
    const v1::Column& column = message.tasks().arguments(c);
    const auto op = world.registry->FindOperator(message.tasks().operator_());
    const Parameter& parameter = (*op)->signature().parameters()[static_cast<size_t>(c)];
    if (column.has_returned() ||
        (column.has_inline_() && parameter.kind == ParameterKind::kInOut)) {
      ++returned;
    }
  }
  if (result.outputs_size() != returned) Fail("outputs are missing");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static World* const world = new World;
  if (size == 0) return 0;
  v1::Batch message;
  Choices choose(data + 1, size - 1);
  if (data[0] % 2 == 0) {
    if (!message.ParseFromArray(data + 1, static_cast<int>(size - 1))) return 0;
  } else {
    if (choose.Below(5) == 0) {
      MakePrograms(choose, &message);
    } else {
      MakeTasks(choose, *world->registry, &message);
    }
    if (choose.Below(8) == 0) message.mutable_options()->set_device(choose.Below(3));
    message.mutable_options()->set_ordering(
        static_cast<v1::BatchOptions::Ordering>(choose.Below(10) == 0 ? choose.Byte() : 0));
    message.mutable_options()->set_require_isolation(
        static_cast<v1::Isolation>(choose.Below(10) == 0 ? choose.Byte() : 0));
    message.mutable_options()->set_timeout_us(choose.Number());
  }

  {
    auto batch = Translate(*world, message);
    if (!batch.ok()) {
      if (batch.status().message().find("Fix: ") == absl::string_view::npos) {
        std::fprintf(stderr, "%s\n", std::string(batch.status().message()).c_str());
        Fail("an error without a fix");
      }
    } else {
      CheckTasks(*world, message, **batch);
      Answer(*world, message, **batch, choose.Byte());
    }
  }
  if (world->admission.staging_used(0) + world->admission.staging_used(1) != 0) {
    Fail("staging memory leaked");
  }
  if (world->admission.host().used() != 0) Fail("the daemon's memory leaked");
  return 0;
}
