// SubmitStream: one Executor.Submit (batch_stream.h).
//
// Thread safety: see BatchStream.
#ifndef RESIDENT_SERVER_RPC_SUBMIT_STREAM_H_
#define RESIDENT_SERVER_RPC_SUBMIT_STREAM_H_

#include "absl/status/status.h"
#include "grpcpp/support/byte_buffer.h"
#include "resident/v1/executor.pb.h"
#include "server/rpc/batch_stream.h"

namespace resident {

class SubmitStream final : public BatchStream {
 public:
  SubmitStream(Transport& transport, Core& core)
      : BatchStream(transport, core, "resident.v1.Executor/Submit") {}

 private:
  absl::Status Parse(grpc::ByteBuffer& bytes) override;
  const v1::Batch& message() const override { return request_.batch(); }
  RequestId request_id() const override { return {.number = request_.batch().id()}; }
  uint64_t RequestBytes() const override { return request_.SpaceUsedLong(); }
  void Drop(bool release) override;
  absl::Status BuildAnswer(RequestBatch& batch, Context* context,
                           grpc::ByteBuffer& answer) override;
  absl::Status BuildRefusal(const RequestId& id, const absl::Status& why,
                            grpc::ByteBuffer& answer) override;

  v1::SubmitRequest request_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_SUBMIT_STREAM_H_
