// Buffers: what the calls of resident.v1.Buffers share, and what limits clients' shared memory. The
// table of the buffers themselves is Core::buffers.
//
// Thread safety: that of each member; the structure itself does not change after its construction.
#ifndef RESIDENT_SERVER_BUFFERS_BUFFERS_H_
#define RESIDENT_SERVER_BUFFERS_BUFFERS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "resident/v1/buffers.pb.h"
#include "runtime/base/limits.h"
#include "server/connections/passed_descriptors.h"
#include "server/core/core.h"
#include "server/core/shared_slots.h"
#include "server/workload/placement.h"

namespace resident {

struct BuffersOptions {
  bool allow_shared_memory = true;
  // Whether shared memory may be imported by its name, which does not prove that the caller may use
  // it. True only if callers have no identities and are on this machine.
  bool named_shared_memory = false;
  // --load_dir: the folder of the files that Buffers.LoadFile may read; empty: none.
  std::string load_dir = {};
};

struct Buffers {
  // The core must outlive it.
  explicit Buffers(Core& the_core, const BuffersOptions& options = {})
      : core(the_core),
        allow_shared_memory(options.allow_shared_memory),
        named_shared_memory(options.named_shared_memory),
        load_dir(options.load_dir) {}
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  Core& core;
  const bool allow_shared_memory;
  const bool named_shared_memory;
  const std::string load_dir;
  // For calls of Buffers.LoadFile.
  SharedSlots load_slots{{.what = "calls of Buffers.LoadFile"}, kMaxLoads};
  // For buffers in clients' memory, each of which holds a descriptor.
  SharedSlots shared_memory_slots{{.what = "buffers in shared memory"}, kMaxSharedBuffers};
  // Descriptors from the local socket, whose threads may outlive this object.
  const std::shared_ptr<PassedDescriptors> passed_descriptors =
      std::make_shared<PassedDescriptors>();
};

// What the calls that make, fill and read buffers share.
void DescribeBuffer(const Buffer& buffer, v1::BufferInfo* info);

// Reads the dtype and the shape of a request. INVALID_ARGUMENT: they are not those of any buffer.
absl::Status ReadBufferSpec(int dtype, const google::protobuf::RepeatedField<uint64_t>& shape,
                            BufferSpec* spec);
// INVALID_ARGUMENT: the shape needs more than the memory's bytes, which are in `field`.
absl::Status CheckFits(const BufferSpec& spec, const char* field, uint64_t bytes);

// Chooses a device with `bytes` of free memory for a client's buffer; `wanted`: the device that the
// client requests, if any.
absl::StatusOr<Placement> ChooseBufferDevice(const Core& core, const Client& client,
                                             std::optional<uint32_t> wanted, uint64_t bytes);
// Takes the buffer's bytes from its identity's quota. The buffer table refuses a shape that is too
// large for any device.
absl::Status ReserveBufferBytes(const Client& client, BufferSpec* spec);
// Allocates a client's buffer, with a device and the quota in addition to `spec`. It waits for the
// disk if the buffer is durable and BufferTable::on_disk().
absl::StatusOr<std::shared_ptr<const Buffer>> AllocateBuffer(Core& core, const Client& client,
                                                             std::optional<uint32_t> wanted,
                                                             BufferSpec spec);

// How a piece of a transfer ended. `what`: "the upload".
absl::Status FindOutcome(const std::string& what, const Batch& piece);

// Opens a client's POSIX shared-memory object by its name; checks the size of one that was passed
// as a descriptor.

// Opens an object of at least `size_bytes` by its name and returns a descriptor, which the caller
// closes. The daemon may be able to open more objects than its clients may; therefore only objects
// that belong to the daemon's user, or that all users may read and write, are accepted.
// REQUIRES: Buffers::named_shared_memory, because a name does not prove that the client may use the
// object. Errors: INVALID_ARGUMENT (name, size), NOT_FOUND, PERMISSION_DENIED.
absl::StatusOr<int> OpenSharedMemory(const std::string& name, uint64_t size_bytes);

// INVALID_ARGUMENT: shared memory that a client passed has less than `size_bytes`, or that is 0.
absl::Status CheckSharedSize(int fd, uint64_t size_bytes);

}  // namespace resident

#endif  // RESIDENT_SERVER_BUFFERS_BUFFERS_H_
