// HostUnit: compiles the source of an operator for the host while the test runs, as the CPU
// engine's compile role does, and calls it in the test's own process.
//
//   const auto unit = HostUnit::Compile(source);
//   HostCall call(3);
//   call.Tensor(0, x.data(), DType::kF32, {3, 4});
//   call.Tensor(1, out.data(), DType::kF16, {3, 4}, {1, 3});
//   call.Scalar(2, 1.5f);
//   EXPECT_TRUE(call.Run(unit->Find("swish"), /*chunks=*/2));
//
// Run it in the runfiles folder, where the SDK's headers are.
//
// Thread safety: an object belongs to one thread.
#ifndef RESIDENT_TESTS_SUPPORT_HOST_UNIT_H_
#define RESIDENT_TESTS_SUPPORT_HOST_UNIT_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/sdk/operator.h"

namespace resident::testing {

class HostUnit {
 public:
  // Null if it does not compile; the compiler's log is written to stderr.
  static std::unique_ptr<HostUnit> Compile(const std::string& source, bool checked = false);
  ~HostUnit();
  HostUnit(const HostUnit&) = delete;
  HostUnit& operator=(const HostUnit&) = delete;

  // The function of RESIDENT_OPERATOR(name); null if there is none.
  OperatorFunction Find(const std::string& name) const;

 private:
  explicit HostUnit(void* library) : library_(library) {}
  void* const library_;
};

// One task's arguments, in argument-block form.
class HostCall {
 public:
  explicit HostCall(uint32_t arguments);

  // `data` is the first element. No strides: dense.
  void Tensor(uint32_t argument, const void* data, DType dtype, const std::vector<int64_t>& shape,
              const std::vector<int64_t>& strides = {});
  template <typename T>
  void Scalar(uint32_t argument, T value) {
    std::memcpy(&state_->arguments.arguments[argument].scalar_bits, &value, sizeof(value));
  }
  // Sends the task in compact form: `tensors` tensors of `n` floats come before the scalars.
  void Compact(int64_t n, const std::vector<uint64_t>& words);

  // Runs all chunks, the last one first. False: the operator reported a failure. `share_memory`: as
  // those of a wide task of the ring.
  bool Run(OperatorFunction function, int64_t chunks = 1, bool share_memory = true);
  const BlockState& state() const { return *state_; }

 private:
  std::unique_ptr<BlockState> state_;
  std::vector<unsigned char> scratch_;
  TaskMemory task_memory_{};
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_SUPPORT_HOST_UNIT_H_
