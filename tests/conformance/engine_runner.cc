// RunOperator with an engine: one task at a time.
#include <algorithm>

#include "tests/conformance/operator_runner.h"
#include "tests/support/engine_harness.h"

namespace resident::testing {
namespace {

constexpr uint64_t kStagingBytes = uint64_t{512} << 20;

// The engine, and its staging memory, which is used again once no tensor is left.
class Runner {
 public:
  static Runner& Get() {
    static Runner* const runner = new Runner;
    return *runner;
  }

  TensorMemory Allocate(uint64_t bytes) {
    const uint64_t size = (bytes + 255) / 256 * 256;
    if (tensors_.use_count() == 1) used_ = 0;
    if (used_ + size > kStagingBytes) {
      std::fprintf(stderr, "the tensors of a test need more than the staging memory\n");
      std::abort();
    }
    const uint64_t offset = std::exchange(used_, used_ + size);
    // Each tensor shares the ownership of `tensors_`.
    return {memory_.address + offset, std::shared_ptr<uint8_t>(tensors_, memory_.host + offset)};
  }

  Outcome Run(const TaskDescriptor& task, const std::vector<TestArgument>& arguments) {
    const uint64_t sequence = *ring_->Reserve();
    if (!(task.flags & kTaskCompact)) {
      for (size_t i = 0; i < arguments.size(); ++i) {
        ring_->arguments(sequence)->arguments[i] = arguments[i].argument;
      }
    }
    ring_->Publish(sequence, task);
    harness_.Ring();
    TaskCompletion completion{};
    while (ring_->Consume([&](uint64_t, const TaskCompletion& c) { completion = c; }) == 0) {
    }
    return {completion.status, completion.detail};
  }

 private:
  static EngineHarness::Options HarnessOptions() {
    EngineHarness::Options options;
    options.staging_bytes = kStagingBytes + 4096;
    return options;
  }

  EngineHarness harness_{HarnessOptions()};
  std::shared_ptr<HostRing> ring_ = harness_.NewRing();
  EngineHarness::Span memory_ = harness_.Staging(kStagingBytes);
  std::shared_ptr<int> tensors_ = std::make_shared<int>(0);
  uint64_t used_ = 0;
};

}  // namespace

bool Emulated() { return false; }
uint64_t EmulatedTensorCoreProducts() { return 0; }

TensorMemory AllocateTensor(uint64_t bytes, uint64_t) { return Runner::Get().Allocate(bytes); }

Outcome RunOperator(const std::string& name, const std::vector<TestArgument>& arguments,
                    uint32_t chunks) {
  int64_t elements = -1;
  bool compact = chunks == 0 && arguments.size() <= kCompactArguments;
  for (const TestArgument& argument : arguments) {
    if (!argument.tensor) continue;
    const TestTensor& tensor = *argument.tensor;
    if (elements < 0) elements = tensor.size();
    compact =
        compact && tensor.dense() && tensor.dtype() == DType::kF32 && tensor.size() == elements;
  }
  TaskDescriptor task = ArgumentTask(OperatorSlot(name), static_cast<uint32_t>(arguments.size()),
                                     std::max(chunks, 1u));
  if (compact) {
    task = CompactTask(OperatorSlot(name), elements, {});
    for (uint32_t i = 0; i < arguments.size(); ++i) {
      task.set_compact_argument(i, arguments[i].argument.scalar_bits);
    }
  }
  return Runner::Get().Run(task, arguments);
}

}  // namespace resident::testing
