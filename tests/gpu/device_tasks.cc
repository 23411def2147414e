#include "tests/gpu/device_tasks.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/bench_report.h"

namespace resident::testing {
namespace {

constexpr uint64_t kStagingBytes = uint64_t{32} << 20;
constexpr uint64_t kBytesOfChunk = 65536;

}  // namespace

DeviceTasks::DeviceTasks(EngineHarness& harness, std::shared_ptr<HostRing> ring)
    : harness_(harness), ring_(std::move(ring)), staging_(harness.Staging(kStagingBytes)) {}

TaskCompletion DeviceTasks::RunTask(const TaskDescriptor& task,
                                    const std::vector<Argument>& arguments) {
  const uint64_t sequence = *ring_->Reserve();
  std::copy(arguments.begin(), arguments.end(), ring_->arguments(sequence)->arguments);
  ring_->Publish(sequence, task);
  TaskCompletion result{};
  while (ring_->Consume([&](uint64_t, const TaskCompletion& c) { result = c; }) == 0) {
  }
  if (result.status != CompletionStatus::kOk) {
    Fail(absl::StrCat("a task ended with status ", static_cast<int>(result.status), ", detail ",
                      result.detail));
  }
  return result;
}

void DeviceTasks::Copy(uint64_t to, uint64_t from, uint64_t bytes) {
  if (bytes == 0) return;
  const auto chunks = static_cast<uint32_t>(std::max<uint64_t>(1, bytes / kBytesOfChunk));
  RunTask(ArgumentTask(OperatorSlot("copy_bytes"), 2, chunks),
          {DenseTensor(from, DType::kU8, {static_cast<int64_t>(bytes)}),
           DenseTensor(to, DType::kU8, {static_cast<int64_t>(bytes)})});
}

uint64_t DeviceTasks::Upload(const void* data, uint64_t bytes) {
  const uint64_t memory = harness_.Memory(bytes);
  for (uint64_t done = 0; done < bytes; done += kStagingBytes) {
    const uint64_t part = std::min(kStagingBytes, bytes - done);
    std::memcpy(staging_.host, static_cast<const char*>(data) + done, part);
    Copy(memory + done, staging_.address, part);
  }
  return memory;
}

void DeviceTasks::Download(void* data, uint64_t memory, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes; done += kStagingBytes) {
    const uint64_t part = std::min(kStagingBytes, bytes - done);
    Copy(staging_.address, memory + done, part);
    std::memcpy(static_cast<char*>(data) + done, staging_.host, part);
  }
}

}  // namespace resident::testing
