// LoadStream: one Buffers.LoadFile.
//
// The file is read on a thread of Pools::loads, one file at a time for the whole daemon, piece by
// piece: a piece is read into staging memory, copied by the device, and added to the buffer's
// durable write. Each buffer is committed and saved when its tensor is complete.
//
// A client that does not read its answers delays nothing: what was loaded since the last answer is
// collected, and sent when that one is written.
//
//   Open ──▶ waits for the thread ──▶ Load ──▶ every buffer exists, or none
//
// Thread safety: see BidiStream. The members without a guard belong to the thread that loads.
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "grpcpp/server_context.h"
#include "resident/v1/buffers.pb.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/limits.h"
#include "runtime/base/process/unique_fd.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/safetensors.h"
#include "server/buffers/buffers.h"
#include "server/buffers/errors.h"
#include "server/buffers/transfers.h"
#include "server/rpc/bidi_stream.h"
#include "server/rpc/call.h"
#include "server/rpc/grpc_call.h"
#include "server/workload/copy_workload.h"

namespace resident {

absl::StatusOr<UniqueFd> OpenFileInFolder(const std::string& folder, const std::string& path) {
  // A byte 0 would end the path for the system.
  if (path.empty() || path.find('\0') != std::string::npos) return errors::BadLoadPath(path);
  const UniqueFd root(open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (root.get() < 0) return errors::LoadFolderUnreadable(strerror(errno));
  open_how how{};
  how.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  UniqueFd file(
      static_cast<int>(syscall(SYS_openat2, root.get(), path.c_str(), &how, sizeof(how))));
  if (file.get() >= 0) return file;
  switch (errno) {
    case ENOENT:
    case ENOTDIR:
      return errors::NoSuchFile(path);
    case EXDEV:
      return errors::PathLeavesFolder(path);
    default:
      return errors::FileUnreadable(path, strerror(errno));
  }
}

namespace {

// Buffers named by one answer, so that it stays below the size that clients accept by default.
constexpr size_t kBuffersOfAnswer = 1000;
constexpr size_t kMaxSkippedNames = 100;

class LoadStream final : public BidiStream<NoMessage, v1::LoadFileResponse> {
 public:
  LoadStream(Transport& transport, Buffers& buffers)
      : BidiStream(transport, buffers.core), buffers_(buffers), wait_(buffers.core.admission) {}
  void Open(const grpc::CallbackServerContext& context, const v1::LoadFileRequest& request) {
    Register(MakeRecheck(context, core_, Role::kSubmit, "resident.v1.Buffers/LoadFile"));
    request_ = request;
    const absl::Status started = Start(context);
    if (started.ok()) return;
    absl::MutexLock lock(&mu_);
    Conclude(started);
  }

 private:
  void OnWritten() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { Report(); }
  void OnEnd(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (wait_.Cancel()) ticket_ = errors::Cancelled();
    if (copying_ != nullptr) core_.runner.Cancel(*copying_);
    Conclude(status);
    DropQueued();
    // Without the client's read, the answer that is being written would delay the end.
    if (writing() && !cancelled()) CancelCall();
  }

  bool Busy() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return loading_; }

  // Checks the call and posts Run.
  absl::Status Start(const grpc::CallbackServerContext& context) {
    ASSIGN_OR_RETURN(client_, FindSessionClient(context, core_));
    if (buffers_.load_dir.empty()) return errors::NoLoadFolder();
    ASSIGN_OR_RETURN(slot_,
                     buffers_.load_slots.Take(NameHolder(client_->account(), context.peer())));
    ASSIGN_OR_RETURN(entry_, core_.gate.Enter(1));
    {
      absl::MutexLock lock(&mu_);
      loading_ = true;
    }
    core_.pools.loads.Post([self = Ref(this)] { self->Run(); });
    return absl::OkStatus();
  }

  // On the thread that loads.
  void Run() {
    absl::Status status = Load();
    // A client that has disconnected would not receive the identifiers of the buffers.
    if (status.ok()) status = CheckWanted();
    if (!status.ok()) {
      for (const auto& buffer : made_) (void)core_.buffers.Free(client_->id(), buffer->id);
    }
    made_.clear();
    slot_.Release();
    entry_.Clear();
    absl::MutexLock lock(&mu_);
    loading_ = false;
    if (status.ok() && !ending()) {
      do {
        Write(NextAnswer());
      } while (!unreported_.empty());
    }
    Conclude(status);
  }

  absl::Status Load() {
    RETURN_IF_ERROR(CheckWanted());
    ASSIGN_OR_RETURN(UniqueFd descriptor, OpenFileInFolder(buffers_.load_dir, request_.path()));
    ASSIGN_OR_RETURN(const SafetensorsFile file,
                     SafetensorsFile::FromDescriptor(std::move(descriptor), request_.path()));
    if (!request_.skip_unsupported()) {
      RETURN_IF_ERROR(file.CheckSupported(
          "set skip_unsupported (residentctl buffers load --skip_unsupported) to load the others"));
    }
    RETURN_IF_ERROR(CheckNames(file));
    uint64_t total = 0;
    for (const SafetensorsTensor& tensor : file.tensors()) total += tensor.size_bytes();
    {
      absl::MutexLock lock(&mu_);
      total_bytes_ = total;
      for (const SafetensorsTensor& tensor : file.unsupported()) {
        if (skipped_.size() < kMaxSkippedNames) skipped_.push_back(tensor.name);
      }
    }
    // All are allocated first, so that a lack of memory is noticed at once. A tensor without
    // elements has no buffer.
    std::vector<const SafetensorsTensor*> tensors;
    for (const SafetensorsTensor& tensor : file.tensors()) {
      if (tensor.size_bytes() == 0) continue;
      RETURN_IF_ERROR(CheckWanted());
      ASSIGN_OR_RETURN(auto buffer, Allocate(tensor));
      made_.push_back(std::move(buffer));
      tensors.push_back(&tensor);
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      RETURN_IF_ERROR(Fill(file, *tensors[i], made_[i]));
      absl::MutexLock lock(&mu_);
      unreported_.push_back(made_[i]);
    }
    return absl::OkStatus();
  }

  // CANCELLED once the stream is ending.
  absl::Status CheckWanted() {
    absl::MutexLock lock(&mu_);
    return ending() ? errors::Cancelled() : absl::OkStatus();
  }

  absl::Status CheckNames(const SafetensorsFile& file) {
    std::unordered_set<std::string> taken;
    for (const auto& buffer : core_.buffers.List(client_->id())) {
      if (buffer->durable) taken.insert(buffer->name);
    }
    for (const SafetensorsTensor& tensor : file.tensors()) {
      const std::string name = request_.prefix() + tensor.name;
      if (tensor.size_bytes() > 0 && taken.contains(name)) return errors::BufferNameTaken(name);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<const Buffer>> Allocate(const SafetensorsTensor& tensor) {
    BufferSpec spec;
    spec.dtype = tensor.dtype;
    spec.shape.assign(tensor.shape.begin(), tensor.shape.end());
    spec.durable = true;
    spec.name = request_.prefix() + tensor.name;
    std::optional<uint32_t> wanted;
    if (request_.has_device()) wanted = request_.device();
    return AllocateBuffer(core_, *client_, wanted, std::move(spec));
  }

  absl::Status Fill(const SafetensorsFile& file, const SafetensorsTensor& tensor,
                    const std::shared_ptr<const Buffer>& buffer) {
    ASSIGN_OR_RETURN(const auto write,
                     core_.buffers.StartWrite(DurableCopy::Kind::kUpload, client_->id(), *buffer));
    const uint64_t piece = core_.admission.PieceBytes(buffer->device, kCopyPieceBytes);
    for (uint64_t offset = 0; offset < tensor.size_bytes(); offset += piece) {
      const uint64_t bytes = std::min(piece, tensor.size_bytes() - offset);
      RETURN_IF_ERROR(CopyPiece(file, tensor, offset, bytes, buffer, *write));
      absl::MutexLock lock(&mu_);
      loaded_bytes_ += bytes;
      Report();
    }
    RETURN_IF_ERROR(write->Commit());
    return core_.buffers.Save(*buffer);
  }

  absl::Status CopyPiece(const SafetensorsFile& file, const SafetensorsTensor& tensor,
                         uint64_t offset, uint64_t bytes,
                         const std::shared_ptr<const Buffer>& buffer, DurableWrite& write) {
    auto copy = CopyWorkload::Write(core_.planner.sources(), {buffer, offset}, bytes);
    RETURN_IF_ERROR(copy->Check());
    ASSIGN_OR_RETURN(Ticket ticket, AwaitTicket(copy->TransferNeeds()));
    uint8_t* const host = ticket.staging()->host;
    RETURN_IF_ERROR(file.Read(tensor, offset, bytes, host));
    const auto piece = Planner::Fill(Clock::time_point::max(), std::move(copy), std::move(ticket));
    RETURN_IF_ERROR(AwaitCopy(piece));
    return write.Add(offset, {host, bytes});
  }

  absl::StatusOr<Ticket> AwaitTicket(const Needs& needs) {
    core_.admission.Acquire(wait_, client_->accounts(), needs, Clock::time_point::max(),
                            [self = Ref(this)](absl::StatusOr<Ticket> ticket) {
                              absl::MutexLock lock(&self->mu_);
                              self->ticket_ = std::move(ticket);
                            });
    absl::MutexLock lock(&mu_);
    const auto decided = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return ticket_.has_value(); };
    mu_.Await(absl::Condition(&decided));
    absl::StatusOr<Ticket> ticket = *std::move(ticket_);
    ticket_.reset();
    return ticket;
  }

  // Waits for a copy, which OnEnd cancels.
  absl::Status AwaitCopy(const std::shared_ptr<RequestBatch>& copy) {
    // Shared with `done`, which may still run when the wait has ended.
    const auto done = std::make_shared<absl::Notification>();
    copy->done = [done](Batch&) { done->Notify(); };
    RETURN_IF_ERROR(core_.runner.LaunchPiece(copy, *client_));
    {
      absl::MutexLock lock(&mu_);
      copying_ = copy;
      if (ending()) core_.runner.Cancel(*copy);
    }
    done->WaitForNotification();
    absl::MutexLock lock(&mu_);
    copying_ = nullptr;
    return FindOutcome("the load", *copy);
  }

  // Sends what was loaded since the last answer, unless that one is still being written.
  void Report() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const bool news = !unreported_.empty() || loaded_bytes_ != reported_bytes_;
    if (news && !writing() && !ending()) Write(NextAnswer());
  }

  v1::LoadFileResponse NextAnswer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    v1::LoadFileResponse answer;
    answer.set_loaded_bytes(loaded_bytes_);
    answer.set_total_bytes(total_bytes_);
    for (size_t i = 0; i < kBuffersOfAnswer && !unreported_.empty(); ++i) {
      DescribeBuffer(*unreported_.front(), answer.add_buffers());
      unreported_.pop_front();
    }
    for (std::string& name : skipped_) answer.add_skipped(std::move(name));
    skipped_.clear();
    reported_bytes_ = loaded_bytes_;
    return answer;
  }

  Buffers& buffers_;
  v1::LoadFileRequest request_;
  std::shared_ptr<Client> client_;
  SharedSlots::Ticket slot_;
  DrainGate::Entry entry_;
  std::vector<std::shared_ptr<const Buffer>> made_;
  Admission::Wait wait_;  // For the ticket of the next piece; cancelled when the stream ends.

  bool loading_ ABSL_GUARDED_BY(mu_) = false;
  // What the thread that loads waits for: a ticket or its refusal, or a copy that is not done.
  std::optional<absl::StatusOr<Ticket>> ticket_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<RequestBatch> copying_ ABSL_GUARDED_BY(mu_);
  uint64_t loaded_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t reported_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t total_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Tensors that are left out, until an answer has named them.
  std::vector<std::string> skipped_ ABSL_GUARDED_BY(mu_);
  // Complete buffers that no answer has named yet.
  std::deque<std::shared_ptr<const Buffer>> unreported_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

grpc::ServerWriteReactor<v1::LoadFileResponse>* StartLoad(grpc::CallbackServerContext& context,
                                                          Buffers& buffers,
                                                          const v1::LoadFileRequest& request) {
  return StartWriteCall<LoadStream>(context, buffers, request);
}

}  // namespace resident
