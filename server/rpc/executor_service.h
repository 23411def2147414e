// ExecutorService: resident.v1.Executor.
//
// Thread safety: gRPC makes calls from any thread.
#ifndef RESIDENT_SERVER_RPC_EXECUTOR_SERVICE_H_
#define RESIDENT_SERVER_RPC_EXECUTOR_SERVICE_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "google/protobuf/arena.h"
#include "grpcpp/support/byte_buffer.h"
#include "resident/v1/executor.grpc.pb.h"
#include "resident/v1/executor.pb.h"
#include "server/core/core.h"
#include "server/rpc/batch_stream.h"

namespace resident {

// SubmitStream: one Executor.Submit (batch_stream.h). A request has several batches if the client
// has joined them, and a response several results if the client accepts that.
//
// Thread safety: see BatchStream.
class SubmitStream final : public BatchStream {
 public:
  SubmitStream(Transport& transport, Core& core);

 private:
  absl::Status Parse(grpc::ByteBuffer& bytes) override;
  bool NextBatch() override;
  const v1::Batch& message() const override { return *message_; }
  RequestId request_id() const override { return {.number = message_->id()}; }
  uint64_t RequestBytes(bool waits) override;
  void Drop(bool release) override;
  absl::Status BuildAnswer(RequestBatch& batch, Context* context,
                           grpc::ByteBuffer& answer) override;
  absl::Status BuildRefusal(const RequestId& id, const absl::Status& why,
                            grpc::ByteBuffer& answer) override;
  size_t Join(size_t queued, absl::FunctionRef<grpc::ByteBuffer&(size_t)> response) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  v1::BatchResult& MutableResult(v1::SubmitResponse& response) const;

  // State of the read loop. Most requests fit into the arena's first block.
  using Block = std::array<char, 4096>;
  alignas(std::max_align_t) Block first_block_;
  google::protobuf::Arena arena_;
  const v1::SubmitRequest* request_ = nullptr;  // In the arena.
  uint64_t request_length_ = 0;                 // Its serialized bytes.
  uint64_t request_bytes_ = 0;                  // Its memory; 0: not measured yet.
  const v1::Batch* message_ = nullptr;          // Of the request.
  int next_ = 0;                                // Index of the next one in request_->batches().

  // SubmitRequest.max_results. Set before the first batch is launched.
  uint32_t max_results_ = 0;
  bool opened_ = false;
};

class ExecutorService final
    : public v1::Executor::WithRawCallbackMethod_Run<
          v1::Executor::WithRawCallbackMethod_Submit<v1::Executor::Service>> {
 public:
  explicit ExecutorService(Core& core);
  ~ExecutorService() override;

  grpc::ServerUnaryReactor* Run(grpc::CallbackServerContext* context,
                                const grpc::ByteBuffer* request,
                                grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Submit(
      grpc::CallbackServerContext* context) override;

 private:
  Core& core_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_EXECUTOR_SERVICE_H_
