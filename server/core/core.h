// Core: the state that the services share. It owns all of it except the devices, the operators and
// the rights of callers, which must outlive it. The members are constructed in the order below.
//
// Thread safety: that of each member; the structure itself does not change after its construction.
#ifndef RESIDENT_SERVER_CORE_CORE_H_
#define RESIDENT_SERVER_CORE_CORE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/limits.h"
#include "runtime/base/time_source.h"
#include "runtime/device/buffer_table.h"
#include "runtime/device/device.h"
#include "runtime/operators/install/operator_manager.h"
#include "runtime/operators/registry/registry.h"
#include "server/admission/admission.h"
#include "server/admission/drain_gate.h"
#include "server/auth/access.h"
#include "server/core/batch_runner.h"
#include "server/core/client_table.h"
#include "server/core/live_streams.h"
#include "server/core/rpc_counters.h"
#include "server/core/shadow_runner.h"
#include "server/core/worker_pool.h"
#include "server/models/table/model_table.h"
#include "server/workload/planner.h"

namespace resident {

// The daemon among those of a fleet, see StatusResponse.
struct Node {
  std::string id = {};
  std::string name = {};
};

struct CoreOptions {
  Limits limits = {};
  // Staging memory of each device.
  uint64_t staging_bytes = 0;
  // --task_time_limit; 0: none.
  std::chrono::milliseconds task_time_limit{10'000};
  // Whether credentials identify callers; otherwise every caller is `anonymous`.
  bool credentials = false;
  // The socket over which descriptors are passed; empty: none.
  std::string local_address = {};
  Node node = {};
  // For the deadlines of batches; outlives the core. The devices' queues must have the same.
  TimeSource* time = &TimeSource::Steady();
};

// Threads for work that must not run on gRPC's threads or on a dispatch loop.
struct Pools {
  explicit Pools(uint32_t max_installs);
  // Finishes the posted work and ends the threads. REQUIRES: no call is left, no device has a
  // batch, and Admission has been stopped. The posted work then posts only to `answers`, which
  // stops last.
  void Stop();

  // For answers that copy a lot, and other work after the end of a batch.
  WorkerPool answers;
  // For building the tasks of large batches that waited, and of the batches behind one that waited,
  // which must not delay answers.
  WorkerPool fills;
  // For calls that wait for an engine's answer (mapping of shared memory).
  WorkerPool blocking;
  // One thread, for work that waits for the disk of --state_dir.
  WorkerPool disk;
  // One thread, which reads the files of Buffers.LoadFile one after the other.
  WorkerPool loads;
  // For changes of the active versions. They must not wait behind the pools above, because a
  // rollback is urgent.
  WorkerPool changes;
  // For changes that wait for a generation (a forced activation), so that `changes` do not wait
  // behind them.
  WorkerPool rounds;
  // For installs; one thread for each of Limits::max_installs.
  WorkerPool installs;
};

struct Core {
  // `devices`: by index.
  Core(const CoreOptions& options, std::vector<Device*> devices, Registry& registry,
       OperatorManager& operators, Access& access);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Refuses the requests that wait to be admitted, then stops the pools. REQUIRES: no call is left,
  // and no device has a batch. Idempotent.
  void Stop();

  // Whether the daemon accepts work, a device is usable, and the set of --operators_dir was
  // applied.
  bool ready() const;

  // Restores the durable buffers on a device whose engine is `session`.
  void RestoreBuffers(Device& device, EngineSession& session);

  const Limits limits;
  const bool credentials;
  const std::string local_address;
  const Node node;
  TimeSource& time;

  const std::vector<Device*> devices;
  Registry& registry;
  OperatorManager& operators;
  Access& access;

  // The names that installs may not use are those of its models.
  ModelTable models;
  // False until what --operators_dir lists is applied; true without the flag.
  std::atomic<bool> set_applied{true};
  RpcCounters counters;
  DrainGate gate;
  Admission admission;
  BufferTable buffers;
  LiveStreams streams;
  Pools pools;
  ClientTable clients;
  const Planner planner;
  ShadowRunner shadows;
  BatchRunner runner;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CORE_CORE_H_
