// RunOperator with libresident_ops (library/resident_ops.h): RESIDENT_TEST_ENGINE=cpu|cuda selects
// the device. The library chooses the number of chunks, so that `chunks` has no effect.
#include "tests/conformance/library_runner.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "runtime/model/dtype.h"
#include "runtime/model/signature.h"
#include "tests/conformance/operator_runner.h"

namespace resident::testing {
namespace {

constexpr uint64_t kMemoryBytes = uint64_t{512} << 20;

[[noreturn]] void Abort(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, resident_ops_last_error());
  std::abort();
}

// The library, and memory for tensors, which is used again once no tensor is left.
class Runner {
 public:
  static Runner& Get() {
    static Runner* const runner = new Runner;
    return *runner;
  }

  TensorMemory Allocate(uint64_t bytes) {
    const uint64_t size = (bytes + 255) / 256 * 256;
    if (tensors_.use_count() == 1) used_ = 0;
    if (used_ + size > kMemoryBytes) Abort("the tensors of a test need more than its memory");
    uint8_t* const at = memory_ + std::exchange(used_, used_ + size);
    return {reinterpret_cast<uint64_t>(at), std::shared_ptr<uint8_t>(tensors_, at)};
  }

  Outcome Run(const std::string& name, const std::vector<resident_ops_argument>& arguments) {
    const int32_t code =
        resident_ops_run(ops_, name.c_str(), arguments.data(), arguments.size(), device_.stream());
    const std::string message = resident_ops_last_error();
    device_.Synchronize();
    resident_ops_outcome outcome;
    const int32_t status = resident_ops_status(ops_, &outcome);
    if (status == RESIDENT_OPS_INVALID_VALUE) {
      return {CompletionStatus::kInvalidArgument, static_cast<uint16_t>(outcome.detail)};
    }
    if (code == RESIDENT_OPS_OK && status == RESIDENT_OPS_OK) return {};
    std::fprintf(stderr, "resident_ops_run: %d, %s\nresident_ops_status: %d, %s\n", code,
                 message.c_str(), status, resident_ops_last_error());
    return {CompletionStatus::kInternal, 0};
  }

 private:
  Runner() {
    if (resident_ops_create(device_.number(), 0, &ops_) != RESIDENT_OPS_OK) {
      Abort("resident_ops_create");
    }
  }

  LibraryDevice device_;
  resident_ops* ops_ = nullptr;
  uint8_t* memory_ = device_.Allocate(kMemoryBytes);
  std::shared_ptr<int> tensors_ = std::make_shared<int>(0);
  uint64_t used_ = 0;
};

resident_ops_argument ToLibraryArgument(const Parameter& parameter, const TestArgument& from) {
  if (!from.tensor) {
    const uint64_t bits = from.argument.scalar_bits;
    const Element value = ReadElement(parameter.dtypes[0], &bits);
    return value.floating ? resident_ops_real(value.real) : resident_ops_integer(value.integer);
  }
  const TensorArgument& tensor = from.argument.tensor;
  resident_ops_argument argument{};
  argument.kind = RESIDENT_OPS_TENSOR;
  argument.dtype = static_cast<int32_t>(tensor.dtype);
  argument.rank = tensor.rank;
  argument.data = reinterpret_cast<void*>(tensor.address);
  std::copy_n(tensor.shape, tensor.rank, argument.shape);
  std::copy_n(tensor.strides, tensor.rank, argument.strides);
  return argument;
}

}  // namespace

bool Emulated() { return false; }

uint64_t EmulatedTensorCoreProducts();
uint64_t EmulatedTensorCoreProducts() { return 0; }

TensorMemory AllocateTensor(uint64_t bytes, uint64_t) { return Runner::Get().Allocate(bytes); }

Outcome RunOperator(const std::string& name, const std::vector<TestArgument>& arguments, uint32_t) {
  const char* const text = resident_ops_signature(name.c_str());
  if (text == nullptr) Abort(name.c_str());
  const auto signature = Signature::Parse(text);
  if (!signature.ok() || arguments.size() > signature->parameters().size()) Abort(text);
  std::vector<resident_ops_argument> converted;
  for (size_t i = 0; i < arguments.size(); ++i) {
    converted.push_back(ToLibraryArgument(signature->parameters()[i], arguments[i]));
  }
  return Runner::Get().Run(name, converted);
}

}  // namespace resident::testing
