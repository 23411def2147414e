// GuardedTensors: the tensors of one example in the engine's staging memory, each between red
// zones, and what became of them.
//
//   context | red zone | tensor | red zone | tensor | red zone | ...
//
// Everything but tensors and context is red zone: bytes of a known pattern, right up to
// the first and from the last byte of each tensor, and between the elements of one that
// is not dense. A task sees the tensors as requests
// would give them; nothing else of staging memory belongs to it.
//
// Thread safety: one thread. Memory ordering: write before the task is published, look
// after its completion was read (host_ring.h), or after the engine has ended.
//
//   absl::StatusOr<GuardedTensors> tensors =
//       GuardedTensors::Place(signature, example, staging, /*shifted=*/false);
//   tensors->Fill(0xff);
//   ... run a task with tensors->arguments() ...
//   if (auto stray = tensors->FindStrayWrite()) ...
#ifndef RESIDENT_RUNTIME_OPERATORS_VALIDATION_GUARDED_TENSORS_H_
#define RESIDENT_RUNTIME_OPERATORS_VALIDATION_GUARDED_TENSORS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/layout/task.h"
#include "kernels/sdk/checks.h"
#include "runtime/model/signature.h"
#include "runtime/operators/validation/example.h"

namespace resident {

// Memory that the host and the engine's operators see.
struct ValidationStaging {
  uint8_t* host = nullptr;
  uint64_t address = 0;
  uint64_t bytes = 0;
};

class GuardedTensors {
 public:
  static constexpr uint64_t kRedZoneBytes = 4096;
  // Most chunks of a task that has a CheckContext: each has a Violation.
  static constexpr uint64_t kMaxCheckedChunks = 1024;
  // Bytes of staging memory that holds the tensors of any example within kMaxExampleBytes.
  static constexpr uint64_t kStagingBytes = 32ull << 20;

  // `shifted`: tensors begin one element past a 256-byte boundary, as requests that name
  // an offset into a buffer may have them, and those of strided parameters have room for
  // an element after each. INTERNAL: staging memory is too small.
  // `signature` and `example` must outlive the object.
  static absl::StatusOr<GuardedTensors> Place(const Signature& signature, const Example& example,
                                              const ValidationStaging& staging, bool shifted);

  // Writes everything anew: inputs as the example has them, outputs full of `poison`.
  void Fill(uint8_t poison);

  // One for each parameter, scalars that the example leaves out among them.
  const std::vector<Argument>& arguments() const { return arguments_; }
  // Elements of each, if the task can travel in compact form: all tensors dense float32
  // of one length.
  std::optional<uint64_t> compact_elements() const;
  // Shape of a parameter's tensor.
  const Shape& shape(size_t parameter) const { return example_->values[parameter].shape; }
  // "x [3, 4], out [3]".
  std::string shapes() const;

  // The CheckContext, as operators see it, and what it holds.
  uint64_t context_address() const { return staging_.address; }
  void PrepareContext(uint64_t barrier_limit_ns);
  // The first violation of the lowest chunk; nullopt if none was recorded.
  std::optional<Violation> FindViolation() const;

  struct Tensor {
    size_t parameter;  // Index in the signature.
    uint64_t elements;
    uint32_t element_bytes;
    uint32_t step;    // From one element to the next, in elements: 1 if dense.
    uint64_t offset;  // In staging memory.
    bool output;      // It is written.
    bool poisoned;    // It had nothing to hold at first.
  };
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // Its elements as they are now, dense.
  std::string Contents(const Tensor& tensor) const;

  struct StrayWrite {
    enum Where { kBefore, kPast, kBetween };
    size_t parameter;  // Of the nearest tensor.
    Where where;
    // Bytes before its first byte or past its last, from 1; between its elements, from
    // its first byte.
    uint64_t distance;
  };
  std::optional<StrayWrite> FindStrayWrite() const;

  struct InputWrite {
    size_t parameter;
    uint64_t element;
  };
  std::optional<InputWrite> FindInputWrite() const;

 private:
  GuardedTensors(const Signature& signature, const Example& example,
                 const ValidationStaging& staging)
      : signature_(&signature), example_(&example), staging_(staging) {}

  // From its first byte to that behind its last element.
  static uint64_t Extent(const Tensor& tensor) {
    if (tensor.elements == 0) return 0;
    return ((tensor.elements - 1) * tensor.step + 1) * tensor.element_bytes;
  }
  // The first byte at or after `from` and before `end` that is not what a red zone holds.
  std::optional<uint64_t> FindChanged(uint64_t from, uint64_t end) const;

  const Signature* signature_;
  const Example* example_;
  ValidationStaging staging_;
  std::vector<Argument> arguments_;
  std::vector<Tensor> tensors_;  // In the order of their addresses.
  uint64_t guarded_begin_ = 0;   // Offsets in staging memory that red zones and tensors fill.
  uint64_t guarded_end_ = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_VALIDATION_GUARDED_TENSORS_H_
