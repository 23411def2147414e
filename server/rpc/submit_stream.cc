#include "server/rpc/submit_stream.h"

#include "server/rpc/message_bytes.h"
#include "server/workload/result_builder.h"

namespace resident {

absl::Status SubmitStream::Parse(grpc::ByteBuffer& bytes) { return ParseMessage(bytes, &request_); }

void SubmitStream::Drop(bool release) {
  if (release) request_ = v1::SubmitRequest();
}

absl::Status SubmitStream::BuildAnswer(RequestBatch& batch, Context* /*context*/,
                                       grpc::ByteBuffer& answer) {
  v1::SubmitResponse response;
  BuildResult(batch, response.mutable_result());
  answer = ToBytes(response);
  return absl::OkStatus();
}

absl::Status SubmitStream::BuildRefusal(const RequestId& id, const absl::Status& why,
                                        grpc::ByteBuffer& answer) {
  v1::SubmitResponse response;
  resident::BuildRefusal(id.number, why, response.mutable_result());
  answer = ToBytes(response);
  return absl::OkStatus();
}

}  // namespace resident
