#include "library/resident_ops.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/jump_table.h"
#include "kernels/resident/operator_launch.h"
#include "library/call_check.h"
#include "library/errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/engine/cuda/operator_launcher.h"

using namespace resident;

// The GPU's launcher, or the state of the one block that the CPU runs.
struct resident_ops {
  std::unique_ptr<OperatorLauncher> launcher;
  std::unique_ptr<BlockState> state;
  std::unique_ptr<unsigned char[]> scratch;
  LaunchOutcome cpu_outcome{};
  uint64_t calls = 0;

  LaunchOutcome& outcome() { return launcher != nullptr ? *launcher->outcome() : cpu_outcome; }
};

namespace {

// A fixed array, so that an error needs no memory.
constexpr size_t kErrorBytes = 1024;
thread_local char last_error[kErrorBytes] = "";

void SetLastError(absl::string_view message) {
  const size_t bytes = std::min(message.size(), kErrorBytes - 1);
  std::memcpy(last_error, message.data(), bytes);
  last_error[bytes] = 0;
}

int32_t ToCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return RESIDENT_OPS_OK;
    case absl::StatusCode::kUnavailable:
      return RESIDENT_OPS_NOT_AVAILABLE;
    case absl::StatusCode::kInvalidArgument:
      return RESIDENT_OPS_INVALID_VALUE;
    case absl::StatusCode::kResourceExhausted:
      return RESIDENT_OPS_OUT_OF_MEMORY;
    default:
      return RESIDENT_OPS_LAUNCH_FAILED;
  }
}

// Calls f, which returns absl::Status, and returns its code. No exception leaves the library: the
// standard library throws one if there is no memory.
template <typename F>
int32_t Guard(F f) noexcept {
  try {
    const absl::Status status = f();
    SetLastError(status.message());
    return ToCode(status);
  } catch (const std::bad_alloc&) {
    SetLastError("out of host memory. Fix: free memory of the process");
    return RESIDENT_OPS_OUT_OF_MEMORY;
  } catch (...) {
    SetLastError("unexpected exception. Fix: report this with the call");
    return RESIDENT_OPS_LAUNCH_FAILED;
  }
}

// Returns f(), or `otherwise` if there is no memory for the table of operators.
template <typename F, typename T>
auto OrElse(F f, T otherwise) noexcept -> decltype(f()) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return otherwise;
  }
}

absl::Status FailureStatus(const std::string& name, uint64_t call, uint32_t status_and_detail) {
  const uint32_t status = status_and_detail & 0xffff;
  if (status == 0) return absl::OkStatus();
  if (status == static_cast<uint32_t>(CompletionStatus::kInvalidArgument)) {
    return errors::OperatorRefused(name, call, status_and_detail >> 16);
  }
  return errors::OperatorFailed(name, call, status);
}

absl::StatusOr<std::unique_ptr<resident_ops>> Create(int32_t device, uint32_t max_blocks) {
  if (device < RESIDENT_OPS_CPU) return errors::NoSuchDevice(device);
  auto handle = std::make_unique<resident_ops>();
  LibraryOperators();  // Parses the signatures now, and not in the first call.
  if (device == RESIDENT_OPS_CPU) {
    handle->state = std::make_unique<BlockState>();
    handle->scratch = std::make_unique<unsigned char[]>(kScratchBytes);
    handle->state->scratch = handle->scratch.get();
    return handle;
  }
  ASSIGN_OR_RETURN(handle->launcher, OperatorLauncher::Create(device, max_blocks));
  return handle;
}

// Runs all chunks on the calling thread.
absl::Status RunOnCpu(const LibraryOperator& op, const CheckedCall& call, resident_ops& handle) {
  BlockState& state = *handle.state;
  state.descriptor = {};
  state.descriptor.operator_slot = static_cast<u16>(op.slot);
  state.descriptor.set_argument_count(call.argument_count);
  state.descriptor.set_chunks(call.chunks);
  std::memcpy(&state.arguments, call.arguments, call.argument_count * sizeof(Argument));
  state.chunk_count = call.chunks;
  state.status_and_detail = 0;
  std::memset(state.result, 0, kResultBytes);
  const OperatorFunction function = FindBuiltinFunction(op.slot, /*test_operators=*/false);
  if (function == nullptr) return absl::InternalError("the operator has no function");
  for (uint64_t chunk = 0; chunk < call.chunks; ++chunk) {
    state.chunk = chunk;
    function(&state);
  }
  ++handle.calls;
  LaunchOutcome& outcome = handle.cpu_outcome;
  if (state.status_and_detail != 0 && outcome.status_and_detail == 0) {
    outcome.status_and_detail = state.status_and_detail;
    outcome.launch = handle.calls;
  }
  if (op.returns_result) std::memcpy(outcome.result, state.result, kResultBytes);
  return FailureStatus(op.name, handle.calls, state.status_and_detail);
}

absl::Status RunOnGpu(const LibraryOperator& op, const CheckedCall& call, resident_ops& handle,
                      void* stream) {
  OperatorLaunch launch;
  launch.operator_slot = op.slot;
  launch.argument_count = call.argument_count;
  launch.chunks = call.chunks;
  launch.launch = handle.calls + 1;
  launch.returns_result = op.returns_result ? 1 : 0;
  launch.reserved = 0;
  std::memcpy(launch.arguments, call.arguments, sizeof(launch.arguments));
  RETURN_IF_ERROR(handle.launcher->Launch(launch, stream));
  ++handle.calls;
  return absl::OkStatus();
}

absl::Status Run(resident_ops* handle, const char* name, const resident_ops_argument* arguments,
                 size_t count, void* stream) {
  if (handle == nullptr) return errors::NullParameter("resident_ops_run", "handle");
  if (name == nullptr) return errors::NullParameter("resident_ops_run", "name");
  if (arguments == nullptr && count != 0) {
    return errors::NullParameter("resident_ops_run", "arguments");
  }
  if (handle->launcher == nullptr && stream != nullptr) return errors::CallStreamOnCpu();
  ASSIGN_OR_RETURN(const LibraryOperator* const op, FindLibraryOperator(name));
  CheckedCall call;
  RETURN_IF_ERROR(CheckCall(*op, {arguments, count}, call));
  return handle->launcher != nullptr ? RunOnGpu(*op, call, *handle, stream)
                                     : RunOnCpu(*op, call, *handle);
}

}  // namespace

int32_t resident_ops_version(void) { return RESIDENT_OPS_VERSION; }

int32_t resident_ops_create(int32_t device, uint32_t max_blocks, resident_ops** handle) {
  return Guard([&]() -> absl::Status {
    if (handle == nullptr) return errors::NullParameter("resident_ops_create", "handle");
    *handle = nullptr;
    ASSIGN_OR_RETURN(auto created, Create(device, max_blocks));
    *handle = created.release();
    return absl::OkStatus();
  });
}

int32_t resident_ops_destroy(resident_ops* handle) {
  return Guard([&] {
    delete handle;
    return absl::OkStatus();
  });
}

int32_t resident_ops_run(resident_ops* handle, const char* name,
                         const resident_ops_argument* arguments, size_t count, void* stream) {
  return Guard([&] { return Run(handle, name, arguments, count, stream); });
}

int32_t resident_ops_status(resident_ops* handle, resident_ops_outcome* outcome) {
  return Guard([&] {
    if (outcome != nullptr) *outcome = {};
    if (handle == nullptr) return errors::NullParameter("resident_ops_status", "handle");
    // The device writes it: a stream that is synchronized has made the writes visible.
    volatile LaunchOutcome& kept = handle->outcome();
    const uint32_t failure = kept.status_and_detail;
    const uint64_t call = kept.launch;
    kept.launch = 0;
    kept.status_and_detail = 0;
    const absl::Status status = FailureStatus("", call, failure);
    if (outcome != nullptr && failure != 0) *outcome = {ToCode(status), failure >> 16, call};
    return status;
  });
}

int32_t resident_ops_result(resident_ops* handle, void* result) {
  return Guard([&] {
    if (handle == nullptr) return errors::NullParameter("resident_ops_result", "handle");
    if (result == nullptr) return errors::NullParameter("resident_ops_result", "result");
    const volatile LaunchOutcome& kept = handle->outcome();
    auto* const to = static_cast<unsigned char*>(result);
    for (size_t i = 0; i < kResultBytes; ++i) to[i] = kept.result[i];
    return absl::OkStatus();
  });
}

const char* resident_ops_last_error(void) { return last_error; }

size_t resident_ops_count(void) {
  return OrElse([] { return LibraryOperators().size(); }, size_t{0});
}

const char* resident_ops_name(size_t index) {
  return OrElse(
      [&]() -> const char* {
        const auto& operators = LibraryOperators();
        return index < operators.size() ? operators[index].name.c_str() : nullptr;
      },
      nullptr);
}

const char* resident_ops_signature(const char* name) {
  return OrElse(
      [&]() -> const char* {
        for (const LibraryOperator& op : LibraryOperators()) {
          if (name != nullptr && op.name == name) return op.signature_text;
        }
        return nullptr;
      },
      nullptr);
}
