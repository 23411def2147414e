

#include "runtime/engine/control/engine_client.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <atomic>
#include <cassert>
#include <deque>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "resident/internal/engine.pb.h"
#include "runtime/base/process/frames.h"
#include "runtime/base/status_macros.h"
#include "runtime/engine/control/engine_messages.h"

namespace resident {
namespace {

constexpr std::chrono::milliseconds kPreloadLimit{30'000};
// Loading a generation takes far less than a millisecond for each operator.
constexpr std::chrono::milliseconds kLoadLimit{10'000};
// For the response, in addition to the timeout of the call itself.
constexpr std::chrono::milliseconds kAnswerLimit{5'000};

absl::Status NoDescriptor(int error) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot pass a descriptor to the engine: ", strerror(error),
                   ". Fix: raise the limit on open files of the service"));
}

absl::Status Ended() { return absl::UnavailableError("the engine has ended"); }

internal::EngineRequest SwitchMessage(uint64_t change, bool launch,
                                      std::chrono::nanoseconds park_timeout) {
  internal::EngineRequest request;
  internal::SwitchRequest* const message = request.mutable_switch_generation();
  message->set_change(change);
  message->set_launch(launch);
  message->set_park_timeout_ns(park_timeout.count());
  return request;
}

}  // namespace

struct EngineCall::Pending {
  EngineClient::OnAnswer on_answer;   // May be null.
  internal::EngineResponse response;  // Written before `answered`.
  std::atomic<bool> answered{false};

  bool done() const { return answered.load(std::memory_order_acquire); }
};

// The socket, the requests that have not been sent, and the calls that wait for responses.
class EngineConnection {
 public:
  using Pending = EngineCall::Pending;

  EngineConnection(int socket, size_t max_unsent) : socket_(socket), max_unsent_(max_unsent) {}

  // Queues the request, with a duplicate of the descriptor if it is not -1, and stores its id in
  // `*id`. The returned call is answered exactly once.
  std::shared_ptr<Pending> Send(internal::EngineRequest request, int fd,
                                EngineClient::OnAnswer on_answer, uint64_t* id) {
    auto pending = std::make_shared<Pending>();
    pending->on_answer = std::move(on_answer);
    absl::Status status;
    UniqueFd sent;
    if (fd >= 0) sent.Reset(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (fd >= 0 && sent.get() < 0) status = NoDescriptor(errno);
    {
      absl::MutexLock lock(&mu_);
      *id = ++last_id_;
      request.set_id(*id);
      if (ended_) {
        status = Ended();
      } else if (unsent_.size() >= max_unsent_) {
        status = absl::UnavailableError("the engine does not read its requests");
      }
      if (status.ok()) {
        unsent_.push_back({*id, request.SerializeAsString(), std::move(sent)});
        pending_[*id] = pending;
      }
    }
    if (!status.ok()) Answer(*pending, status);
    return pending;
  }

  // Whether the call was answered within the time.
  bool Await(const Pending& pending, std::chrono::nanoseconds timeout) {
    absl::MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(absl::Condition(&pending, &Pending::done),
                                absl::FromChrono(timeout));
  }

  // Drops the response of this call if it arrives later.
  void Forget(uint64_t id) {
    absl::MutexLock lock(&mu_);
    pending_.erase(id);
  }

  // Sends requests until the connection is closed.
  void SendRequests() {
    const auto due = [this]()
                         ABSL_SHARED_LOCKS_REQUIRED(mu_) { return ended_ || !unsent_.empty(); };
    while (true) {
      Unsent next;
      {
        absl::MutexLock lock(&mu_);
        mu_.Await(absl::Condition(&due));
        if (ended_) return;
        next = std::move(unsent_.front());
        unsent_.pop_front();
      }
      const absl::Status sent = WriteFrame(socket_.get(), next.bytes, WaitForever, next.fd.get());
      if (sent.ok()) continue;
      if (!absl::IsResourceExhausted(sent)) return Close();
      if (const auto pending = Take(next.id)) Answer(*pending, sent);
    }
  }

  // Reads responses until the connection is closed or a response is invalid; then closes it and
  // fails all calls with UNAVAILABLE.
  void ReadResponses() {
    while (true) {
      const auto message = ReadFrame(socket_.get(), kMaxControlMessageBytes, WaitForever);
      internal::EngineResponse response;
      if (!message.ok() || !response.ParseFromString(*message)) break;
      if (const auto pending = Take(response.id())) {
        pending->response.Swap(&response);
        Notify(*pending);
      }
    }
    Close();  // An engine that goes on without its control connection ends (engine_main.h).
    absl::flat_hash_map<uint64_t, std::shared_ptr<Pending>> pending;
    {
      absl::MutexLock lock(&mu_);
      ended_ = true;
      unsent_.clear();
      pending.swap(pending_);
    }
    for (auto& [id, call] : pending) Answer(*call, Ended());
  }

  // Ends ReadResponses and SendRequests.
  void Close() { shutdown(socket_.get(), SHUT_RDWR); }

 private:
  struct Unsent {
    uint64_t id = 0;
    std::string bytes;
    UniqueFd fd;
  };

  std::shared_ptr<Pending> Take(uint64_t id) {
    absl::MutexLock lock(&mu_);
    const auto found = pending_.find(id);
    if (found == pending_.end()) return nullptr;
    auto pending = std::move(found->second);
    pending_.erase(found);
    return pending;
  }

  void Answer(Pending& pending, const absl::Status& status) {
    SetStatus(status, pending.response.mutable_status());
    Notify(pending);
  }
  void Notify(Pending& pending) {
    const EngineClient::OnAnswer on_answer = std::move(pending.on_answer);
    {
      absl::MutexLock lock(&mu_);  // For Await.
      pending.answered.store(true, std::memory_order_release);
    }
    if (on_answer) on_answer();
  }

  const UniqueFd socket_;
  const size_t max_unsent_;
  absl::Mutex mu_;
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Unsent> unsent_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<Pending>> pending_ ABSL_GUARDED_BY(mu_);  // By id.
};

EngineCall::~EngineCall() { connection_->Forget(id_); }

bool EngineCall::answered() const {
  return pending_->done() || std::chrono::steady_clock::now() >= deadline_;
}

absl::StatusOr<SwitchTimes> EngineCall::answer() const {
  assert(answered());
  if (!pending_->done()) return absl::DeadlineExceededError("the engine did not answer in time");
  RETURN_IF_ERROR(GetStatus(pending_->response.status()));
  return FromMessage(pending_->response.switch_generation());
}

EngineClient::EngineClient(int control_socket, std::chrono::milliseconds map_limit,
                           size_t max_unsent)
    : connection_(std::make_shared<EngineConnection>(control_socket, max_unsent)),
      map_limit_(map_limit) {
  reader_ = std::thread([connection = connection_] {
    prctl(PR_SET_NAME, "resident-answer");
    connection->ReadResponses();
  });
  writer_ = std::thread([connection = connection_] {
    prctl(PR_SET_NAME, "resident-call");
    connection->SendRequests();
  });
}

EngineClient::~EngineClient() {
  connection_->Close();
  reader_.join();
  writer_.join();
}

absl::StatusOr<internal::EngineResponse> EngineClient::Call(internal::EngineRequest request,
                                                            std::chrono::nanoseconds timeout,
                                                            int fd) {
  uint64_t id = 0;
  const auto pending = connection_->Send(std::move(request), fd, nullptr, &id);
  if (!connection_->Await(*pending, timeout)) {
    connection_->Forget(id);
    return absl::DeadlineExceededError(absl::StrCat(
        "the engine did not answer within ",
        std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count(), " ms"));
  }
  RETURN_IF_ERROR(GetStatus(pending->response.status()));
  return std::move(pending->response);
}

std::unique_ptr<EngineCall> EngineClient::StartCall(internal::EngineRequest request,
                                                    std::chrono::nanoseconds timeout,
                                                    OnAnswer on_answer) {
  uint64_t id = 0;
  auto pending = connection_->Send(std::move(request), -1, std::move(on_answer), &id);
  return absl::WrapUnique(new EngineCall(connection_, id, std::move(pending),
                                         std::chrono::steady_clock::now() + timeout));
}

absl::StatusOr<std::vector<EnginePhase>> EngineClient::Prepare(int ordinal,
                                                               std::chrono::milliseconds timeout) {
  internal::EngineRequest request;
  request.mutable_prepare()->set_ordinal(ordinal);
  ASSIGN_OR_RETURN(const auto response, Call(std::move(request), timeout));
  return FromMessage(response.prepare().phases());
}

absl::StatusOr<EngineInfo> EngineClient::Start(const EngineOptions& options,
                                               std::chrono::milliseconds timeout) {
  internal::EngineRequest request;
  *request.mutable_start() = ToMessage(options);
  UniqueFd objects;
  if (options.generation != nullptr) {
    ASSIGN_OR_RETURN(objects, PackGeneration(*options.generation,
                                             request.mutable_start()->mutable_generation()));
  }
  ASSIGN_OR_RETURN(const auto response, Call(std::move(request), timeout, objects.get()));
  return FromMessage(response.start());
}

absl::Status EngineClient::Resume(std::chrono::milliseconds timeout) {
  internal::EngineRequest request;
  request.mutable_resume();
  return Call(std::move(request), timeout).status();
}

absl::StatusOr<std::vector<OperatorResources>> EngineClient::Preload(const Generation& generation) {
  internal::EngineRequest request;
  ASSIGN_OR_RETURN(const UniqueFd objects,
                   PackGeneration(generation, request.mutable_preload()->mutable_generation()));
  ASSIGN_OR_RETURN(const auto response, Call(std::move(request), kPreloadLimit, objects.get()));
  return FromMessage(response.preload().operators());
}

absl::StatusOr<SwitchTimes> EngineClient::Switch(uint64_t change, bool launch,
                                                 std::chrono::nanoseconds park_timeout) {
  ASSIGN_OR_RETURN(const auto response,
                   Call(SwitchMessage(change, launch, park_timeout), park_timeout + kLoadLimit));
  return FromMessage(response.switch_generation());
}

absl::StatusOr<SharedMapping> EngineClient::MapShared(int fd, uint64_t bytes) {
  internal::EngineRequest request;
  request.mutable_map_shared()->set_size_bytes(bytes);
  return Map(std::move(request), fd);
}

absl::StatusOr<SharedMapping> EngineClient::MapSharedDevice(const std::string& handle,
                                                            uint64_t bytes) {
  internal::EngineRequest request;
  request.mutable_map_shared()->set_size_bytes(bytes);
  request.mutable_map_shared()->set_device_handle(handle);
  return Map(std::move(request), -1);
}

absl::StatusOr<SharedMapping> EngineClient::MapDeviceDescriptor(int fd, uint64_t allocation_bytes) {
  internal::EngineRequest request;
  request.mutable_map_shared()->set_size_bytes(allocation_bytes);
  request.mutable_map_shared()->set_device_descriptor(true);
  return Map(std::move(request), fd);
}

absl::StatusOr<SharedMapping> EngineClient::Map(internal::EngineRequest request, int fd) {
  absl::MutexLock lock(&map_mu_);
  uint64_t id = 0;
  const auto pending = connection_->Send(std::move(request), fd, nullptr, &id);
  if (!connection_->Await(*pending, map_limit_)) {
    connection_->Forget(id);
    // The engine may still map the object; it serves this request afterwards.
    StartUnmapShared(id);
    return absl::DeadlineExceededError(
        absl::StrCat("the engine did not map the memory within ", map_limit_.count(), " ms"));
  }
  RETURN_IF_ERROR(GetStatus(pending->response.status()));
  return SharedMapping{id, pending->response.map_shared().address()};
}

std::unique_ptr<EngineCall> EngineClient::StartAwaitPark(std::chrono::nanoseconds park_timeout,
                                                         OnAnswer on_answer) {
  internal::EngineRequest request;
  request.mutable_await_park()->set_timeout_ns(park_timeout.count());
  return StartCall(std::move(request), park_timeout + kAnswerLimit, std::move(on_answer));
}

std::unique_ptr<EngineCall> EngineClient::StartResume(std::chrono::milliseconds timeout,
                                                      OnAnswer on_answer) {
  internal::EngineRequest request;
  request.mutable_resume();
  return StartCall(std::move(request), timeout, std::move(on_answer));
}

std::unique_ptr<EngineCall> EngineClient::StartSwitch(uint64_t change, bool launch,
                                                      std::chrono::nanoseconds park_timeout,
                                                      OnAnswer on_answer) {
  return StartCall(SwitchMessage(change, launch, park_timeout), park_timeout + kLoadLimit,
                   std::move(on_answer));
}

void EngineClient::StartUnmapShared(uint64_t mapping) {
  internal::EngineRequest request;
  request.mutable_unmap_shared()->set_mapping(mapping);
  uint64_t id = 0;
  connection_->Send(std::move(request), -1, nullptr, &id);
  connection_->Forget(id);
}

absl::Status EngineClient::Shutdown(std::chrono::milliseconds timeout) {
  internal::EngineRequest request;
  request.mutable_shutdown();
  return Call(std::move(request), timeout).status();
}

}  // namespace resident
