// Lane: submits tasks to a daemon on this machine through shared memory, in microseconds.
//
//   auto lane = (*client)->OpenLane({.device = 0});
//   resident::client::TaskBatch add("add");
//   add.Use(x).Use(y).Use(out).Scalar(2);
//   auto call = (*lane)->Prepare(add, {Varying::Place(0), Varying::Place(1), Varying::Place(2)});
//   absl::Status done = (*call)(x, y, out);     // Runs it with these buffers, and waits.
//   done = (*call)(out, y, x);
//
// A lane has prepared calls, which the daemon has checked. Each call has up to 7 words: what
// changes from submission to submission. docs/local_lane.md describes lanes, and
// client/lane/residentd_lane.h the C functions below this class, which handle() gives access to:
// deadlines, streams.
//
// Errors: UNAVAILABLE (the daemon has ended, what was not answered may have run; or the task's
// engine has), DEADLINE_EXCEEDED (not within the timeout), RESOURCE_EXHAUSTED (all slots are in
// use), and the status of the task. If the daemon closed the lane, the status that it gave as the
// reason.
//
// Lifetime: a LaneCall must not outlive its Lane. A Lane may outlive the Client. Buffers that are
// bound stay allocated while the lane exists.
//
// Thread safety: a lane and its calls belong to one thread at a time.
#ifndef RESIDENT_CLIENT_LANE_H_
#define RESIDENT_CLIENT_LANE_H_

#include <array>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/lane/residentd_lane.h"
#include "client/residentd_client.h"
#include "resident/v1/lanes.pb.h"

namespace grpc {
class ClientContext;
template <typename R>
class ClientReader;
}  // namespace grpc

namespace resident::client {

struct LaneOptions {
  uint32_t device = 0;
  // Submissions that can be unanswered at a time: a power of two from 64 to 65,536. 0: 4,096.
  uint32_t slots = 0;
  // For ranges: a multiple of 4,096, up to 64 MiB.
  uint64_t data_bytes = 0;
  // False: another process attaches, with the socket and the token of Lane::info(), within 30 s.
  // Calls of this Lane then only prepare; handle() is null.
  bool attach = true;
};

// What a word of a prepared call changes.
class Varying {
 public:
  // The tensor of this argument moves: the word is a buffer, or a place in one.
  static Varying Place(uint32_t argument);
  // The scalar changes. With limits (integers only) the daemon refuses others.
  static Varying Value(uint32_t argument, std::optional<int64_t> min = std::nullopt,
                       std::optional<int64_t> max = std::nullopt);
  // The number of elements of all tensors changes, up to `max`: for calls whose tensors are dense
  // float32 vectors of one length.
  static Varying Elements(uint64_t max);

  const v1::LaneWord& message() const { return message_; }

 private:
  v1::LaneWord message_;
};

// Where a tensor begins: an offset in a buffer.
struct PlaceIn {
  const BufferHandle& buffer;
  uint64_t offset_bytes = 0;
};

// Where the tensors of a range's tasks begin: that of task i at first + i * stride_bytes.
struct PlacesIn {
  PlaceIn first;
  int64_t stride_bytes = 0;
};

class Lane;

// A prepared call. Copies are the same call.
class LaneCall {
 public:
  // Runs the call and waits for its end. There is one argument for each word, in order: a
  // BufferHandle or a PlaceIn for a place, a number for a value or a number of elements. A buffer
  // that the lane does not have yet is bound first, which is a call over gRPC.
  template <typename... Words>
  absl::Status operator()(const Words&... words);

  // Submits the call and does not wait. `flags`: RESIDENTD_LANE_AFTER_ALL, ... Returns the number
  // of the submission for Lane::Await.
  template <typename... Words>
  absl::StatusOr<int64_t> Submit(int flags, const Words&... words);

  // Submits `count` tasks as one submission, and does not wait. There is one argument for each
  // word: what operator() takes is the same for all tasks; PlacesIn moves the tensor from task to
  // task; a span has the word of each task (residentd_lane_place_at, or the bits of a value). The
  // lane needs data_bytes: 24 for each word and 8 for each word of a span.
  template <typename... Words>
  absl::StatusOr<int64_t> SubmitRange(uint32_t count, int flags, const Words&... words);

  // The number of the call in submissions.
  uint16_t number() const { return number_; }
  // The version that was active when it was prepared, or the pinned one.
  uint32_t version() const { return version_; }

 private:
  friend class Lane;
  // A word of a submission, before it is encoded for its kind.
  struct Argument {
    Argument(const BufferHandle& handle) : place(PlaceIn{handle}) {}  // NOLINT: implicit
    Argument(const PlaceIn& in) : place(in) {}                        // NOLINT: implicit
    template <typename T>
    requires std::is_arithmetic_v<T> Argument(T number)  // NOLINT: implicit
        : real(static_cast<double>(number)),
          integer(static_cast<int64_t>(number)),
          is_integer(std::is_integral_v<T>) {}
    explicit Argument(const PlacesIn& in) : place(in.first), stride_bytes(in.stride_bytes) {}
    explicit Argument(std::span<const uint64_t> words) : values(words) {}
    std::optional<PlaceIn> place;
    // Of a range.
    int64_t stride_bytes = 0;
    std::span<const uint64_t> values;
    double real = 0;
    int64_t integer = 0;
    bool is_integer = false;
  };
  struct Word {
    v1::LaneWord::KindCase kind;
    // Of a value.
    v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  };

  LaneCall(Lane* lane, uint16_t number, uint32_t version, std::vector<Word> words)
      : lane_(lane), number_(number), version_(version), words_(std::move(words)) {}
  absl::Status Encode(std::span<const Argument> arguments, uint64_t* words);
  absl::Status Run(std::span<const Argument> arguments);
  absl::StatusOr<int64_t> SubmitArguments(int flags, std::span<const Argument> arguments);
  absl::StatusOr<int64_t> SubmitColumns(uint32_t count, int flags,
                                        std::span<const Argument> arguments);

  Lane* lane_;
  uint16_t number_;
  uint32_t version_;
  std::vector<Word> words_;
};

class Lane {
 public:
  Lane(const Lane&) = delete;
  ~Lane();

  // Prepares a call. `batch` is its template: one task whose tensors are buffers. Without a version
  // it runs the version that is active when the daemon takes a submission.
  absl::StatusOr<LaneCall> Prepare(const TaskBatch& batch, const std::vector<Varying>& words);

  // Adds a buffer to the lane's table, unless it is there; returns its index, for
  // residentd_lane_place_at.
  absl::StatusOr<uint32_t> Bind(const BufferHandle& buffer);
  absl::StatusOr<uint32_t> Bind(uint64_t buffer_id);
  // Removes a buffer from the table, so that it can be freed. OK if it is not bound.
  absl::Status Release(const BufferHandle& buffer);
  absl::Status Release(const LaneCall& call);

  // Waits until a submission has ended. The status is that of waiting; `Ended()` converts that of
  // the submission.
  absl::StatusOr<residentd_lane_completion> Await(
      int64_t sequence, absl::Duration timeout = absl::InfiniteDuration());
  absl::Status Ended(const residentd_lane_completion& completion);

  // The status for what a C function returned.
  absl::Status FromCode(int64_t code);

  residentd_lane* handle() { return handle_; }
  const v1::OpenLaneResponse& info() const { return info_; }

 private:
  friend class Client;
  friend class LaneCall;
  Lane(std::shared_ptr<Connection> connection, std::unique_ptr<grpc::ClientContext> context);
  static absl::StatusOr<std::unique_ptr<Lane>> Open(std::shared_ptr<Connection> connection,
                                                    const LaneOptions& options);
  // Waits for the end of the stream that keeps the lane open, and returns its status.
  absl::Status EndOfStream();

  const std::shared_ptr<Connection> connection_;
  // The call Lanes.Open, which lasts as long as the lane.
  const std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReader<v1::OpenLaneResponse>> stream_;
  std::optional<absl::Status> end_;
  v1::OpenLaneResponse info_;
  residentd_lane* handle_ = nullptr;
  // Index of each bound buffer, by its id.
  absl::flat_hash_map<uint64_t, uint32_t> bound_;
};

template <typename... Words>
absl::Status LaneCall::operator()(const Words&... words) {
  const std::array<Argument, sizeof...(Words)> arguments = {Argument(words)...};
  return Run(arguments);
}

template <typename... Words>
absl::StatusOr<int64_t> LaneCall::Submit(int flags, const Words&... words) {
  const std::array<Argument, sizeof...(Words)> arguments = {Argument(words)...};
  return SubmitArguments(flags, arguments);
}

template <typename... Words>
absl::StatusOr<int64_t> LaneCall::SubmitRange(uint32_t count, int flags, const Words&... words) {
  const std::array<Argument, sizeof...(Words)> arguments = {Argument(words)...};
  return SubmitColumns(count, flags, arguments);
}

}  // namespace resident::client

#endif  // RESIDENT_CLIENT_LANE_H_
