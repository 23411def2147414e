// Core: what the services share. It owns all of it but the devices, the operators and the rights
// of callers, which exist before it; its members are constructed in their order below.
//
// Thread safety: the members' own; the structure itself does not change after its construction.
#ifndef RESIDENT_SERVER_RPC_CORE_H_
#define RESIDENT_SERVER_RPC_CORE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/limits.h"
#include "runtime/device/buffer_table.h"
#include "runtime/device/device.h"
#include "runtime/operators/install/operator_manager.h"
#include "runtime/operators/registry/registry.h"
#include "server/admission/admission.h"
#include "server/admission/drain_gate.h"
#include "server/auth/access.h"
#include "server/connections/passed_descriptors.h"
#include "server/rpc/batch_runner.h"
#include "server/rpc/client_table.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/rpc_counters.h"
#include "server/rpc/shadow_runner.h"
#include "server/rpc/shared_slots.h"
#include "server/rpc/worker_pool.h"
#include "server/workload/planner.h"

namespace resident {

struct CoreOptions {
  Limits limits = {};
  // Staging memory of each device.
  uint64_t staging_bytes = 0;
  // --task_time_limit; 0: none.
  std::chrono::milliseconds task_time_limit{10'000};
  // Whether calls have credentials that say who calls; otherwise every caller is `anonymous`.
  bool credentials = false;
  bool allow_shared_memory = true;
  // Whether shared memory may be imported by its name, which proves nothing: only where callers
  // have no identities and are on this machine.
  bool named_shared_memory = false;
  // Where descriptors are passed; empty: nowhere.
  std::string local_address = {};
};

// Threads for work that must not run on gRPC's threads or on a dispatch loop.
struct Pools {
  explicit Pools(uint32_t max_installs);
  // Finishes what was posted and ends the threads. Work in a pool may post to the pools above it
  // here, which therefore stop after it. REQUIRES: nothing else posts any more.
  void Stop();

  // For answers that copy a lot, and what follows the end of a batch.
  WorkerPool answers;
  // For making the tasks of large batches that waited, which must not delay answers.
  WorkerPool fills;
  // For calls that wait for an engine's answer or for the disk (mapping, the audit log).
  WorkerPool blocking;
  // One thread, for what waits for the disk of --state_dir.
  WorkerPool disk;
  // For changes of what serves, which must not wait behind those: a rollback is urgent.
  WorkerPool changes;
  // For changes that wait for a generation (a forced activation), which those must not wait
  // behind.
  WorkerPool rounds;
  // For installs; a thread for each of Limits::max_installs.
  WorkerPool installs;
};

struct Core {
  // `devices`: by index.
  Core(const CoreOptions& options, std::vector<Device*> devices, Registry& registry,
       OperatorManager& operators, Access& access);
  ~Core() { Stop(); }
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Refuses what waits to be admitted, then stops the pools. REQUIRES: no call is left, and no
  // device has a batch. Idempotent.
  void Stop();

  // Puts the durable buffers back on a device whose engine this session is.
  void RestoreBuffers(Device& device, EngineSession& session);

  const Limits limits;
  const bool credentials;
  const bool allow_shared_memory;
  const bool named_shared_memory;
  const std::string local_address;

  const std::vector<Device*> devices;
  Registry& registry;
  OperatorManager& operators;
  Access& access;

  RpcCounters counters;
  DrainGate gate;
  Admission admission;
  BufferTable buffers;
  // Of Operators.Watch streams, and of installs under way.
  SharedSlots watch_slots;
  SharedSlots install_slots;
  LiveStreams streams;
  // What came over the local socket, whose threads may outlive this object.
  const std::shared_ptr<PassedDescriptors> passed_descriptors;
  Pools pools;
  ClientTable clients;
  const Planner planner;
  ShadowRunner shadows;
  BatchRunner runner;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_CORE_H_
