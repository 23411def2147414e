#include "server/rpc/submit_stream.h"

#include <utility>
#include <vector>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "server/rpc/call.h"
#include "server/rpc/message_bytes.h"
#include "server/rpc/status.h"
#include "server/translation/result_builder.h"

namespace resident {
namespace {

// A small batch on a stream with nothing else under way is somebody's lone task: the
// reader's thread lends itself to it.
constexpr std::chrono::nanoseconds kAssist = std::chrono::microseconds(50);
constexpr size_t kLoneTasks = 16;
// A larger request gives its memory back; a smaller one's serves the next.
constexpr uint64_t kKeptRequestBytes = 1u << 20;

}  // namespace

SubmitStream* SubmitStream::Start(Core& core, const grpc::CallbackServerContext& context) {
  std::shared_ptr<SubmitStream> stream(new SubmitStream(core));
  stream->self_ = stream;
  stream->Open(context);
  return stream.get();  // gRPC destroys nothing before this handler has returned.
}

SubmitStream::~SubmitStream() {
  core_.request_memory->Withdraw(this);
  core_.batch_memory->Withdraw(this);
  core_.answer_memory->Withdraw(this);
  core_.streams->Remove(this);
}

void SubmitStream::Open(const grpc::CallbackServerContext& context) {
  const absl::StatusOr<std::shared_ptr<Client>> client = ClientOf(context, core_);
  core_.streams->Add(shared_from_this(),
                     RecheckOf(context, core_, Role::kSubmit, "resident.v1.Executor/Submit"));
  absl::MutexLock lock(&mu_);
  if (!client.ok()) {
    finished_ = true;
    Finish(ToGrpc(client.status()));
    return;
  }
  client_ = *client;
  deadline_ = DeadlineOf(context);
  ReadOn();
}

void SubmitStream::OnReadDone(bool ok) {
  if (ok) {
    core_.counters->CountBatch();
    core_.counters->Received(request_bytes_.Length());
    const absl::Status parsed = ParseMessage(request_bytes_, &request_);
    if (!parsed.ok()) {
      // Whose batch it was cannot be said: the stream ends with this, and is not read any more.
      core_.counters->CountRefused(parsed.code());
      End(parsed);
      return;
    }
    request_space_ = request_.SpaceUsedLong();
    request_charge_ = core_.request_memory->Count(client_->request_use(), request_space_);
    expires_ = BatchDeadline(request_.batch().options(), deadline_);
    waited_ = false;
    Admit();
    return;
  }
  absl::MutexLock lock(&mu_);
  reads_ended_ = true;
  Advance();
}

void SubmitStream::Admit() {
  const std::shared_ptr<SubmitStream> alive = shared_from_this();
  for (bool again = true;; again = false) {
    const Clock::time_point expires = expires_;  // The turn may be gone when it is needed.
    const bool expired = std::exchange(waited_, true) && Clock::now() >= expires;
    if (!expired && AwaitAnswersRead()) return;
    absl::Status end;
    {
      absl::MutexLock lock(&mu_);
      if (cancelled_ || finished_) {
        WindowGate::Leave(*this);
        DropRequest();
        return;
      }
      end = end_;
    }
    if (!end.ok()) {
      // The stream is being ended: this is refused, and nothing more is read.
      WindowGate::Leave(*this);
      Refuse(DropRequest(), end);
      return;
    }
    bool waits = false;
    uint64_t lacking = 0;
    const absl::Status status = expired ? errors::DeadlineExceeded() : TryAdmit(&waits, &lacking);
    if (waits) {
      ArmExpiry(expires);
      bool ends = false;
      {
        absl::MutexLock lock(&mu_);
        ends = cancelled_ || finished_ || !end_.ok();
      }
      // What ended the stream, or the daemon's work, did not find it in line.
      if ((ends || core_.gate->draining()) && LeaveLine()) continue;
      return;
    }
    WindowGate::Leave(*this);
    if (status.code() == absl::StatusCode::kResourceExhausted) {
      // It fits once something of the client's has ended. If nothing of it is under way,
      // that may have ended just now; otherwise waiting would not help.
      if (AwaitMemory([this](std::function<void()> wake) {
            return client_->WaitForCompletion(std::move(wake));
          })) {
        return;
      }
      if (again) continue;
      if (lacking != 0 && core_.batch_memory->MayFit(lacking)) {
        if (AwaitBatchMemory(lacking)) return;
        continue;
      }
    }
    const uint64_t id = DropRequest();
    if (!status.ok()) Refuse(id, status);
    absl::MutexLock lock(&mu_);
    ReadOn();
    return;
  }
}

std::function<void()> SubmitStream::WindowWake() {
  return [self = shared_from_this()] { self->core_.runner->Post([self] { self->Admit(); }); };
}

uint64_t SubmitStream::DropRequest() {
  const uint64_t id = request_.batch().id();
  if (request_space_ > kKeptRequestBytes) request_ = v1::SubmitRequest();
  request_charge_.Clear();
  return id;
}

bool SubmitStream::AwaitAnswersRead() {
  if (!core_.answer_memory->Full(*client_->answer_use())) return false;
  // Others need not wait for this client to read.
  WindowGate::Leave(*this);
  return AwaitMemory([this](std::function<void()> wake) {
    return core_.answer_memory->WaitIfFull(client_->answer_use(), this, std::move(wake));
  });
}

bool SubmitStream::AwaitBatchMemory(uint64_t bytes) {
  return AwaitMemory([this, bytes](std::function<void()> wake) {
    return core_.batch_memory->WaitForRoom(client_->batch_use(), bytes, this, std::move(wake));
  });
}

bool SubmitStream::AwaitMemory(absl::FunctionRef<bool(std::function<void()> wake)> wait) {
  const Clock::time_point expires = expires_;
  {
    absl::MutexLock lock(&mu_);
    awaits_memory_ = true;
  }
  const bool waits = wait(core_.runner->PostTo(weak_from_this(), [](SubmitStream& self) {
    if (self.TakeTurnFromMemory()) self.Admit();
  }));
  ArmExpiry(expires);
  bool ends = false;
  {
    absl::MutexLock lock(&mu_);
    ends = cancelled_ || finished_ || !end_.ok();
  }
  // Whoever takes it has the turn.
  if (waits && !ends) return true;
  return !TakeTurnFromMemory();
}

bool SubmitStream::TakeTurnFromMemory() {
  absl::MutexLock lock(&mu_);
  return std::exchange(awaits_memory_, false);
}

void SubmitStream::ArmExpiry(Clock::time_point expires) {
  // The call's own deadline comes by OnCancel.
  if (expires == deadline_) return;
  absl::MutexLock lock(&mu_);
  expiry_ = std::make_unique<grpc::Alarm>();
  expiry_->Set(std::chrono::system_clock::now() + (expires - Clock::now()),
               [weak = weak_from_this()](bool passed) {
                 const std::shared_ptr<SubmitStream> self = weak.lock();
                 // A later batch that waits by now is found to have time.
                 if (passed && self != nullptr && self->LeaveLine()) self->Admit();
               });
}

bool SubmitStream::LeaveLine() {
  if (TakeTurnFromMemory()) return true;
  for (const ServingDevice& device : core_.serving) {
    if (device.window->Withdraw(*this)) return true;
  }
  return false;
}

absl::Status SubmitStream::TryAdmit(bool* waits, uint64_t* lacking) {
  const std::shared_ptr<SubmitStream> alive = shared_from_this();
  ASSIGN_OR_RETURN(auto batch,
                   core_.runner->Prepare(
                       request_.batch(), client_, expires_,
                       [alive](RequestBatch& done) { alive->Answer(done); }, this, waits, lacking));
  bool lone = false;
  {
    absl::MutexLock lock(&mu_);
    lone = running_.empty() && batch->tasks.size() <= kLoneTasks;
    running_[batch.get()] = batch;
    ++unanswered_;
    if (cancelled_) batch->cancelled = true;
  }
  const absl::Status taken =
      core_.runner->Launch(batch, *client_, lone ? kAssist : std::chrono::nanoseconds(0));
  if (!taken.ok()) {
    absl::MutexLock lock(&mu_);
    running_.erase(batch.get());
    --unanswered_;
  }
  return taken;
}

bool SubmitStream::HostFull() {
  const auto wake = core_.runner->PostTo(weak_from_this(), [](SubmitStream& self) {
    absl::MutexLock lock(&self.mu_);
    if (self.paused_) self.ReadOn();
  });
  return core_.request_memory->WaitIfFull(client_->request_use(), this, wake) ||
         core_.answer_memory->WaitIfFull(client_->answer_use(), this, wake);
}

void SubmitStream::ReadOn() {
  if (finished_) return;
  paused_ = unanswered_ >= core_.limits.max_stream_batches || HostFull();
  if (!paused_) StartRead(&request_bytes_);
}

void SubmitStream::Answer(RequestBatch& batch) {
  v1::SubmitResponse response;
  BuildResult(batch, response.mutable_result());
  {
    absl::MutexLock lock(&mu_);
    running_.erase(&batch);
  }
  Write(response);
}

void SubmitStream::Refuse(uint64_t id, const absl::Status& why) {
  core_.counters->CountRefused(why.code());
  v1::SubmitResponse response;
  BuildRefusal(id, why, response.mutable_result());
  {
    absl::MutexLock lock(&mu_);
    ++unanswered_;
  }
  Write(response);
}

void SubmitStream::Write(const v1::SubmitResponse& response) {
  grpc::ByteBuffer bytes = ToBytes(response);
  const uint64_t size = bytes.Length();
  core_.counters->Sent(size);
  absl::MutexLock lock(&mu_);
  if (finished_) return;
  responses_.push_back({std::move(bytes), core_.answer_memory->Count(client_->answer_use(), size)});
  Advance();
}

void SubmitStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  writing_ = false;
  responses_.pop_front();
  --unanswered_;
  if (!ok) cancelled_ = true;  // The client is gone; OnCancel follows or has come.
  if (paused_) ReadOn();
  Advance();
}

// Writes what is ready; finishes when there is nothing left to come.
void SubmitStream::Advance() {
  if (finished_) return;
  if (cancelled_) {
    if (writing_) return;
    // The batches still under way keep the object, not the call.
    finished_ = true;
    responses_.clear();
    Finish(ToGrpc(errors::Cancelled()));
    return;
  }
  if (!responses_.empty()) {
    if (!writing_) {
      writing_ = true;
      StartWrite(&responses_.front().response);
    }
    return;
  }
  if (unanswered_ == 0 && (reads_ended_ || !end_.ok())) {
    finished_ = true;
    Finish(ToGrpc(end_));
  }
}

void SubmitStream::CancelRunning() {
  std::vector<std::shared_ptr<RequestBatch>> running;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [key, batch] : running_) running.push_back(batch);
  }
  for (const auto& batch : running) core_.runner->Cancel(*batch);
}

void SubmitStream::OnCancel() {
  {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
    Advance();
  }
  if (LeaveLine()) Admit();
  CancelRunning();
}

void SubmitStream::End(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    if (finished_ || !end_.ok()) return;
    end_ = status;
  }
  // What waits in line is refused first.
  if (LeaveLine()) return Admit();
  absl::MutexLock lock(&mu_);
  Advance();
}

}  // namespace resident
