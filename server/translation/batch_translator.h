// BatchTranslator: resident.v1.Batch to the runtime's batches.
//
// Everything a client sends is checked here, before anything reaches a ring: names,
// counts, dtypes, shapes, and every offset and length against the bytes that are
// there. Work for each task is a few stores; all that is the same for all tasks of a
// column (lookups, signature, sizes) is done once.
//
// Thread safety: Translate may be called from any thread at once.
//
//   BatchTranslator translator({&limits, &registry, &buffers, devices});
//   ASSIGN_OR_RETURN(auto batch, translator.Translate(message, caller));
//   batch->done = ...;
//   devices[batch->device].device->queue().Enqueue(client, batch);
#ifndef RESIDENT_SERVER_TRANSLATION_BATCH_TRANSLATOR_H_
#define RESIDENT_SERVER_TRANSLATION_BATCH_TRANSLATOR_H_

#include <chrono>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "resident/v1/executor.pb.h"
#include "runtime/base/host_memory.h"
#include "runtime/base/limits.h"
#include "runtime/device/buffer_table.h"
#include "runtime/device/device.h"
#include "runtime/operators/registry/registry.h"
#include "server/translation/request_batch.h"
#include "server/translation/window_gate.h"

namespace resident {

// A device as the services see it.
struct ServingDevice {
  Device* device = nullptr;
  std::shared_ptr<WindowGate> window;
};

// Whose batch it is.
struct Caller {
  ClientId id = 0;
  // Window memory held by the client, by device.
  const std::vector<std::shared_ptr<WindowUse>>* window_use = nullptr;
  // The batch's.
  Clock::time_point deadline = Clock::time_point::max();
  // Who waits if there is no window memory now, and whether it does; null: nobody.
  WindowWaiter* waiter = nullptr;
  bool* waits = nullptr;
  // What the tasks' own memory is charged to, before it is made; null: nothing.
  HostMemory* memory = nullptr;
  std::shared_ptr<HostUse> memory_use = nullptr;
  // Bytes that were refused for lack of that memory; null: nobody asks.
  uint64_t* lacking = nullptr;
};

// Until when a batch with these options waits that has arrived now.
Clock::time_point BatchDeadline(const v1::BatchOptions& options, Clock::time_point call_deadline);

class BatchTranslator {
 public:
  struct Sources {
    const Limits* limits;
    const Registry* registry;
    const BufferTable* buffers;
    std::vector<ServingDevice> devices;  // By index.
    // --task_time_limit; 0: none.
    std::chrono::milliseconds task_time_limit{10'000};
  };

  explicit BatchTranslator(Sources sources) : sources_(std::move(sources)) {}

  // Errors: as Executor.Run documents.
  absl::StatusOr<std::shared_ptr<RequestBatch>> Translate(const v1::Batch& message,
                                                          const Caller& caller) const;

 private:
  Sources sources_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_TRANSLATION_BATCH_TRANSLATOR_H_
