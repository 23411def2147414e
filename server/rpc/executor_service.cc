#include "server/rpc/executor_service.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/support/slice.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"
#include "server/rpc/call.h"
#include "server/rpc/errors.h"
#include "server/rpc/grpc_call.h"
#include "server/rpc/message_bytes.h"
#include "server/rpc/run_call.h"
#include "server/workload/result_builder.h"

namespace resident {
namespace {

// The memory of a smaller request is estimated.
constexpr uint64_t kSmallRequestBytes = 16u << 10;

}  // namespace

SubmitStream::SubmitStream(Transport& transport, Core& core)
    : BatchStream(transport, core, "resident.v1.Executor/Submit"),
      arena_(first_block_.data(), first_block_.size()) {}

absl::Status SubmitStream::Parse(grpc::ByteBuffer& bytes) {
  const uint64_t length = bytes.Length();
  // Here, not in Drop: the thread that resets the arena may use its first block.
  arena_.Reset();
  auto* const request = google::protobuf::Arena::CreateMessage<v1::SubmitRequest>(&arena_);
  RETURN_IF_ERROR(ParseMessage(bytes, message_limits(), request));
  const uint64_t batches = request->batches_size() + (request->has_batch() ? 1 : 0);
  if (batches > kMaxMessageBatches) return errors::TooManyBatches(batches, kMaxMessageBatches);
  if (!std::exchange(opened_, true)) max_results_ = request->max_results();
  request_ = request;
  request_length_ = length;
  request_bytes_ = 0;
  next_ = 0;
  // A message without a batch is refused as one with an empty batch.
  message_ = &request_->batch();
  if (!request_->has_batch()) NextBatch();
  return absl::OkStatus();
}

// Long strings and unknown fields are not in the arena. Strings are not longer than the message;
// unknown fields can take 40 times their bytes, and measuring them takes as long as parsing.
uint64_t SubmitStream::RequestBytes(bool waits) {
  const uint64_t estimate = arena_.SpaceAllocated() + request_length_;
  if (!waits && request_length_ <= kSmallRequestBytes) return estimate;
  if (request_bytes_ == 0) request_bytes_ = request_->SpaceUsedLong();
  return std::max(estimate, request_bytes_);
}

bool SubmitStream::NextBatch() {
  if (next_ == request_->batches_size()) return false;
  message_ = &request_->batches(next_++);
  return true;
}

void SubmitStream::Drop(bool release) {
  if (release) arena_.Reset();
}

absl::Status SubmitStream::BuildAnswer(RequestBatch& batch, Context* /*context*/,
                                       grpc::ByteBuffer& answer) {
  // Most results need no other memory.
  alignas(8) std::array<char, 1024> block;
  google::protobuf::Arena arena(block.data(), block.size());
  auto& response = *google::protobuf::Arena::CreateMessage<v1::SubmitResponse>(&arena);
  BuildResult(batch, &MutableResult(response));
  ToBytes(response).Swap(&answer);
  return absl::OkStatus();
}

absl::Status SubmitStream::BuildRefusal(const RequestId& id, const absl::Status& why,
                                        grpc::ByteBuffer& answer) {
  v1::SubmitResponse response;
  resident::BuildRefusal(id.number, why, &MutableResult(response));
  ToBytes(response).Swap(&answer);
  return absl::OkStatus();
}

v1::BatchResult& SubmitStream::MutableResult(v1::SubmitResponse& response) const {
  return max_results_ > 0 ? *response.add_results() : *response.mutable_result();
}

// The bytes of several messages are those of one message with the elements of all.
size_t SubmitStream::Join(size_t queued, absl::FunctionRef<grpc::ByteBuffer&(size_t)> response) {
  size_t count = 1;
  size_t bytes = response(0).Length();
  for (; count < std::min<size_t>(queued, max_results_); ++count) {
    const size_t size = response(count).Length();
    if (bytes + size > kMaxJoinedResultBytes) break;
    bytes += size;
  }
  if (count == 1) return 1;
  std::string joined;
  joined.reserve(bytes);
  for (size_t i = 0; i < count; ++i) {
    std::vector<grpc::Slice> slices;
    if (!response(i).Dump(&slices).ok()) return 1;
    for (const grpc::Slice& slice : slices) {
      joined.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
  }
  const grpc::Slice slice(joined);
  response(0) = grpc::ByteBuffer(&slice, 1);
  return count;
}

namespace {

class NativeRun final : public RunCall {
 public:
  NativeRun(Core& core, grpc::ByteBuffer& response) : RunCall(core, response) {}

 private:
  absl::Status Read(grpc::ByteBuffer& bytes) override {
    const MessageLimits limits = FindMessageLimits(core_, "/resident.v1.Executor/Run");
    return ParseMessage(bytes, limits, &request_);
  }
  const v1::Batch& message() const override { return request_.batch(); }
  void DropMessage() override { request_.Clear(); }
  absl::Status BuildAnswer(RequestBatch& batch, grpc::ByteBuffer& answer) override {
    v1::RunResponse response;
    BuildResult(batch, response.mutable_result());
    ToBytes(response).Swap(&answer);
    return absl::OkStatus();
  }

  v1::RunRequest request_;
};

}  // namespace

ExecutorService::ExecutorService(Core& core) : core_(core) {}
ExecutorService::~ExecutorService() = default;

grpc::ServerUnaryReactor* ExecutorService::Run(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) {
  return RunCall::Start(std::make_shared<NativeRun>(core_, *response), *context, *request);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ExecutorService::Submit(
    grpc::CallbackServerContext* context) {
  return StartBidiCall<SubmitStream>(*context, core_);
}

}  // namespace resident
