// This header is the C++ client of residentd.
//
//   auto client = resident::client::Client::Connect("127.0.0.1:50051");
//   auto x = (*client)->Upload(std::vector<float>{1, 2, 3});
//   resident::client::TaskBatch batch("scale");
//   batch.Use(*x).Return<float>({3}).Scalar(2.0);
//   auto result = (*client)->Run(batch);       // result->Output<float>(0): 2, 4, 6
//
// client/example.cc is a whole program.
//
// A client has one connection and, from the first call that needs one, one session:
// the daemon frees the client's buffers when the session ends. The session ends when
// the Client and all its Buffers are destroyed, or when the daemon ends. After a restart
// of the daemon, calls use a new session; the old buffers do not exist in it, and calls
// that name them end NOT_FOUND.
//
// Errors: every call returns absl::Status or absl::StatusOr with the status code and
// the message of the server, unchanged (proto/resident/v1 documents the codes).
// A call that did not reach a server is UNAVAILABLE, and IsUnreachable() is true of
// it. A task that fails is not a failed call: see Result::status().
//
// Units: sizes and offsets are elements unless their name contains bytes; times are
// absl::Duration on this side and have their unit in the name in messages.
//
// Thread safety: Client, Buffer and Stream::Send may be used from several threads.
// Batches, results and graph sessions belong to one thread at a time.
//
// To install operators and to change which version serves, see client/operators.h.
//
// The client needs a daemon: it contains no engine, not even for the CPU.
#ifndef RESIDENT_CLIENT_RESIDENTD_CLIENT_H_
#define RESIDENT_CLIENT_RESIDENTD_CLIENT_H_

#include <cstdint>
#include <functional>
#include <future>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/credentials.h"
#include "resident/v1/admin.pb.h"
#include "resident/v1/buffers.pb.h"
#include "resident/v1/executor.pb.h"
#include "resident/v1/graphs.pb.h"
#include "resident/v1/operators.pb.h"

namespace resident::client {

// Elements, outermost dimension first. Empty: one element.
using Shape = std::vector<uint64_t>;

// Product of the dimensions.
uint64_t CountElements(const Shape& shape);

// The element type of a C++ type. float16 and bfloat16 have no C++ type: use the byte calls.
template <typename T>
constexpr v1::DType DTypeOf() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, float>) {
    return v1::DTYPE_F32;
  } else if constexpr (std::is_same_v<U, double>) {
    return v1::DTYPE_F64;
  } else if constexpr (std::is_same_v<U, int32_t>) {
    return v1::DTYPE_I32;
  } else if constexpr (std::is_same_v<U, int64_t>) {
    return v1::DTYPE_I64;
  } else if constexpr (std::is_same_v<U, uint8_t>) {
    return v1::DTYPE_U8;
  } else if constexpr (std::is_same_v<U, int8_t>) {
    return v1::DTYPE_I8;
  } else {
    static_assert(std::is_same_v<U, uint32_t>, "not an element type of residentd");
    return v1::DTYPE_U32;
  }
}

// Bytes of one element; 0 for DTYPE_UNSPECIFIED.
uint32_t SizeOf(v1::DType dtype);

// Whether a call failed because no server answered, as opposed to a server's refusal.
bool IsUnreachable(const absl::Status& status);

// The cause of a call's error for programs. The daemon sends it with errors of arguments and with
// refusals that pass by themselves.
struct ErrorInfo {
  // Such as "SHAPE_MISMATCH".
  std::string reason;
  // What belongs to the reason, such as "argument" and "expected".
  std::map<std::string, std::string> metadata;
};
// Of the status of a call, or of a batch that a stream refused; nullopt if it has none.
std::optional<ErrorInfo> FindErrorInfo(const absl::Status& status);

class Connection;  // The channel, the stubs and the session; connection.h.
class Lane;        // Tasks through shared memory, in microseconds; lane.h.
struct LaneOptions;

// Owns device memory, which the destructor frees. Buffer<T> is the typed form.
class BufferHandle {
 public:
  BufferHandle() = default;
  BufferHandle(BufferHandle&& other) noexcept;
  BufferHandle& operator=(BufferHandle&& other) noexcept;
  ~BufferHandle();

  const v1::BufferInfo& info() const { return info_; }
  uint64_t id() const { return info_.id(); }
  uint32_t device() const { return info_.device(); }
  v1::DType dtype() const { return info_.dtype(); }
  uint64_t size_bytes() const { return info_.size_bytes(); }
  Shape shape() const { return Shape(info_.shape().begin(), info_.shape().end()); }

  // Frees it now; the daemon waits for the tasks that use it. OK if there is nothing to free.
  absl::Status Free();

  // Releases ownership: the buffer remains until Client::Free, or until its session ends
  // (without a limit if it is durable).
  void Release();

 protected:
  friend class Client;
  friend class TaskBatch;
  BufferHandle(std::shared_ptr<Connection> connection, std::string session, v1::BufferInfo info);
  absl::Status UploadBytes(const void* data, uint64_t size_bytes, uint64_t offset_bytes);
  absl::Status DownloadBytes(void* data, uint64_t size_bytes, uint64_t offset_bytes) const;

 private:
  // Null: owns nothing.
  std::shared_ptr<Connection> connection_;
  // The session of the id. Ids of another session are never freed.
  std::string session_;
  v1::BufferInfo info_;
};

template <typename T>
class Buffer : public BufferHandle {
 public:
  Buffer() = default;

  // Elements.
  uint64_t size() const { return size_bytes() / sizeof(T); }

  // Writes `values` from element `first` on.
  absl::Status Upload(std::span<const T> values, uint64_t first = 0) {
    return UploadBytes(values.data(), values.size_bytes(), first * sizeof(T));
  }

  // Reads everything.
  absl::StatusOr<std::vector<T>> Download() const {
    std::vector<T> values(size());
    if (absl::Status status = Download(std::span<T>(values)); !status.ok()) return status;
    return values;
  }

  // Fills `values` from element `first` on.
  absl::Status Download(std::span<T> values, uint64_t first = 0) const {
    return DownloadBytes(values.data(), values.size_bytes(), first * sizeof(T));
  }

 private:
  friend class Client;
  explicit Buffer(BufferHandle handle) : BufferHandle(std::move(handle)) {}
};

struct BufferOptions {
  // Absent: the least loaded device.
  std::optional<uint32_t> device = std::nullopt;
  // Outlives the session and engine restarts.
  bool durable = false;
  // FindBuffer finds it by this name; at most 128 bytes. Names need not be unique.
  std::string name = "";
};

// The common part of batches. A batch can be sent any number of times.
class Batch {
 public:
  // Returned with the result; need not be unique.
  void set_id(uint64_t id) { message_.set_id(id); }
  // Task i + 1 starts after task i has completed.
  void set_in_order() { options().set_ordering(v1::BatchOptions::ORDERING_IN_ORDER); }
  // Tasks not started by then (from arrival at the server) are skipped.
  void set_timeout(absl::Duration timeout) {
    options().set_timeout_us(static_cast<uint64_t>(absl::ToInt64Microseconds(timeout)));
  }
  void set_device(uint32_t device) { options().set_device(device); }
  // Result::device_ns() has the time of each task, also if the batch is regular.
  void set_task_times() { options().set_task_times(true); }
  // Tasks of an operator: refused if the version that would serve them has a lower level.
  void set_require_isolation(v1::Isolation level) { options().set_require_isolation(level); }

  // The message itself, for fields that have no setter here.
  v1::Batch& message() { return message_; }
  const v1::Batch& message() const { return message_; }

 protected:
  Batch() = default;

 private:
  friend class Client;
  friend class TaskBatch;
  v1::BatchOptions& options() { return *message_.mutable_options(); }
  v1::Batch message_;
  // Where the buffers of Use() are, in which session; set with the first one.
  std::weak_ptr<Connection> node_;
  std::string session_;
  bool mixed_ = false;  // They are in several sessions.
};

// A part of a buffer for each task of a batch.
struct View {
  // Shape of each task's tensor. Empty: the whole buffer's.
  Shape shape;
  // Task i's tensor starts at element i * stride. 0: all tasks use the same part.
  uint64_t stride = 0;
  // Distance between adjacent elements in each dimension, in elements; empty: dense. For
  // operators that accept strided views.
  std::vector<int64_t> strides = {};
};

// Tasks of one operator. Arguments are given in the order of the operator's signature,
// each for all tasks of the batch at once.
class TaskBatch : public Batch {
 public:
  explicit TaskBatch(std::string_view operator_name, uint32_t count = 1);

  // The version to run, instead of the active one.
  TaskBatch& Version(uint32_t version);
  // The same by the first 12 to 64 digits of its content hash, or by its label
  // (Installation::Label). Both are the same on daemons whose version numbers differ.
  // Result::content_hash() is set then.
  TaskBatch& ContentHash(std::string_view digits);
  TaskBatch& Label(std::string_view label);

  // An input that is sent with the batch: the tensors of all tasks, one after the other; or
  // one tensor, which all tasks share. `shape` is that of one task's tensor; empty: the values
  // are one vector for each task (with one task, all values).
  template <std::ranges::contiguous_range Range>
  TaskBatch& Input(const Range& values, const Shape& shape = {}) {
    using T = std::ranges::range_value_t<Range>;
    const uint64_t size_bytes = std::ranges::size(values) * sizeof(T);
    return InputBytes(DTypeOf<T>(), std::ranges::data(values), size_bytes, shape);
  }
  TaskBatch& InputBytes(v1::DType dtype, const void* data, uint64_t size_bytes, const Shape& shape);

  // A tensor in device memory: input, output or both.
  TaskBatch& Use(const BufferHandle& buffer, const View& view = {});

  // An output that is returned with the result. `shape` is that of one task's tensor.
  template <typename T>
  TaskBatch& Return(const Shape& shape) {
    return ReturnAs(DTypeOf<T>(), shape);
  }
  TaskBatch& ReturnAs(v1::DType dtype, const Shape& shape);
  // The same with the shape that follows from the inputs and the operator's signature; also the
  // dtype, unless it is given. Result::output_type() has both.
  TaskBatch& ReturnInferred(v1::DType dtype = v1::DTYPE_UNSPECIFIED);

  // A scalar for all tasks, or one for each. The kind must match the parameter's.
  TaskBatch& Scalar(double value) { return Scalars({&value, 1}); }
  TaskBatch& Integer(int64_t value) { return Integers({&value, 1}); }
  TaskBatch& Scalars(std::span<const double> values);
  TaskBatch& Integers(std::span<const int64_t> values);

 private:
  v1::OperatorTasks& tasks() { return *message().mutable_tasks(); }
};

// FLUX programs: one program over many inputs, many programs, or both by index.
class FluxBatch : public Batch {
 public:
  FluxBatch();

  // Adds a program.
  FluxBatch& Program(std::span<const uint8_t> bytecode);
  FluxBatch& Program(std::initializer_list<uint8_t> bytecode) {
    return Program(std::span<const uint8_t>(bytecode.begin(), bytecode.size()));
  }
  // An installed program, in place of Program(); version 0: the active one.
  FluxBatch& Operator(std::string_view name, uint32_t version = 0);
  // As for TaskBatch; after Operator().
  FluxBatch& ContentHash(std::string_view digits);
  FluxBatch& Label(std::string_view label);
  // Initial registers R0... of each run: `width` (0 to 16) values for each, run after
  // run; or the values of one run, which all runs share. With one program and no Runs(),
  // there are as many runs as inputs.
  FluxBatch& Inputs(std::span<const int32_t> registers, uint32_t width);
  FluxBatch& Runs(uint32_t count);
  // The program that each run executes.
  FluxBatch& SelectProgram(std::span<const uint32_t> program);
  // Registers to return. Without it: R0.
  FluxBatch& Wanted(std::span<const uint32_t> registers);
  FluxBatch& Wanted(std::initializer_list<uint32_t> registers) {
    return Wanted(std::span<const uint32_t>(registers.begin(), registers.size()));
  }
  // Instructions that one run may execute. Without it: the server's default, 1,000,000.
  FluxBatch& MaxCycles(uint64_t cycles);
  // Opcodes outside the instruction set take a cycle and do nothing.
  FluxBatch& UnknownOpcodeIsNop();

 private:
  v1::FluxPrograms& programs() { return *message().mutable_programs(); }
};

// The result of a batch.
class Result {
 public:
  Result() = default;
  explicit Result(v1::BatchResult message) : message_(std::move(message)) {}

  uint64_t id() const { return message_.id(); }
  // Whether every task ended OK.
  bool ok() const { return message_.status().empty(); }
  // OK, or the first failed task's status and message with the task's index.
  absl::Status status() const;
  uint32_t device() const { return message_.device(); }
  // The operator's version that served the tasks.
  uint32_t version() const { return message_.version(); }
  // Its content hash; empty unless the batch named a content hash or a label.
  const std::string& content_hash() const { return message_.content_hash(); }
  // Nanoseconds on the device: one value for each task, or one in total for FLUX and for regular
  // batches (BatchResult.device_ns in executor.proto).
  std::span<const uint32_t> device_ns() const {
    return {message_.device_ns().data(), static_cast<size_t>(message_.device_ns_size())};
  }

  // Returned output `index` (in the order of Return calls) of all tasks, one after the
  // other. Valid as long as this object exists. Empty if there is no such output.
  template <typename T>
  std::span<const T> Output(int index = 0) const {
    if (index < 0 || index >= message_.outputs_size()) return {};
    return As<T>(message_.outputs(index));
  }

  // Dtype and shape of one task's tensor of returned output `index`. Null unless an output of the
  // batch is TaskBatch::ReturnInferred(). Valid as long as this object exists.
  const v1::TensorType* output_type(int index = 0) const {
    if (index < 0 || index >= message_.output_types_size()) return nullptr;
    return &message_.output_types(index);
  }

  // FLUX: the wanted registers of each run, run after run.
  std::span<const int32_t> registers() const { return As<int32_t>(message_.flux().registers()); }
  // FLUX: the error of each run (docs/flux.md); empty when all are 0.
  std::span<const uint8_t> flux_errors() const { return As<uint8_t>(message_.flux().errors()); }
  // FLUX: instructions that each run executed.
  std::span<const uint32_t> cycles() const { return As<uint32_t>(message_.flux().cycles()); }

  const v1::BatchResult& message() const { return message_; }

 private:
  template <typename T>
  static std::span<const T> As(const std::string& bytes) {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  v1::BatchResult message_;
};

struct StreamOptions {
  // Maximum of batches that are sent and not yet answered; Send waits at the maximum. The server
  // reads no further message while --max_stream_batches (64) are unanswered.
  uint32_t max_in_flight = 32;
  // After this time, 10 % more or less by chance, Send waits for the results of the batches that
  // are unanswered, and opens another call. With Options::balance each call goes to any node that
  // serves, so that the stream outlives nodes that drain, and its batches have no buffers
  // (INVALID_ARGUMENT). Infinite: the stream is one call, to one node. At least 1 ms
  // (INVALID_ARGUMENT): of less, a call could be over before its first batch.
  absl::Duration max_age = absl::InfiniteDuration();
};

// A stream of batches. Results arrive in completion order. Batches that are sent while others are
// being written are joined in one message. A stream has two threads.
//
// Destroying a stream that was not finished cancels it: tasks not yet in the ring are
// skipped, and unanswered batches end CANCELLED.
class Stream {
 public:
  // Receives the batch's result, or the status with which it was refused, or with which the
  // stream ended before it was answered.
  using Callback = std::function<void(absl::StatusOr<Result>)>;

  Stream(const Stream&) = delete;
  ~Stream();

  // Sends a batch, which the caller may reuse immediately. Waits while max_in_flight batches are
  // unanswered, or while 64 batches or 256 KiB wait to be written. If it returns OK, `done` is
  // called exactly once, on a thread of the stream, at no time at which another callback is called;
  // it must not block, must not call Send or Finish, and must not destroy the stream. After an
  // error it is not called: the stream has ended, with that status.
  absl::Status Send(Batch& batch, Callback done);
  // Like Send, but returns a future, which always gets a value.
  std::future<absl::StatusOr<Result>> Send(Batch& batch);

  // Half-closes the stream, waits for unanswered batches, and returns the status of the
  // stream.
  absl::Status Finish();

  // Ends the stream immediately. Any thread.
  void Cancel();

 private:
  friend class Client;
  class Impl;
  static absl::StatusOr<std::unique_ptr<Stream>> Open(std::shared_ptr<Connection> connection,
                                                      StreamOptions options);
  explicit Stream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Owns a graph session, which the destructor closes: states and scalars of a loaded graph that its
// runs continue (Graphs.OpenSession).
//
//   auto session = (*client)->OpenGraphSession(request);
//   auto first = session->Run({}, [](const v1::GraphStep& step) {...});
//   auto copy = session->Fork();
class GraphSession {
 public:
  GraphSession() = default;
  GraphSession(GraphSession&& other) noexcept;
  GraphSession& operator=(GraphSession&& other) noexcept;
  ~GraphSession();

  // The session when it was opened.
  const v1::GraphSession& info() const { return info_; }
  const std::string& id() const { return info_.session_id(); }

  // Runs the graph from where the last run ended, as Client::RunGraph. The session is set in
  // `request`. Runs of one session are executed one after the other. After a run that failed or was
  // cancelled the session may be interrupted; see v1::GraphSession::STATE_INTERRUPTED.
  absl::StatusOr<v1::GraphResult> Run(
      v1::RunGraphRequest request,
      const std::function<void(const v1::GraphStep& step)>& on_step = nullptr,
      const std::function<void(const v1::GraphTrace& trace)>& on_trace = nullptr);
  // A session that begins where this one is.
  absl::StatusOr<GraphSession> Fork() const;
  absl::StatusOr<v1::GraphSession> Describe() const;
  // Closes it now. OK if there is nothing to close.
  absl::Status Close();

 private:
  friend class Client;
  GraphSession(std::shared_ptr<Connection> connection, std::string session, v1::GraphSession info)
      : connection_(std::move(connection)), session_(std::move(session)), info_(std::move(info)) {}

  // Null: owns nothing.
  std::shared_ptr<Connection> connection_;
  // The client's session to which the id belongs.
  std::string session_;
  v1::GraphSession info_;
};

// Whether Client::Run sends a batch a second time. The wait between two attempts doubles, up to 2
// s; Options::call_timeout is the time of all together. Batches of a stream are never sent again.
enum class Retry {
  kNever,
  // A batch that did not run: no daemon was reached, it refused the batch for a reason that passes
  // (such as DRAINING or QUEUE_FULL), or its engine ended before any task of the batch.
  kIfNotRun,
  // Also a batch whose connection or engine ended, so that its tasks may have run; unless it uses
  // buffers.
  kMayRunTwice,
};

struct Options {
  // Shown by `residentctl status`; at most 64 bytes.
  std::string client_name = "residentd client";
  // Timeout of Connect.
  absl::Duration connect_timeout = absl::Seconds(5);
  // Retry for the whole connect_timeout if nothing listens yet. Otherwise a refused
  // connection fails immediately.
  bool wait_for_server = false;
  // Timeout of each call; streams of batches have none.
  absl::Duration call_timeout = absl::Seconds(60);
  // Largest message that is accepted.
  uint32_t max_message_mib = 64;
  // Authentication. Connect refuses a token that would be sent in the clear over a network
  // (FAILED_PRECONDITION).
  Credentials credentials;
  // Path of the daemon's local socket, for descriptors of shared memory. Empty: the path that
  // the daemon reports. Set it if the client sees another path, as in a container.
  std::string local_address;
  // False: no session is ever opened. Such a client cannot have buffers.
  bool session = true;
  // Whether the address is the target of several daemons, the nodes: dns:///NAME:PORT or
  // ipv4:HOST:PORT,HOST:PORT. Then gRPC spreads over the nodes that serve what any of them can
  // answer: batches without buffers, descriptions and lists of operators and graphs, runs of loaded
  // graphs without buffers. Everything else belongs to one node, which the client chooses at random
  // when it first needs one: buffers, streams, graph sessions, lanes, changes of operators and
  // graphs, the status. Handles never move: when their node has left, calls with them are
  // UNAVAILABLE with the reason NODE_LEFT and the metadata "node" (FindErrorInfo), and the next
  // upload chooses another node.
  bool balance = false;
  Retry retry = Retry::kNever;
};

class Client {
 public:
  // Connects, so that a wrong address is detected here. `address` is host:port or any
  // other gRPC target (unix:/path).
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& address,
                                                         Options options = {});
  ~Client();

  // With Options::balance: a client of one further node, which is chosen at random among those that
  // serve. All of its calls go there, also when the node has left.
  absl::StatusOr<std::unique_ptr<Client>> Pin();

  // --- Work --------------------------------------------------------------------

  // Runs one batch. The status is that of the call; also check Result::status().
  absl::StatusOr<Result> Run(Batch& batch);
  absl::StatusOr<std::unique_ptr<Stream>> OpenStream(StreamOptions options = {});
  // For programs on the daemon's machine; see lane.h.
  absl::StatusOr<std::unique_ptr<Lane>> OpenLane(const LaneOptions& options);

  // --- Buffers -----------------------------------------------------------------

  // Allocates; the contents are undefined.
  template <typename T>
  absl::StatusOr<Buffer<T>> Allocate(const Shape& shape, const BufferOptions& options = {}) {
    absl::StatusOr<BufferHandle> handle = AllocateAs(DTypeOf<T>(), shape, options);
    if (!handle.ok()) return handle.status();
    return Buffer<T>(*std::move(handle));
  }
  absl::StatusOr<BufferHandle> AllocateAs(v1::DType dtype, const Shape& shape,
                                          const BufferOptions& options = {});

  // Allocates a vector and fills it.
  template <std::ranges::contiguous_range Range>
  auto Upload(const Range& values, const BufferOptions& options = {})
      -> absl::StatusOr<Buffer<std::ranges::range_value_t<Range>>> {
    using T = std::ranges::range_value_t<Range>;
    absl::StatusOr<Buffer<T>> buffer = Allocate<T>({std::ranges::size(values)}, options);
    if (!buffer.ok()) return buffer;
    const std::span<const T> span(std::ranges::data(values), std::ranges::size(values));
    if (absl::Status status = buffer->Upload(span); !status.ok()) return status;
    return buffer;
  }

  // Creates a buffer from shared memory: tasks read and write it in place, and nothing is
  // copied through gRPC. The daemon must be on this machine and have a local socket
  // (--local_address; FAILED_PRECONDITION otherwise). `fd` is a descriptor of the memory,
  // open for reading and writing, which the caller keeps. client/shared_memory.h creates
  // memory that every daemon accepts; for other memory see docs/shared_memory.md.
  template <typename T>
  absl::StatusOr<Buffer<T>> ImportShared(int fd, const Shape& shape,
                                         const BufferOptions& options = {}) {
    absl::StatusOr<BufferHandle> handle = ImportSharedAs(fd, DTypeOf<T>(), shape, options);
    if (!handle.ok()) return handle.status();
    return Buffer<T>(*std::move(handle));
  }
  absl::StatusOr<BufferHandle> ImportSharedAs(int fd, v1::DType dtype, const Shape& shape,
                                              const BufferOptions& options = {});

  // Imports a POSIX shared-memory object by the name that was passed to shm_open. Only a
  // daemon without identities on a loopback address accepts names.
  template <typename T>
  absl::StatusOr<Buffer<T>> ImportShared(const std::string& name, const Shape& shape,
                                         const BufferOptions& options = {}) {
    absl::StatusOr<BufferHandle> handle = ImportSharedAs(name, DTypeOf<T>(), shape, options);
    if (!handle.ok()) return handle.status();
    return Buffer<T>(*std::move(handle));
  }
  absl::StatusOr<BufferHandle> ImportSharedAs(const std::string& name, v1::DType dtype,
                                              const Shape& shape,
                                              const BufferOptions& options = {});

  // Creates a buffer from memory of a GPU that this process made with cuMemCreate and
  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: tasks read and write it in place. `fd` is what
  // cuMemExportToShareableHandle returned; the caller keeps it. `allocation_bytes`: the size that
  // was passed to cuMemCreate. `device_uuid`: of the GPU, as in Status(). Otherwise as
  // ImportShared. See docs/local_lane.md.
  template <typename T>
  absl::StatusOr<Buffer<T>> ImportCuda(int fd, uint64_t allocation_bytes,
                                       const std::string& device_uuid, const Shape& shape) {
    absl::StatusOr<BufferHandle> handle =
        ImportCudaAs(fd, allocation_bytes, device_uuid, DTypeOf<T>(), shape);
    if (!handle.ok()) return handle.status();
    return Buffer<T>(*std::move(handle));
  }
  absl::StatusOr<BufferHandle> ImportCudaAs(int fd, uint64_t allocation_bytes,
                                            const std::string& device_uuid, v1::DType dtype,
                                            const Shape& shape);

  // These calls use ids. They can access this session's buffers and all durable ones.
  absl::StatusOr<std::vector<v1::BufferInfo>> ListBuffers();
  // The buffer with this name. NOT_FOUND: there is none; FAILED_PRECONDITION: several have it.
  absl::StatusOr<v1::BufferInfo> FindBuffer(const std::string& name);
  absl::Status UploadBytes(uint64_t buffer, uint64_t offset_bytes, std::string_view data);
  // `size_bytes` 0: to the end. `sink` gets the pieces in order; false ends the download
  // with CANCELLED.
  absl::Status DownloadBytes(uint64_t buffer, uint64_t offset_bytes, uint64_t size_bytes,
                             const std::function<bool(std::string_view)>& sink);
  // Makes a durable buffer of each tensor of a safetensors file below the daemon's --load_dir; the
  // tensor's name, after `prefix`, is the buffer's name. `progress` gets the bytes that are loaded
  // and those of the whole file; it may be null. All or nothing.
  struct LoadOptions {
    std::string prefix;
    std::optional<uint32_t> device;
    // Leave tensors out whose dtype the daemon does not have; their names are appended to
    // `skipped`.
    bool skip_unsupported = false;
    std::vector<std::string>* skipped = nullptr;
    std::function<void(uint64_t loaded, uint64_t total)> progress;
  };
  absl::StatusOr<std::vector<v1::BufferInfo>> LoadFile(const std::string& path,
                                                       const LoadOptions& options);
  absl::Status Free(uint64_t buffer);
  // Saves a durable buffer's current contents for an engine restart.
  absl::Status Persist(uint64_t buffer);

  // --- Operators ---------------------------------------------------------------

  absl::StatusOr<std::vector<v1::Operator>> ListOperators();
  absl::StatusOr<v1::Operator> DescribeOperator(const std::string& name);

  // --- Graphs ------------------------------------------------------------------

  // Checks a graph against the operators that serve. The report has what is wrong with it.
  // `dependencies`: whether the report lists the derived dependencies.
  absl::StatusOr<v1::GraphReport> ValidateGraph(const v1::Graph& graph, bool dependencies = false);
  // Draws a graph. The picture is empty if the graph is refused.
  absl::StatusOr<v1::RenderGraphResponse> RenderGraph(const v1::RenderGraphRequest& request);
  // Runs a graph, and waits for its end. `on_step`: called after each step of a graph that has
  // streams, on this thread; may be null. Each step that it is called with has the versions that
  // executed the step, also where the daemon has not sent them again; they are empty only if the
  // daemon is older than GraphStep.versions. `on_trace`: likewise, with what the workers did, if
  // `request.trace` is set. Errors: see Graphs.Run.
  absl::StatusOr<v1::GraphResult> RunGraph(
      const v1::RunGraphRequest& request,
      const std::function<void(const v1::GraphStep& step)>& on_step = nullptr,
      const std::function<void(const v1::GraphTrace& trace)>& on_trace = nullptr);

  // Checks a graph and keeps it in the daemon. If it is refused, the response has no id, and the
  // report says why.
  absl::StatusOr<v1::LoadGraphResponse> LoadGraph(const v1::Graph& graph);
  absl::StatusOr<std::vector<v1::LoadedGraph>> ListGraphs();
  // With the graph itself.
  absl::StatusOr<v1::DescribeGraphResponse> DescribeGraph(const std::string& id);
  // Ends this caller's hold of a graph, or with `for_all` (role admin) the holds of all callers.
  // Returns whether the graph was removed.
  absl::StatusOr<bool> UnloadGraph(const std::string& id, bool for_all = false);
  absl::StatusOr<GraphSession> OpenGraphSession(const v1::OpenGraphSessionRequest& request);

  // --- Administration ----------------------------------------------------------

  absl::StatusOr<v1::StatusResponse> Status();
  // Queries the health service: whether the daemon accepts work and has a device for it.
  // `service` is a gRPC service's full name, or "resident.device/N" for device N; empty: all
  // of them. NOT_FOUND if there is no such service. Never needs a token.
  absl::StatusOr<bool> IsServing(const std::string& service = "");
  absl::Status Park(uint32_t device);
  absl::Status Resume(uint32_t device);
  // Returns the number of remaining tasks (0 if OK). `timeout` zero: the daemon's default.
  absl::StatusOr<uint64_t> Drain(absl::Duration timeout);

  // Opens the session if there is none yet and returns its id.
  absl::StatusOr<std::string> SessionId();
  const std::string& address() const;

 private:
  friend class Models;
  friend class Operators;
  explicit Client(std::shared_ptr<Connection> connection);
  // Sets the fields that do not depend on the kind of memory, and calls ImportShared.
  static absl::StatusOr<BufferHandle> Import(std::shared_ptr<Connection> connection,
                                             v1::ImportSharedRequest request, v1::DType dtype,
                                             const Shape& shape, const BufferOptions& options);
  absl::StatusOr<Result> RunOnce(Batch& batch, absl::Duration timeout);
  std::shared_ptr<Connection> connection_;
};

}  // namespace resident::client

#endif  // RESIDENT_CLIENT_RESIDENTD_CLIENT_H_
