// BufferTable: every buffer of every device, by id.
//
// A buffer belongs to an owner (a session) and is freed with it, unless it is
// durable: then every session may use it, and its contents (as of the last completed upload or
// Persist) are kept on the host and restored when the device's engine is replaced. If there is a
// state folder, they are also kept there and restored when the daemon is restarted. A client's
// shared memory is mapped into the new engine, with the contents that it has by then. Other
// buffers are lost with their engine; their ids are kept until they are freed, so that the error
// of a task that uses one says why it was lost.
//
// The table returns immutable snapshots. A snapshot keeps the memory allocated: freeing
// a buffer removes its id, and its memory is freed when the last batch that uses it is
// destroyed. A buffer that is restored gets a new snapshot.
//
// Invariants:
//   1. Every buffer that is not durable has an owner in the table.
//   2. usage(owner) counts exactly the owner's buffers, durable ones included.
//   3. A snapshot whose memory is null has a lost_cause.
//   4. After OnRestart has begun, no buffer of an earlier engine of that device is added to
//      the table, because no later call would mark it as lost. A restore for an earlier engine
//      that ends late changes nothing.
//   5. A durable buffer is in the state folder before any call can find it and until it is freed,
//      with contents at least as new as those of each write whose Save has returned.
//
// Thread safety: all members may be called from any thread.
//
//   table.AddOwner(client);
//   ASSIGN_OR_RETURN(auto buffer, table.Allocate(spec, client, session));
//   ASSIGN_OR_RETURN(auto same, table.Find(client, buffer->id));
#ifndef RESIDENT_RUNTIME_DEVICE_BUFFER_TABLE_H_
#define RESIDENT_RUNTIME_DEVICE_BUFFER_TABLE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "runtime/base/limits.h"
#include "runtime/device/durable_copy.h"
#include "runtime/device/engine_session.h"
#include "runtime/model/signature.h"
#include "runtime/queue/batch.h"
#include "runtime/queue/device_queue.h"
#include "runtime/state/state_store.h"

namespace resident {

// A request for a buffer.
struct BufferSpec {
  DType dtype = DType::kF32;
  Shape shape = {};
  uint32_t device = 0;
  bool durable = false;
  std::string name = {};
  // Memory whose contents an engine trusts: only calls with InternalAccess(owner) find it. Not for
  // durable buffers.
  bool internal = false;
  // Held until the buffer is destroyed: the part of a quota that it uses.
  std::shared_ptr<const void> quota = nullptr;
};

// Maps `bytes` bytes of a client's memory into an engine.
using MapMemory = std::function<absl::StatusOr<std::shared_ptr<const DeviceMemory>>(
    EngineSession& session, uint64_t bytes)>;

// A snapshot of a buffer.
struct Buffer {
  // Where the memory is: device memory of the engine, memory of the host that a client shares, or
  // device memory of a client's process.
  enum class Place : uint8_t { kDevice, kHost, kImportedDevice };

  uint64_t id = 0;
  uint32_t device = 0;
  ClientId owner = 0;
  DType dtype = DType::kF32;
  Shape shape;
  uint64_t size_bytes = 0;
  bool durable = false;
  bool internal = false;
  Place place = Place::kDevice;
  // Set for memory of a client: all but kDevice.
  std::shared_ptr<const MapMemory> map;
  std::string name;
  std::shared_ptr<const void> quota;

  std::shared_ptr<const DeviceMemory> memory;  // Null: lost.
  uint64_t epoch = 0;                          // The epoch of the engine that owns `memory`.
  std::string lost_cause;
  std::shared_ptr<DurableCopy> host_copy;  // Set for durable buffers.
};

class BufferTable {
 public:
  // Of a column of tasks: most have one buffer.
  using FoundBuffers = absl::InlinedVector<const Buffer*, 1>;

  struct Usage {
    uint64_t buffers = 0;
    uint64_t bytes = 0;
    uint32_t newest_device = 0;  // Device of the newest buffer; undefined without buffers.
  };

  explicit BufferTable(const Limits& limits)
      : limits_(limits),
        memory_(std::make_shared<DurableMemory>(limits.max_client_host_mib << 20,
                                                limits.max_host_mib << 20)) {}

  // Stores durable buffers in the state folder from now on, and loads those that are there.
  // They have no memory until OnRestart has been called for their device. Call it once, before
  // all members except AddOwner. Returns warnings about buffers that could not be read, for the
  // daemon's log.
  std::vector<std::string> Load(StateStore* state);
  // Whether allocating, saving and freeing durable buffers waits for a disk.
  bool on_disk() const { return state_ != nullptr && !state_->in_memory(); }
  // Writes a durable buffer's host copy to the state folder; OK: it is on disk. Does nothing if
  // there is no folder, or the buffer was freed.
  absl::Status Save(const Buffer& buffer);
  // Starts a write to a durable buffer by `client`. The caller commits it when all of it is on the
  // device, and then calls Save. Errors: those of DurableCopy::StartWrite; FAILED_PRECONDITION (the
  // buffer was lost), UNAUTHENTICATED (the client's session has ended).
  absl::StatusOr<std::unique_ptr<DurableWrite>> StartWrite(DurableCopy::Kind kind, ClientId client,
                                                           const Buffer& buffer);

  // The client of calls of the daemon about internal memory of this client.
  static ClientId InternalAccess(ClientId client) { return client | kInternal; }

  void AddOwner(ClientId owner);
  // Frees the owner's buffers that are not durable.
  void RemoveOwner(ClientId owner);

  // Errors: INVALID_ARGUMENT (dtype, shape, name), RESOURCE_EXHAUSTED (device memory,
  // the owner's share, the number of buffers, host memory for a durable one's copy),
  // UNAUTHENTICATED (the owner's session has ended), UNAVAILABLE (the engine was replaced
  // meanwhile, or the state folder cannot be written), INTERNAL (what was written there may not be
  // on disk). After an error the buffer is not in the table.
  absl::StatusOr<std::shared_ptr<const Buffer>> Allocate(const BufferSpec& spec, ClientId owner,
                                                         EngineSession& session);
  // The same for memory of a client, at `place`. After the bytes have been counted, `map` is called
  // to map that many; it is called again for each engine that replaces the session's, until the
  // buffer is destroyed.
  absl::StatusOr<std::shared_ptr<const Buffer>> Adopt(const BufferSpec& spec, ClientId owner,
                                                      EngineSession& session, Buffer::Place place,
                                                      MapMemory map);

  // NOT_FOUND: no such buffer, or it belongs to another owner. A lost buffer is found.
  absl::StatusOr<std::shared_ptr<const Buffer>> Find(ClientId client, uint64_t id) const;
  // Finds many buffers, e.g. the ids of a column: found[i] is the buffer of ids[i], and `hold`
  // keeps all of them allocated, with one entry for a run of equal ids.
  absl::Status FindAll(ClientId client, absl::Span<const uint64_t> ids, FoundBuffers& found,
                       KeptAlive& hold) const;
  absl::Status Free(ClientId client, uint64_t id);
  // The client's buffers and all durable ones, by id.
  std::vector<std::shared_ptr<const Buffer>> List(ClientId client) const;

  Usage usage(ClientId owner) const;
  // Memory of the copies of durable buffers and of writes to them that have not ended.
  uint64_t copies_bytes() const {
    return memory_->copies.used_bytes() + memory_->writes.used_bytes();
  }
  // Number of buffers on a device.
  uint64_t CountOn(uint32_t device) const;

  // Fills a block of device memory and waits until that is done. `fill` writes the bytes at an
  // offset to `to`, or returns an error, which ends the restore.
  using Fill = std::function<absl::Status(uint64_t offset, absl::Span<uint8_t> to)>;
  using Restore = std::function<absl::Status(EngineSession& session, const DeviceMemory& memory,
                                             uint64_t bytes, const Fill& fill)>;
  // The device has a new engine: durable buffers get memory and contents there, memory of clients
  // is mapped there, and the others are lost with the reason `cause`. Does nothing if the call for
  // a newer engine has begun.
  void OnRestart(uint32_t device, EngineSession& session, const std::string& cause,
                 const Restore& restore);

 private:
  absl::Status CheckSpec(const BufferSpec& spec, uint64_t* bytes) const;
  // `use`: receives the counters of the owner's durable copies.
  absl::Status Reserve(const BufferSpec& spec, ClientId owner, uint64_t bytes, DurableUse* use);
  void Unreserve(ClientId owner, uint64_t bytes, bool durable) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::shared_ptr<const Buffer>> Insert(std::shared_ptr<Buffer> buffer);
  // Inserts the buffer, and stores it in the state folder before any other call can write it there.
  absl::StatusOr<std::shared_ptr<const Buffer>> InsertDurable(std::shared_ptr<Buffer> buffer);
  // Gives the buffer memory on the session's engine: its client's, or new memory with the durable
  // contents. Nothing if it has neither.
  absl::StatusOr<std::shared_ptr<const DeviceMemory>> MoveMemory(const Buffer& old,
                                                                 EngineSession& session,
                                                                 const Restore& restore);
  // Returns the buffer on the session's engine, or as lost.
  std::shared_ptr<Buffer> MoveToEngine(const Buffer& old, EngineSession& session,
                                       const std::string& cause, const Restore& restore);
  // Of a ClientId; ids of clients do not have it.
  static constexpr ClientId kInternal = ClientId{1} << 63;
  static bool Visible(const Buffer& buffer, ClientId client) {
    if (buffer.internal) return InternalAccess(buffer.owner) == client;
    return buffer.durable || buffer.owner == client;
  }

  // Removes the buffer from the table.
  absl::Status Forget(ClientId client, uint64_t id);

  // The newest engine of a device.
  struct Restarted {
    uint64_t epoch = 0;
    std::string cause;
  };

  // The table's data about an owner.
  struct Owner {
    Usage usage;
    DurableUse durable;
  };

  const Limits limits_;
  const std::shared_ptr<DurableMemory> memory_;
  StateStore* state_ = nullptr;  // Set by Load.
  // Held while a durable buffer is written to the state folder. It guarantees that a buffer is
  // created before its contents are saved, that the later of two saves has the later contents, and
  // that a freed buffer is not written again. Acquired before mu_.
  absl::Mutex save_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  mutable absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<const Buffer>> buffers_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ClientId, Owner> owners_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint32_t, Restarted> restarted_ ABSL_GUARDED_BY(mu_);
  uint64_t durable_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_BUFFER_TABLE_H_
