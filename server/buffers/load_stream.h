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
#ifndef RESIDENT_SERVER_BUFFERS_LOAD_STREAM_H_
#define RESIDENT_SERVER_BUFFERS_LOAD_STREAM_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "resident/v1/buffers.pb.h"
#include "runtime/base/process/unique_fd.h"
#include "runtime/model/safetensors.h"
#include "server/buffers/buffers.h"
#include "server/rpc/bidi_stream.h"

namespace resident {

// Opens a file below a folder, by a path from a client, so that no path leaves the folder: neither
// by "..", nor by an absolute path, nor by symbolic links.

// Opens the file for reading; a FIFO without a writer does not block. Errors: NOT_FOUND,
// PERMISSION_DENIED (the path leaves the folder, or the file cannot be read), INVALID_ARGUMENT (the
// path is empty), INTERNAL (other errors of the system).
absl::StatusOr<UniqueFd> OpenFileInFolder(const std::string& folder, const std::string& path);

class LoadStream final : public BidiStream<NoMessage, v1::LoadFileResponse> {
 public:
  LoadStream(Transport& transport, Buffers& buffers)
      : BidiStream(transport, buffers.core), buffers_(buffers), wait_(buffers.core.admission) {}
  void Open(const grpc::CallbackServerContext& context, const v1::LoadFileRequest& request);

 private:
  void OnWritten() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { Report(); }
  void OnEnd(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Busy() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return loading_; }

  // Checks the call and posts Run.
  absl::Status Start(const grpc::CallbackServerContext& context);
  // On the thread that loads.
  void Run();
  absl::Status Load();
  // CANCELLED once the stream is ending.
  absl::Status CheckWanted();
  absl::Status CheckNames(const SafetensorsFile& file);
  absl::StatusOr<std::shared_ptr<const Buffer>> Allocate(const SafetensorsTensor& tensor);
  absl::Status Fill(const SafetensorsFile& file, const SafetensorsTensor& tensor,
                    const std::shared_ptr<const Buffer>& buffer);
  absl::Status CopyPiece(const SafetensorsFile& file, const SafetensorsTensor& tensor,
                         uint64_t offset, uint64_t bytes,
                         const std::shared_ptr<const Buffer>& buffer, DurableWrite& write);
  absl::StatusOr<Ticket> AwaitTicket(const Needs& needs);
  // Waits for a copy, which OnEnd cancels.
  absl::Status AwaitCopy(const std::shared_ptr<RequestBatch>& copy);
  // Sends what was loaded since the last answer, unless that one is still being written.
  void Report() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  v1::LoadFileResponse NextAnswer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

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

}  // namespace resident

#endif  // RESIDENT_SERVER_BUFFERS_LOAD_STREAM_H_
