// DurableCopy: the host's copy of a durable buffer; zeros where nothing was written. Takes
// its memory as it is written.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_RUNTIME_DEVICE_DURABLE_COPY_H_
#define RESIDENT_RUNTIME_DEVICE_DURABLE_COPY_H_

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "runtime/base/host_memory.h"

namespace resident {

class DurableCopy {
 public:
  // RESOURCE_EXHAUSTED: over a limit of `host`, or the system has no more.
  static absl::StatusOr<std::shared_ptr<DurableCopy>> Make(std::shared_ptr<HostMemory> host,
                                                           std::shared_ptr<HostUse> own,
                                                           uint64_t bytes);
  // One that was accepted before the daemon was restarted: no limit refuses it.
  static absl::StatusOr<std::shared_ptr<DurableCopy>> Restore(std::shared_ptr<HostMemory> host,
                                                              uint64_t bytes);

  void Write(uint64_t offset, absl::Span<const uint8_t> data);
  // Calls `use` with the contents; writers wait.
  void Read(const std::function<void(absl::Span<const uint8_t>)>& use) const;

 private:
  struct FreeBytes {
    void operator()(uint8_t* bytes) const { free(bytes); }
  };
  using Bytes = std::unique_ptr<uint8_t[], FreeBytes>;

  static absl::StatusOr<std::shared_ptr<DurableCopy>> MakeCharged(std::shared_ptr<HostMemory> host,
                                                                  HostMemory::Charge charge,
                                                                  uint64_t bytes);
  DurableCopy(std::shared_ptr<HostMemory> host, HostMemory::Charge charge, Bytes bytes,
              uint64_t size)
      : host_(std::move(host)), charge_(std::move(charge)), size_(size), bytes_(std::move(bytes)) {}

  const std::shared_ptr<HostMemory> host_;  // Outlives the charge.
  const HostMemory::Charge charge_;
  const uint64_t size_;
  mutable absl::Mutex mu_;
  const Bytes bytes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_DURABLE_COPY_H_
