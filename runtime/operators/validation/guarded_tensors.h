// GuardedTensors: the tensors of one example in the engine's staging memory, each between
// red zones, and checks for writes outside of them.
//
//   context | red zone | tensor | red zone | tensor | red zone | ...
//
// Everything except tensors and context is red zone: bytes of a known pattern, directly
// before the first and after the last byte of each tensor, and between the elements of a
// tensor that is not dense. A task gets the tensors as it would in a request; it must not
// access other staging memory.
//
// Thread safety: one thread. Memory ordering: call Fill before the task is published, and
// the Find methods after its completion was read (host_ring.h), or after the engine has
// ended.
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
#include "runtime/base/limits.h"
#include "runtime/model/signature.h"
#include "runtime/operators/validation/example.h"

namespace resident {

// Memory that the host and the engine's operators share.
struct ValidationStaging {
  uint8_t* host = nullptr;
  uint64_t address = 0;
  uint64_t bytes = 0;
};

class GuardedTensors {
 public:
  static constexpr uint64_t kRedZoneBytes = 4096;
  // Maximum number of chunks of a task with a CheckContext: each chunk has a Violation.
  static constexpr uint64_t kMaxCheckedChunks = 1024;
  // Size of staging memory, enough for the tensors of any example within kMaxExampleBytes: gaps
  // double the size of a strided tensor.
  static constexpr uint64_t kStagingBytes = 2 * kMaxExampleBytes + (1ull << 20);

  // `shifted`: tensors begin one element after a 256-byte boundary, as in requests that use
  // an offset into a buffer, and tensors of strided parameters have a gap of one element
  // after each element. INTERNAL: staging memory is too small. `signature` and `example`
  // must outlive the object.
  static absl::StatusOr<GuardedTensors> Place(const Signature& signature, const Example& example,
                                              const ValidationStaging& staging, bool shifted);

  // Writes all tensors and red zones: inputs from the example, outputs filled with
  // `poison`.
  void Fill(uint8_t poison);

  // One for each parameter, including scalars that the example omits.
  const std::vector<Argument>& arguments() const { return arguments_; }
  // Number of elements of each tensor, if the task can be sent in compact form: all tensors
  // are dense float32 of one length.
  std::optional<uint64_t> compact_elements() const;
  // Shape of a parameter's tensor.
  const Shape& shape(size_t parameter) const { return example_->values[parameter].shape; }
  // "x [3, 4], out [3]".
  std::string shapes() const;

  // The address of the CheckContext for operators, and its initialisation.
  uint64_t context_address() const { return staging_.address; }
  void PrepareContext(uint64_t barrier_limit_ns);
  // The first violation of the lowest chunk; nullopt if none was recorded.
  std::optional<Violation> FindViolation() const;

  struct Tensor {
    size_t parameter;  // Index in the signature.
    uint64_t elements;
    uint32_t element_bytes;
    uint32_t step;    // Distance of consecutive elements, in elements: 1 if dense.
    uint64_t offset;  // In staging memory.
    bool output;      // The operator writes it.
    bool poisoned;    // It has no initial data.
  };
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // The current elements, dense.
  std::string Contents(const Tensor& tensor) const;

  struct StrayWrite {
    enum Where { kBefore, kPast, kBetween };
    size_t parameter;  // Index of the nearest tensor.
    Where where;
    // kBefore, kPast: bytes before its first or after its last byte, counted from 1;
    // kBetween: offset from its first byte.
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

  // Bytes from its first element to the end of its last one.
  static uint64_t Extent(const Tensor& tensor) {
    if (tensor.elements == 0) return 0;
    return ((tensor.elements - 1) * tensor.step + 1) * tensor.element_bytes;
  }
  // The first byte at or after `from` and before `end` that differs from the red zone's
  // pattern.
  std::optional<uint64_t> FindChanged(uint64_t from, uint64_t end) const;

  const Signature* signature_;
  const Example* example_;
  ValidationStaging staging_;
  std::vector<Argument> arguments_;
  std::vector<Tensor> tensors_;  // In the order of their addresses.
  uint64_t guarded_begin_ = 0;   // Offsets in staging memory of red zones and tensors.
  uint64_t guarded_end_ = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_VALIDATION_GUARDED_TENSORS_H_
