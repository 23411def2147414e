// BatchRunner: takes a client's batch through translation, the gate and a device's
// queue, and calls back when it can be answered. What Run and Submit have in common.
//
// The callback comes on the caller's own thread when it lent it (Launch's `assist`),
// else on a thread of the runner's: never on the queue's pump, which serves everybody.
//
// Thread safety: all members may be called from any thread.
//
//   ASSIGN_OR_RETURN(auto batch, runner.Prepare(message, client, deadline, answer));
//   ... remember `batch`, to cancel it ...
//   RETURN_IF_ERROR(runner.Launch(batch, assist));   // `answer` follows if OK.
#ifndef RESIDENT_SERVER_RPC_BATCH_RUNNER_H_
#define RESIDENT_SERVER_RPC_BATCH_RUNNER_H_

#include <chrono>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "resident/v1/executor.pb.h"
#include "server/rpc/client_table.h"
#include "server/rpc/drain_gate.h"
#include "server/rpc/shadow_runner.h"
#include "server/rpc/worker_pool.h"
#include "server/translation/batch_translator.h"

namespace resident {

class BatchRunner {
 public:
  // Must leave nothing pending that the batch's memory is needed for.
  using Answer = std::function<void(RequestBatch& batch)>;

  BatchRunner(const BatchTranslator* translator, std::vector<Device*> devices, DrainGate* gate,
              WorkerPool* answers, ShadowRunner* shadow, HostMemory* batch_memory)
      : translator_(translator),
        devices_(std::move(devices)),
        gate_(gate),
        answers_(answers),
        shadow_(shadow),
        batch_memory_(batch_memory) {}

  // Errors: as Executor.Run documents. `waiter` waits if there is no window memory now;
  // `*waits` says whether it does (WindowGate::Allocate). `*lacking`: bytes of batch memory
  // (Core::batch_memory) that it was refused for, if it was.
  absl::StatusOr<std::shared_ptr<RequestBatch>> Prepare(const v1::Batch& message,
                                                        const std::shared_ptr<Client>& client,
                                                        Clock::time_point deadline, Answer answer,
                                                        WindowWaiter* waiter = nullptr,
                                                        bool* waits = nullptr,
                                                        uint64_t* lacking = nullptr);

  // Errors: RESOURCE_EXHAUSTED (the client's queue is full, or its quota used), UNAVAILABLE,
  // UNAUTHENTICATED (the session has ended). Then `answer` is not called.
  absl::Status Launch(const std::shared_ptr<RequestBatch>& batch, Client& client,
                      std::chrono::nanoseconds assist);

  // Runs `work` on one of the threads that answers are made on.
  void Post(std::function<void()> work) { answers_->Post(std::move(work)); }
  // What posts `act(object)`, for as long as there is the object.
  template <typename Object, typename Act>
  std::function<void()> PostTo(std::weak_ptr<Object> object, Act act) {
    return [this, object = std::move(object), act = std::move(act)] {
      Post([object, act] {
        if (const std::shared_ptr<Object> alive = object.lock()) act(*alive);
      });
    };
  }

  // Skips what is not yet in the ring.
  void Cancel(RequestBatch& batch);

 private:
  const BatchTranslator* const translator_;
  const std::vector<Device*> devices_;
  DrainGate* const gate_;
  WorkerPool* const answers_;
  ShadowRunner* const shadow_;
  HostMemory* const batch_memory_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_BATCH_RUNNER_H_
