// ImportedMemory: device memory of other processes that an engine has mapped by descriptors of the
// driver (cuMemExportToShareableHandle). Unlike memory of an IPC handle it is mapped and unmapped
// while a kernel is resident; none of the calls waits for the kernel.
//
// A mapping keeps the memory, also when its process has freed it or has ended.
//
// Thread safety: all members may be called from any thread on which the engine's context is
// current.
//
//   ASSIGN_OR_RETURN(const uint64_t address, imported.Map(ordinal, fd, allocation_bytes));
//   imported.Unmap(address);
#ifndef RESIDENT_RUNTIME_ENGINE_CUDA_IMPORTED_MEMORY_H_
#define RESIDENT_RUNTIME_ENGINE_CUDA_IMPORTED_MEMORY_H_

#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/engine/cuda/driver.h"

namespace resident {

class ImportedMemory {
 public:
  explicit ImportedMemory(const Driver& driver) : driver_(driver) {}
  ImportedMemory(const ImportedMemory&) = delete;
  ImportedMemory& operator=(const ImportedMemory&) = delete;

  // Maps a whole allocation for the device with this ordinal; `fd` is used during the call only.
  // The same memory may be mapped several times. Errors: those of Engine::MapDeviceDescriptor.
  // After a fault of the context each call fails, whatever the descriptor is.
  absl::StatusOr<uint64_t> Map(int ordinal, int fd, uint64_t allocation_bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns whether there was a mapping at the address. It is unmapped.
  bool Unmap(uint64_t address) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Whether the memory is on the device.
  absl::Status CheckDevice(int ordinal, CUmemGenericAllocationHandle memory) const;
  absl::StatusOr<CUdeviceptr> MapHandle(int ordinal, CUmemGenericAllocationHandle memory,
                                        uint64_t bytes) const;

  const Driver& driver_;
  absl::Mutex mu_;
  std::map<uint64_t, uint64_t> bytes_ ABSL_GUARDED_BY(mu_);  // By address.
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CUDA_IMPORTED_MEMORY_H_
