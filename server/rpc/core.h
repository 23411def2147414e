// Core: everything the services share.
//
// Made by serve.cc, in this order; taken apart in reverse.
//
// Thread safety: the members' own; the structure itself does not change while serving.
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
#include "server/rpc/shared_slots.h"
#include "server/rpc/worker_pool.h"

namespace resident {

struct Core {
  Limits limits;
  std::vector<Device*> devices;  // By index.
  Registry* registry = nullptr;
  OperatorManager* operators = nullptr;
  BufferTable* buffers = nullptr;
  ClientTable* clients = nullptr;
  BatchRunner* runner = nullptr;
  DrainGate* gate = nullptr;
  Access* access = nullptr;
  // Whether calls have credentials that say who calls; otherwise every caller is `anonymous`.
  bool credentials = false;
  RpcCounters* counters = nullptr;
  Admission* admission = nullptr;
  LiveStreams* streams = nullptr;
  // Of Operators.Watch streams, and of installs under way.
  SharedSlots* watch_slots = nullptr;
  SharedSlots* install_slots = nullptr;
  // For calls that wait for an engine's answer or for the disk (mapping, the audit log).
  WorkerPool* blocking = nullptr;
  // For changes of what serves, which must not wait behind those: a rollback is urgent.
  WorkerPool* changes = nullptr;
  // For changes that wait for a generation (a forced activation), which those must not wait
  // behind.
  WorkerPool* rounds = nullptr;
  // For installs; a thread for each of Limits::max_installs.
  WorkerPool* installs = nullptr;
  // One thread, for what waits for the disk of --state_dir.
  WorkerPool* disk = nullptr;

  bool allow_shared_memory = true;
  // Whether shared memory may be imported by its name, which proves nothing: only where callers
  // have no identities and are on this machine.
  bool named_shared_memory = false;
  // What came over the local socket; null: there is none.
  PassedDescriptors* passed_descriptors = nullptr;
  std::string local_address;
  std::chrono::milliseconds drain_timeout{0};
  Clock::time_point started = Clock::now();
  std::string metrics_address;
  std::string gpu_unavailable_reason;
  // Called once the gate has been closed: tells the health service.
  std::function<void()> on_draining;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_CORE_H_
