#include "runtime/engine/control/engine_client.h"

#include <sys/prctl.h>
#include <sys/socket.h>

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "resident/internal/engine.pb.h"
#include "runtime/base/process/frames.h"
#include "runtime/base/process/status_message.h"
#include "runtime/base/status_macros.h"
#include "runtime/engine/control/engine_messages.h"
#include "runtime/engine/control/generation_transfer.h"

namespace resident {
namespace {

constexpr std::chrono::milliseconds kPreloadLimit{30'000};
// Loading a generation takes far less than a millisecond for each operator.
constexpr std::chrono::milliseconds kLoadLimit{10'000};
// For the response, in addition to the timeout of the call itself.
constexpr std::chrono::milliseconds kAnswerLimit{5'000};

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
  absl::Notification answered;
};

// The socket, and the calls that wait for responses.
class EngineConnection {
 public:
  using Pending = EngineCall::Pending;

  explicit EngineConnection(int socket) : socket_(socket) {}

  // Sends the request and stores its id in `*id`. The returned call is answered exactly once.
  std::shared_ptr<Pending> Send(internal::EngineRequest request, int fd,
                                EngineClient::OnAnswer on_answer, uint64_t* id) {
    auto pending = std::make_shared<Pending>();
    pending->on_answer = std::move(on_answer);
    bool ended = false;
    {
      absl::MutexLock lock(&mu_);
      *id = ++last_id_;
      request.set_id(*id);
      const auto never_wait = [](int, short) {
        return absl::UnavailableError("the engine does not read its requests");
      };
      ended =
          ended_ || !WriteFrame(socket_.get(), request.SerializeAsString(), never_wait, fd).ok();
      if (!ended) pending_[*id] = pending;
      // The reader then fails the other calls.
      if (ended && !ended_) shutdown(socket_.get(), SHUT_RDWR);
    }
    if (ended) Answer(*pending, Ended());
    return pending;
  }

  // Drops the response of this call if it arrives later.
  void Forget(uint64_t id) {
    absl::MutexLock lock(&mu_);
    pending_.erase(id);
  }

  // Reads responses until the connection is closed; then fails all calls with UNAVAILABLE.
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
    absl::flat_hash_map<uint64_t, std::shared_ptr<Pending>> pending;
    {
      absl::MutexLock lock(&mu_);
      ended_ = true;
      pending.swap(pending_);
    }
    for (auto& [id, call] : pending) Answer(*call, Ended());
  }

  // Ends ReadResponses.
  void Close() { shutdown(socket_.get(), SHUT_RDWR); }

 private:
  std::shared_ptr<Pending> Take(uint64_t id) {
    absl::MutexLock lock(&mu_);
    const auto found = pending_.find(id);
    if (found == pending_.end()) return nullptr;
    auto pending = std::move(found->second);
    pending_.erase(found);
    return pending;
  }

  static void Answer(Pending& pending, const absl::Status& status) {
    SetStatus(status, pending.response.mutable_status());
    Notify(pending);
  }
  static void Notify(Pending& pending) {
    const EngineClient::OnAnswer on_answer = std::move(pending.on_answer);
    pending.answered.Notify();
    if (on_answer) on_answer();
  }

  const UniqueFd socket_;
  absl::Mutex mu_;  // Also serializes writes to the socket.
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Pending>> pending_ ABSL_GUARDED_BY(mu_);  // By id.
};

EngineCall::~EngineCall() { connection_->Forget(id_); }

bool EngineCall::answered() const {
  return pending_->answered.HasBeenNotified() || std::chrono::steady_clock::now() >= deadline_;
}

absl::StatusOr<SwitchTimes> EngineCall::answer() const {
  if (!pending_->answered.HasBeenNotified()) {
    return absl::DeadlineExceededError("the engine did not answer in time");
  }
  RETURN_IF_ERROR(GetStatus(pending_->response.status()));
  return FromMessage(pending_->response.switch_generation());
}

EngineClient::EngineClient(int control_socket, std::chrono::milliseconds map_limit)
    : connection_(std::make_shared<EngineConnection>(control_socket)), map_limit_(map_limit) {
  reader_ = std::thread([connection = connection_] {
    prctl(PR_SET_NAME, "resident-answer");
    connection->ReadResponses();
  });
}

EngineClient::~EngineClient() {
  connection_->Close();
  reader_.join();
}

absl::StatusOr<internal::EngineResponse> EngineClient::Call(internal::EngineRequest request,
                                                            std::chrono::nanoseconds timeout,
                                                            int fd) {
  uint64_t id = 0;
  const auto pending = connection_->Send(std::move(request), fd, nullptr, &id);
  if (!pending->answered.WaitForNotificationWithTimeout(absl::FromChrono(timeout))) {
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
  absl::MutexLock lock(&map_mu_);
  internal::EngineRequest request;
  request.mutable_map_shared()->set_size_bytes(bytes);
  uint64_t id = 0;
  const auto pending = connection_->Send(std::move(request), fd, nullptr, &id);
  if (!pending->answered.WaitForNotificationWithTimeout(absl::FromChrono(map_limit_))) {
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
