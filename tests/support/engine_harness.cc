#include "tests/support/engine_harness.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "kernels/ops/builtin.h"
#include "runtime/engine/engines.h"
#include "runtime/ring/doorbell.h"

namespace resident::testing {
namespace {

constexpr auto kLaunchTimeout = std::chrono::seconds(60);

[[noreturn]] void Abort(const std::string& why) {
  std::fprintf(stderr, "engine harness: %s\n", why.c_str());
  std::exit(1);
}

}  // namespace

EngineHarness::EngineHarness(Options options) {
  auto region = SharedRegion::Create(options.ring_slots, options.staging_bytes);
  if (!region.ok()) Abort(region.status().ToString());
  region_ = std::move(*region);
  options.engine.test_operators = true;
  if (const char* threads = std::getenv("RESIDENT_TEST_THREADS_PER_BLOCK")) {
    options.engine.threads_per_block = static_cast<uint32_t>(std::atoi(threads));
  }
  const char* const name = std::getenv("RESIDENT_TEST_ENGINE");
  const auto type = FindEngineType(name == nullptr || *name == '\0' ? "cpu" : name);
  if (!type.ok()) Abort(type.status().ToString());
  auto engine = (*type)->create(options.engine.ordinal);
  if (!engine.ok()) Abort(engine.status().ToString());
  engine_ = std::move(*engine);
  const auto prepared = engine_->Prepare(*region_);
  if (!prepared.ok()) Abort(prepared.status().ToString());
  auto info = engine_->Start(options.engine);
  if (!info.ok()) Abort(info.status().ToString());
  info_ = *info;
}

void EngineHarness::Launch(std::shared_ptr<const Generation> generation) {
  const auto preloaded = engine_->Preload(std::move(generation));
  if (!preloaded.ok()) Abort(preloaded.status().ToString());
  const auto times = engine_->Switch(/*change=*/1, /*launch=*/true, kLaunchTimeout);
  if (!times.ok()) Abort(times.status().ToString());
}

EngineHarness::~EngineHarness() = default;

std::shared_ptr<HostRing> EngineHarness::NewRing() {
  return std::make_shared<HostRing>(region_, info_.workers);
}

void EngineHarness::Ring() { Doorbell::ForWorkers(region_->control()).Ring(); }

EngineHarness::Span EngineHarness::Staging(uint64_t bytes) {
  const uint64_t offset = staging_used_;
  staging_used_ += (bytes + 255) / 256 * 256;
  if (staging_used_ > region_->layout().staging_bytes) Abort("staging memory is used up");
  return {info_.region_address + region_->layout().staging + offset, region_->staging() + offset};
}

uint64_t EngineHarness::Memory(uint64_t bytes) {
  const uint64_t offset = memory_used_;
  memory_used_ += (bytes + 255) / 256 * 256;
  if (memory_used_ > info_.memory_bytes) Abort("device memory is used up");
  return info_.memory_address + offset;
}

uint32_t OperatorSlot(const std::string& name) {
  if (const std::optional<unsigned> slot = FindBuiltinSlot(name)) return *slot;
  Abort("no operator " + name);
}

TaskDescriptor CompactTask(uint32_t operator_slot, uint64_t n,
                           std::initializer_list<uint64_t> arguments) {
  if (arguments.size() > kCompactArguments) Abort("a compact task takes four arguments");
  TaskDescriptor task{};
  task.operator_slot = static_cast<uint16_t>(operator_slot);
  task.flags = kTaskCompact;
  task.set_elements(n);
  uint32_t i = 0;
  for (uint64_t argument : arguments) task.set_compact_argument(i++, argument);
  return task;
}

Argument DenseTensor(uint64_t address, DType dtype, std::initializer_list<int64_t> shape) {
  Argument argument{};
  argument.tensor.address = address;
  argument.tensor.dtype = dtype;
  argument.tensor.rank = static_cast<u8>(shape.size());
  uint32_t i = 0;
  for (int64_t extent : shape) argument.tensor.shape[i++] = extent;
  int64_t stride = 1;
  while (i-- > 0) {
    argument.tensor.strides[i] = stride;
    stride *= argument.tensor.shape[i];
  }
  return argument;
}

Argument Scalar(uint64_t bits) {
  Argument argument{};
  argument.scalar_bits = bits;
  return argument;
}

TaskDescriptor ArgumentTask(uint32_t operator_slot, uint32_t arguments, uint32_t chunks) {
  TaskDescriptor task{};
  task.operator_slot = static_cast<uint16_t>(operator_slot);
  task.set_argument_count(arguments);
  task.set_chunks(chunks);
  return task;
}

}  // namespace resident::testing
