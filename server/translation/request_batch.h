// RequestBatch: a client's batch on its way through the runtime, with what it takes to
// answer it.
//
// Thread safety: as Batch.
#ifndef RESIDENT_SERVER_TRANSLATION_REQUEST_BATCH_H_
#define RESIDENT_SERVER_TRANSLATION_REQUEST_BATCH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/host_memory.h"
#include "runtime/operators/registry/operator_version.h"
#include "runtime/queue/batch.h"

namespace resident {

struct RequestBatch : Batch, std::enable_shared_from_this<RequestBatch> {
  // Chosen by the client.
  uint64_t id = 0;
  uint32_t device = 0;
  std::string operator_name;
  uint32_t version = 0;

  // Returned columns, in argument order; the memory is in keep_alive.
  struct Returned {
    const uint8_t* host;
    uint64_t task_bytes;
  };
  std::vector<Returned> returned;

  // FLUX: the last task runs all programs (an earlier one may stage the bytecode).
  bool flux = false;
  uint32_t flux_runs = 0;
  uint32_t flux_wanted = 0;
  const uint8_t* flux_registers = nullptr;
  const uint8_t* flux_errors = nullptr;
  const uint8_t* flux_cycles = nullptr;

  // Run this version beside, once the tasks have ended (server/rpc/shadow_runner.h); mostly
  // null. The arguments that are its outputs.
  std::shared_ptr<const OperatorVersion> shadow;
  std::vector<uint32_t> shadow_outputs;

  // The daemon's memory that the tasks and what becomes of them take.
  HostMemory::Charge charge;

  // Window memory held (in keep_alive); address as operators see it.
  uint64_t window_address = 0;
  uint64_t window_bytes = 0;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_TRANSLATION_REQUEST_BATCH_H_
