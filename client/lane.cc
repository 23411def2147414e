#include "client/lane.h"

#include <grpcpp/grpcpp.h>

#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/connection.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/task_status_code.h"
#include "runtime/model/dtype.h"

namespace resident::client {
namespace {

int64_t ToTimeoutNs(absl::Duration timeout) {
  return timeout == absl::InfiniteDuration() ? -1 : absl::ToInt64Nanoseconds(timeout);
}

absl::Status Invalid(std::string_view what, std::string_view fix) {
  return absl::InvalidArgumentError(
      absl::StrCat(absl::string_view(what.data(), what.size()),
                   ". Fix: ", absl::string_view(fix.data(), fix.size())));
}

// The bits of a real number in an element type; nullopt if it is not one of reals.
std::optional<uint64_t> EncodeReal(v1::DType dtype, double value) {
  if (dtype == v1::DTYPE_F64) return std::bit_cast<uint64_t>(value);
  if (dtype == v1::DTYPE_F32) return std::bit_cast<uint32_t>(static_cast<float>(value));
  return std::nullopt;
}

absl::StatusCode CodeOfRefusal(uint16_t reason) {
  switch (reason) {
    case RESIDENTD_LANE_REFUSED_PERMISSION:
      return absl::StatusCode::kPermissionDenied;
    case RESIDENTD_LANE_REFUSED_CALL:
    case RESIDENTD_LANE_REFUSED_BUFFER:
      return absl::StatusCode::kNotFound;
    case RESIDENTD_LANE_REFUSED_LOST_BUFFER:
    case RESIDENTD_LANE_REFUSED_QUARANTINED:
    case RESIDENTD_LANE_REFUSED_PREPARE_AGAIN:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInvalidArgument;
  }
}

}  // namespace

Varying Varying::Place(uint32_t argument) {
  Varying varying;
  varying.message_.mutable_place()->set_argument(argument);
  return varying;
}

Varying Varying::Value(uint32_t argument, std::optional<int64_t> min, std::optional<int64_t> max) {
  Varying varying;
  v1::LaneWord::Value& value = *varying.message_.mutable_value();
  value.set_argument(argument);
  if (min.has_value()) value.set_min(*min);
  if (max.has_value()) value.set_max(*max);
  return varying;
}

Varying Varying::Elements(uint64_t max) {
  Varying varying;
  varying.message_.mutable_elements()->set_max(max);
  return varying;
}

absl::StatusOr<std::unique_ptr<Lane>> Client::OpenLane(const LaneOptions& options) {
  ASSIGN_OR_RETURN(std::shared_ptr<Connection> connection, connection_->Node());
  return Lane::Open(std::move(connection), options);
}

Lane::Lane(std::shared_ptr<Connection> connection, std::unique_ptr<grpc::ClientContext> context)
    : connection_(std::move(connection)), context_(std::move(context)) {}

absl::StatusOr<std::unique_ptr<Lane>> Lane::Open(std::shared_ptr<Connection> connection,
                                                 const LaneOptions& options) {
  auto context = std::make_unique<grpc::ClientContext>();
  RETURN_IF_ERROR(connection->Prepare(*context, /*needs_session=*/true, absl::InfiniteDuration()));
  std::unique_ptr<Lane> lane(new Lane(std::move(connection), std::move(context)));
  v1::OpenLaneRequest request;
  request.set_device(options.device);
  request.set_slots(options.slots);
  request.set_data_bytes(options.data_bytes);
  lane->stream_ = lane->connection_->lanes->Open(lane->context_.get(), request);
  if (!lane->stream_->Read(&lane->info_)) {
    const absl::Status end = lane->EndOfStream();
    if (!end.ok()) return end;
    return absl::UnavailableError("the daemon ended the lane immediately. Fix: open it again");
  }
  if (!options.attach) return lane;
  const std::string& path = lane->connection_->options().local_address.empty()
                                ? lane->info_.local_address()
                                : lane->connection_->options().local_address;
  const int code = residentd_lane_attach(path.c_str(), lane->info_.token().c_str(), &lane->handle_);
  if (code != RESIDENTD_LANE_OK) return lane->FromCode(code);
  return lane;
}

Lane::~Lane() {
  residentd_lane_detach(handle_);
  if (stream_ == nullptr || end_.has_value()) return;
  context_->TryCancel();
  (void)EndOfStream();
}

absl::Status Lane::EndOfStream() {
  if (!end_.has_value()) {
    v1::OpenLaneResponse unused;
    while (stream_->Read(&unused)) {
    }
    end_ = connection_->FromCall(stream_->Finish());
  }
  return *end_;
}

absl::Status Lane::FromCode(int64_t code) {
  const char* const text = residentd_lane_last_error();
  switch (code) {
    case RESIDENTD_LANE_FULL:
    case RESIDENTD_LANE_SYSTEM:
      return absl::ResourceExhaustedError(text);
    case RESIDENTD_LANE_TIMEOUT:
      return absl::DeadlineExceededError(text);
    case RESIDENTD_LANE_INVALID:
      return absl::InvalidArgumentError(text);
    case RESIDENTD_LANE_FORKED:
    case RESIDENTD_LANE_NOT_ACCEPTED:
      return absl::FailedPreconditionError(text);
    case RESIDENTD_LANE_LOST:
    case RESIDENTD_LANE_CLOSED: {
      const std::string lost = text;
      // The daemon says there why it closed the lane. Its own end is noticed there, too.
      if (handle_ != nullptr) {
        const absl::Status end = EndOfStream();
        if (!end.ok() && !IsUnreachable(end)) return end;
      }
      return absl::UnavailableError(lost);
    }
    default:
      return code >= 0 ? absl::OkStatus() : absl::InternalError(text);
  }
}

absl::StatusOr<uint32_t> Lane::Bind(const BufferHandle& buffer) { return Bind(buffer.id()); }

absl::StatusOr<uint32_t> Lane::Bind(uint64_t buffer_id) {
  if (const auto found = bound_.find(buffer_id); found != bound_.end()) return found->second;
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection_->Prepare(context));
  v1::BindLaneRequest request;
  request.set_lane_id(info_.lane_id());
  request.add_buffer_ids(buffer_id);
  v1::BindLaneResponse response;
  RETURN_IF_ERROR(connection_->FromCall(connection_->lanes->Bind(&context, request, &response)));
  if (response.indices_size() != 1) return absl::InternalError("the server returned no index");
  bound_[buffer_id] = response.indices(0);
  return response.indices(0);
}

absl::Status Lane::Release(const BufferHandle& buffer) {
  const auto found = bound_.find(buffer.id());
  if (found == bound_.end()) return absl::OkStatus();
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection_->Prepare(context));
  v1::ReleaseLaneRequest request;
  request.set_lane_id(info_.lane_id());
  request.add_buffers(found->second);
  v1::ReleaseLaneResponse response;
  RETURN_IF_ERROR(connection_->FromCall(connection_->lanes->Release(&context, request, &response)));
  bound_.erase(found);
  return absl::OkStatus();
}

absl::Status Lane::Release(const LaneCall& call) {
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection_->Prepare(context));
  v1::ReleaseLaneRequest request;
  request.set_lane_id(info_.lane_id());
  request.add_calls(call.number());
  v1::ReleaseLaneResponse response;
  return connection_->FromCall(connection_->lanes->Release(&context, request, &response));
}

absl::StatusOr<LaneCall> Lane::Prepare(const TaskBatch& batch, const std::vector<Varying>& words) {
  if (batch.message().options().require_isolation() != v1::ISOLATION_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        "a call of a lane runs every version that is active, and cannot require an isolation. Fix: "
        "leave it out, or send a batch");
  }
  v1::PrepareLaneRequest request;
  request.set_lane_id(info_.lane_id());
  *request.mutable_tasks() = batch.message().tasks();
  request.set_task_times(batch.message().options().task_times());
  std::vector<LaneCall::Word> kinds;
  v1::DescribeOperatorResponse described;
  for (const Varying& word : words) {
    *request.add_words() = word.message();
    LaneCall::Word kind{word.message().kind_case()};
    if (word.message().has_value()) {
      if (!described.has_operator_()) {
        grpc::ClientContext context;
        RETURN_IF_ERROR(connection_->Prepare(context, /*needs_session=*/false));
        v1::DescribeOperatorRequest describe;
        describe.set_name(request.tasks().operator_());
        RETURN_IF_ERROR(connection_->FromCall(
            connection_->operators->Describe(&context, describe, &described)));
      }
      const int argument = static_cast<int>(word.message().value().argument());
      if (argument < described.operator_().parameters_size() &&
          described.operator_().parameters(argument).dtypes_size() == 1) {
        kind.dtype = static_cast<v1::DType>(described.operator_().parameters(argument).dtypes(0));
      }
    }
    kinds.push_back(kind);
  }
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection_->Prepare(context));
  v1::PrepareLaneResponse response;
  RETURN_IF_ERROR(connection_->FromCall(connection_->lanes->Prepare(&context, request, &response)));
  return LaneCall(this, static_cast<uint16_t>(response.call()), response.version(),
                  std::move(kinds));
}

absl::StatusOr<residentd_lane_completion> Lane::Await(int64_t sequence, absl::Duration timeout) {
  residentd_lane_completion completion;
  const int code = residentd_lane_await(handle_, sequence, ToTimeoutNs(timeout), &completion);
  if (code != RESIDENTD_LANE_OK) return FromCode(code);
  return completion;
}

absl::Status Lane::Ended(const residentd_lane_completion& completion) {
  if (completion.status == RESIDENTD_LANE_STATUS_OK) return absl::OkStatus();
  const absl::StatusCode code = completion.status == RESIDENTD_LANE_STATUS_REFUSED
                                    ? CodeOfRefusal(completion.detail)
                                    : ToStatusCode(static_cast<v1::TaskStatus>(completion.status));
  return absl::Status(code, residentd_lane_explain(handle_, &completion));
}

absl::Status LaneCall::Encode(std::span<const Argument> arguments, uint64_t* words) {
  if (arguments.size() != words_.size()) {
    return Invalid(
        absl::StrCat("the call has ", words_.size(), " words, but was given ", arguments.size()),
        "give one argument for each word of Prepare");
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Argument& argument = arguments[i];
    if (argument.values.data() != nullptr) continue;
    const bool is_place = words_[i].kind == v1::LaneWord::kPlace;
    if (is_place != argument.place.has_value()) {
      return Invalid(absl::StrCat("word ", i, " is a ",
                                  is_place ? "number, but the word is a place"
                                           : "buffer, but the word is a number"),
                     is_place ? "give a buffer, or PlaceIn" : "give a number");
    }
    if (is_place) {
      ASSIGN_OR_RETURN(const uint32_t index, lane_->Bind(argument.place->buffer));
      words[i] = residentd_lane_place_at(index, argument.place->offset_bytes);
      continue;
    }
    const std::optional<uint64_t> real = EncodeReal(words_[i].dtype, argument.real);
    if (!real.has_value() && !argument.is_integer) {
      return Invalid(
          absl::StrCat("word ", i, " is ", argument.real, ", but the operator takes an integer"),
          "give an integer");
    }
    words[i] = real.value_or(static_cast<uint64_t>(argument.integer));
  }
  return absl::OkStatus();
}

absl::Status LaneCall::Run(std::span<const Argument> arguments) {
  uint64_t words[RESIDENTD_LANE_MAX_WORDS];
  RETURN_IF_ERROR(Encode(arguments, words));
  residentd_lane_completion completion;
  const int code = residentd_lane_call(lane_->handle_, number_, words,
                                       static_cast<int>(arguments.size()), -1, &completion);
  return code == RESIDENTD_LANE_OK ? lane_->Ended(completion) : lane_->FromCode(code);
}

absl::StatusOr<int64_t> LaneCall::SubmitArguments(int flags, std::span<const Argument> arguments) {
  uint64_t words[RESIDENTD_LANE_MAX_WORDS];
  RETURN_IF_ERROR(Encode(arguments, words));
  const int64_t sequence = residentd_lane_submit(lane_->handle_, number_, words,
                                                 static_cast<int>(arguments.size()), flags);
  if (sequence < 0) return lane_->FromCode(sequence);
  return sequence;
}

absl::StatusOr<int64_t> LaneCall::SubmitColumns(uint32_t count, int flags,
                                                std::span<const Argument> arguments) {
  uint64_t words[RESIDENTD_LANE_MAX_WORDS] = {};
  RETURN_IF_ERROR(Encode(arguments, words));
  residentd_lane_column columns[RESIDENTD_LANE_MAX_WORDS] = {};
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::span<const uint64_t> values = arguments[i].values;
    if (values.data() != nullptr && values.size() != count) {
      return Invalid(
          absl::StrCat("word ", i, " has ", values.size(), " values for ", count, " tasks"),
          "give one for each task");
    }
    columns[i] = {words[i], static_cast<uint64_t>(arguments[i].stride_bytes), values.data()};
  }
  const int64_t sequence = residentd_lane_submit_range(lane_->handle_, number_, count, columns,
                                                       static_cast<int>(arguments.size()), flags);
  if (sequence < 0) return lane_->FromCode(sequence);
  return sequence;
}

}  // namespace resident::client
