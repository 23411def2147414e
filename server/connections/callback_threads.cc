#include "server/connections/callback_threads.h"

#include <grpcpp/create_channel.h>
#include <pthread.h>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace resident {

CallbackThreads::CallbackThreads() : thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "resident-awake");
}

CallbackThreads::~CallbackThreads() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

void CallbackThreads::Run() {
  // Without credentials every call of a channel fails at once, and nothing is connected.
  grpc::GenericStub stub(grpc::CreateChannel("", nullptr));
  for (bool stop = false; !stop;) {
    MakeEvent(stub);
    absl::MutexLock lock(&mu_);
    stop = mu_.AwaitWithTimeout(absl::Condition(&stop_), absl::FromChrono(kInterval));
  }
}

void CallbackThreads::MakeEvent(grpc::GenericStub& stub) {
  const grpc::Slice empty;
  const grpc::ByteBuffer request(&empty, 1);
  grpc::ClientContext context;
  grpc::ByteBuffer response;
  absl::Notification handled;
  stub.UnaryCall(&context, "/", {}, &request, &response,
                 [&handled](const grpc::Status&) { handled.Notify(); });
  handled.WaitForNotification();
  events_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace resident
