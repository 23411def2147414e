// BufferTable: every buffer of every device, by id.
//
// A buffer belongs to an owner (a session) and is freed with it, unless it is
// durable: then every session may use it, and its contents are kept on the host (as
// of the last completed upload or Persist) and put back when the device's engine is replaced. With
// a state folder they are kept there too, and put back when the daemon is started again. Other
// buffers are lost with their engine; their ids stay, so that a task that names one is told why,
// until they are freed.
//
// The table hands out immutable snapshots. A snapshot keeps the memory alive: freeing
// a buffer takes its id away, and its memory goes when the last batch that uses it is
// destroyed. A buffer that is restored gets a new snapshot.
//
// Invariants:
//   1. Every buffer that is not durable has an owner that the table knows.
//   2. usage(owner) counts exactly the owner's buffers, durable ones included.
//   3. A snapshot whose memory is null has a lost_cause.
//   4. Once OnRestart has begun, no buffer of an earlier engine of that device comes into
//      the table: nobody would look after it. A restore for an earlier engine that ends late
//      changes nothing.
//   5. The state folder has a durable buffer from before it can be found to when it is freed,
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
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "runtime/base/limits.h"
#include "runtime/device/durable_copy.h"
#include "runtime/device/engine_session.h"
#include "runtime/model/signature.h"
#include "runtime/queue/device_queue.h"
#include "runtime/state/state_store.h"

namespace resident {

// What is asked for.
struct BufferSpec {
  DType dtype = DType::kF32;
  Shape shape = {};
  uint32_t device = 0;
  bool durable = false;
  std::string name = {};
  // Kept for as long as the buffer is: what it takes of somebody's quota.
  std::shared_ptr<const void> quota = nullptr;
};

// A buffer as it was when it was looked up.
struct Buffer {
  uint64_t id = 0;
  uint32_t device = 0;
  ClientId owner = 0;
  DType dtype = DType::kF32;
  Shape shape;
  uint64_t size_bytes = 0;
  bool durable = false;
  bool shared = false;
  std::string name;
  std::shared_ptr<const void> quota;

  std::shared_ptr<const DeviceMemory> memory;  // Null: lost.
  uint64_t epoch = 0;                          // Of the engine that `memory` belongs to.
  std::string lost_cause;
  std::shared_ptr<DurableCopy> host_copy;  // Durable buffers.
};

class BufferTable {
 public:
  struct Usage {
    uint64_t buffers = 0;
    uint64_t bytes = 0;
    uint32_t newest_device = 0;  // Of the buffer that came last; says nothing without buffers.
  };

  explicit BufferTable(const Limits& limits)
      : limits_(limits),
        memory_(std::make_shared<DurableMemory>(limits.max_client_host_mib << 20,
                                                limits.max_host_mib << 20)) {}

  // Keeps durable buffers in the state folder from now on, and takes those that are there.
  // They have no memory until OnRestart has been called for their device. Once, before
  // all else but AddOwner. Returns what could not be read, for the daemon's log.
  std::vector<std::string> Load(StateStore* state);
  // Whether allocating, saving and freeing durable buffers waits for a disk.
  bool on_disk() const { return state_ != nullptr && !state_->in_memory(); }
  // Writes a durable buffer's host copy to the state folder; on disk once it returned OK.
  // Nothing if there is no folder, or the buffer was freed.
  absl::Status Save(const Buffer& buffer);
  // A write to a durable buffer by `client`, to be committed once all of it is on the device, and
  // then saved. Errors: as DurableCopy::StartWrite; FAILED_PRECONDITION (the buffer was lost),
  // UNAUTHENTICATED (the client is gone).
  absl::StatusOr<std::unique_ptr<DurableWrite>> StartWrite(DurableCopy::Kind kind, ClientId client,
                                                           const Buffer& buffer);

  void AddOwner(ClientId owner);
  // Frees the owner's buffers, but not durable ones.
  void RemoveOwner(ClientId owner);

  // Errors: INVALID_ARGUMENT (dtype, shape, name), RESOURCE_EXHAUSTED (device memory,
  // the owner's share, the number of buffers, host memory for a durable one's copy),
  // UNAUTHENTICATED (the owner is gone),
  // UNAVAILABLE (the engine was replaced meanwhile, or the state folder cannot be
  // written), INTERNAL (what was written there may not be on disk). Nothing is in the table
  // then.
  absl::StatusOr<std::shared_ptr<const Buffer>> Allocate(const BufferSpec& spec, ClientId owner,
                                                         EngineSession& session);
  // The same for memory that is there already (a client's shared memory). `map` makes so
  // many bytes of it reachable, once they are counted.
  using Map = std::function<absl::StatusOr<std::shared_ptr<const DeviceMemory>>(uint64_t bytes)>;
  absl::StatusOr<std::shared_ptr<const Buffer>> Adopt(const BufferSpec& spec, ClientId owner,
                                                      const Map& map, uint64_t epoch);

  // NOT_FOUND: no such buffer, or another owner's. A lost buffer is found.
  absl::StatusOr<std::shared_ptr<const Buffer>> Find(ClientId client, uint64_t id) const;
  // Many at once, e.g. the ids of a column; runs of equal ids share one entry:
  // found[i] is the buffer of ids[i], and `hold` keeps all of them alive.
  absl::Status FindAll(ClientId client, absl::Span<const uint64_t> ids,
                       std::vector<const Buffer*>& found,
                       std::vector<std::shared_ptr<const void>>& hold) const;
  absl::Status Free(ClientId client, uint64_t id);
  // The client's buffers and all durable ones, by id.
  std::vector<std::shared_ptr<const Buffer>> List(ClientId client) const;

  Usage usage(ClientId owner) const;
  // Memory that the copies of durable buffers take, and writes to them that have not ended.
  uint64_t copies_bytes() const {
    return memory_->copies.used_bytes() + memory_->writes.used_bytes();
  }
  // Buffers that live on a device.
  uint64_t CountOn(uint32_t device) const;

  // Fills a block of device memory and waits until that is done. `fill` gives the bytes at an
  // offset, or an error that ends the restore.
  using Fill = std::function<absl::Status(uint64_t offset, absl::Span<uint8_t> to)>;
  using Restore = std::function<absl::Status(EngineSession& session, const DeviceMemory& memory,
                                             uint64_t bytes, const Fill& fill)>;
  // The device has a new engine: durable buffers get memory and contents there, the
  // others are lost, because of `cause`. Nothing if a newer engine's call has begun.
  void OnRestart(uint32_t device, EngineSession& session, const std::string& cause,
                 const Restore& restore);

 private:
  absl::Status CheckSpec(const BufferSpec& spec, uint64_t* bytes) const;
  // `use`: what the owner's durable copies are counted with.
  absl::Status Reserve(const BufferSpec& spec, ClientId owner, uint64_t bytes, DurableUse* use);
  void Unreserve(ClientId owner, uint64_t bytes, bool durable) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::shared_ptr<const Buffer>> Insert(std::shared_ptr<Buffer> buffer);
  // Insert, with the buffer in the state folder before anybody else can write to it there.
  absl::StatusOr<std::shared_ptr<const Buffer>> InsertDurable(std::shared_ptr<Buffer> buffer);
  // The buffer on the session's engine, with its durable contents; without them, it is lost.
  std::shared_ptr<Buffer> MoveToEngine(const Buffer& old, EngineSession& session,
                                       const std::string& cause, const Restore& restore);
  static bool Visible(const Buffer& buffer, ClientId client) {
    return buffer.durable || buffer.owner == client;
  }

  // Takes it out of the table.
  absl::Status Forget(ClientId client, uint64_t id);

  // The engine that a device was given last.
  struct Restarted {
    uint64_t epoch = 0;
    std::string cause;
  };

  // What the table knows of an owner.
  struct Owner {
    Usage usage;
    DurableUse durable;
  };

  const Limits limits_;
  const std::shared_ptr<DurableMemory> memory_;
  StateStore* state_ = nullptr;  // Set by Load.
  // Held while something of a durable buffer is written to the state folder. It orders: that a
  // buffer is made before its contents are saved; of two saves, that the later one has the later
  // contents; that one that is freed is not written again. Taken before mu_.
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
