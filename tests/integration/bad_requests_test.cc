// Each bad request is refused with a precise status, and the next request is served.
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/rpc/error_details.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "gtest/gtest.h"
#include "resident/v1/admin.grpc.pb.h"
#include "resident/v1/buffers.grpc.pb.h"
#include "resident/v1/operators.grpc.pb.h"
#include "tests/daemon/messages.h"

namespace resident::testing {
namespace {

using grpc::StatusCode;

constexpr char kOpen[] = "/resident.v1.Sessions/Open";
constexpr char kWatch[] = "/resident.v1.Operators/Watch";
constexpr char kDrain[] = "/resident.v1.Admin/Drain";

// Empty if the status has none.
google::rpc::ErrorInfo ParseErrorInfo(const grpc::Status& status) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  for (const google::protobuf::Any& detail : details.details()) EXPECT_TRUE(detail.UnpackTo(&info));
  return info;
}

class BadRequestsTest : public DaemonTest {
 protected:
  static void SetUpTestSuite() {
    daemon_ = std::make_unique<Daemon>(std::vector<std::string>{
        "--max_message_mib=8", "--max_batch_tasks=100000", "--flux_max_cycles=5000000"});
  }

  // Sends the batch with Run and with Submit: both give the same error, and the stream
  // continues.
  void ExpectBatchRefused(const v1::Batch& batch, StatusCode code,
                          const std::vector<std::string>& parts) {
    const RunOutcome outcome = client_.Run(batch);
    ExpectRefused(outcome.call, code, parts);

    v1::Batch with_id = batch;
    with_id.set_id(9);
    const std::vector<v1::BatchResult> results =
        SubmitSequentially(client_, {with_id, SmallAdd(10)});
    EXPECT_EQ(results[0].id(), 9u);
    EXPECT_EQ(results[0].refused().code(), code);
    EXPECT_EQ(results[0].refused().message(), outcome.call.error_message());
    const google::rpc::ErrorInfo info = ParseErrorInfo(outcome.call);
    EXPECT_EQ(results[0].refused().reason(), info.reason());
    EXPECT_EQ(
        std::map(results[0].refused().metadata().begin(), results[0].refused().metadata().end()),
        std::map(info.metadata().begin(), info.metadata().end()));
    EXPECT_EQ(Floats(results[1]), std::vector<float>{3});
    ExpectServes();
  }

  static v1::Batch Changed(const std::function<void(v1::Batch&)>& change) {
    v1::Batch batch = SmallAdd();
    change(batch);
    return batch;
  }
};

TEST_F(BadRequestsTest, BatchWithoutWork) {
  ExpectBatchRefused(v1::Batch(), StatusCode::INVALID_ARGUMENT, {"no work"});
}

TEST_F(BadRequestsTest, UnknownOperatorNamesTheNearest) {
  ExpectBatchRefused(Tasks("adt", 1), StatusCode::NOT_FOUND, {"'adt'", "did you mean 'add'"});
}

TEST_F(BadRequestsTest, UnknownVersion) {
  ExpectBatchRefused(Changed([](auto& b) { b.mutable_tasks()->set_version(3); }),
                     StatusCode::NOT_FOUND, {"no version 3"});
}

TEST_F(BadRequestsTest, OperatorThatOnlyTheDaemonCalls) {
  ExpectBatchRefused(Tasks("flux.run", 1), StatusCode::INVALID_ARGUMENT, {"flux.run"});
}

TEST_F(BadRequestsTest, WrongArgumentCount) {
  ExpectBatchRefused(Changed([](auto& b) { b.mutable_tasks()->mutable_arguments()->RemoveLast(); }),
                     StatusCode::INVALID_ARGUMENT,
                     {"takes 3 to 4 arguments and got 2", "alpha (optional)"});
  ExpectBatchRefused(Changed([](auto& b) {
                       for (int i = 0; i < 1000; ++i) b.mutable_tasks()->add_arguments();
                     }),
                     StatusCode::INVALID_ARGUMENT, {"got 1003"});
}

TEST_F(BadRequestsTest, WrongDType) {
  ExpectBatchRefused(
      Changed([](auto& b) {
        b.mutable_tasks()->mutable_arguments(1)->mutable_inline_()->set_dtype(v1::DTYPE_U32);
      }),
      StatusCode::INVALID_ARGUMENT, {"argument 2 'y' of add", "u32", "send f32"});
}

TEST_F(BadRequestsTest, DTypeLeftOut) {
  ExpectBatchRefused(Changed([](auto& b) {
                       b.mutable_tasks()->mutable_arguments(0)->mutable_inline_()->clear_dtype();
                     }),
                     StatusCode::INVALID_ARGUMENT, {"argument 1 'x' of add", "dtype is not set"});
}

TEST_F(BadRequestsTest, WrongShape) {
  ExpectBatchRefused(Changed([](auto& b) {
                       b.mutable_tasks()->mutable_arguments(1)->mutable_inline_()->set_shape(0, 3);
                     }),
                     StatusCode::INVALID_ARGUMENT,
                     {"argument 2 'y' of add: shape [3] does not broadcast to S = [1] of 'out'"});
}

TEST_F(BadRequestsTest, TooManyDimensions) {
  ExpectBatchRefused(Changed([](auto& b) {
                       auto* column = b.mutable_tasks()->mutable_arguments(0)->mutable_inline_();
                       for (int i = 0; i < 8; ++i) column->add_shape(1);
                     }),
                     StatusCode::INVALID_ARGUMENT, {"9 dimensions", "limit of 8"});
}

TEST_F(BadRequestsTest, ShapesThatOverflow) {
  for (const uint64_t dim : {~uint64_t{0}, uint64_t{1} << 62, uint64_t{1} << 40}) {
    v1::Batch batch = Tasks("copy", 2);
    Inline(batch, {dim, dim}, {1});
    Returned(batch, {dim, dim});
    ExpectBatchRefused(batch, StatusCode::INVALID_ARGUMENT, {"argument 1 'x' of copy"});
  }
  v1::Batch fill = Tasks("fill", 100'000);
  Returned(fill, {uint64_t{1} << 50});
  Scalar(fill, {1});
  ExpectBatchRefused(fill, StatusCode::INVALID_ARGUMENT, {"overflow"});
}

TEST_F(BadRequestsTest, InlineDataOfTheWrongSize) {
  for (const size_t bytes : {0, 3, 5, 8}) {
    ExpectBatchRefused(Changed([&](auto& b) {
                         b.mutable_tasks()->mutable_arguments(0)->mutable_inline_()->set_data(
                             std::string(bytes, 'x'));
                       }),
                       StatusCode::INVALID_ARGUMENT,
                       {"inline data has " + std::to_string(bytes) + " bytes", "4"});
  }
}

TEST_F(BadRequestsTest, ColumnOfTheWrongKind) {
  v1::Batch output = Tasks("copy", 1);
  Inline(output, {1}, {1});
  Inline(output, {1}, {1});
  ExpectBatchRefused(output, StatusCode::INVALID_ARGUMENT,
                     {"argument 2 'out' of copy is an output and got an inline column"});
  v1::Batch input = Tasks("copy", 1);
  Returned(input, {1});
  Returned(input, {1});
  ExpectBatchRefused(input, StatusCode::INVALID_ARGUMENT, {"'x' of copy is an input"});
  v1::Batch tensor = Tasks("scale", 1);
  Inline(tensor, {1}, {1});
  Returned(tensor, {1});
  Inline(tensor, {1}, {1});
  ExpectBatchRefused(tensor, StatusCode::INVALID_ARGUMENT, {"'s' of scale is a scalar"});
  v1::Batch empty = Tasks("copy", 1);
  empty.mutable_tasks()->add_arguments();
  empty.mutable_tasks()->add_arguments();
  ExpectBatchRefused(empty, StatusCode::INVALID_ARGUMENT, {"the column is empty"});
}

TEST_F(BadRequestsTest, ZeroTasks) {
  ExpectBatchRefused(Changed([](auto& b) { b.mutable_tasks()->set_count(0); }),
                     StatusCode::INVALID_ARGUMENT, {"count is 0"});
}

TEST_F(BadRequestsTest, MoreTasksThanTheLimit) {
  ExpectBatchRefused(Changed([](auto& b) { b.mutable_tasks()->set_count(100'001); }),
                     StatusCode::INVALID_ARGUMENT, {"100001", "100000", "--max_batch_tasks"});
}

TEST_F(BadRequestsTest, NanAndFractionsAreNotIntegers) {
  v1::Batch batch = Tasks("test.refuse", 1);
  Returned(batch, {1});
  Scalar(batch, {std::nan("")});
  ExpectBatchRefused(batch, StatusCode::INVALID_ARGUMENT,
                     {"'detail' of test.refuse is a i64", "including NaN"});
}

TEST_F(BadRequestsTest, ScalarsOfTheWrongKindCountOrRange) {
  v1::Batch kind = SmallAdd();
  Integer(kind, {1});
  ExpectBatchRefused(kind, StatusCode::INVALID_ARGUMENT, {"got integers", "f64"});
  v1::Batch count = SmallAdd();
  Scalar(count, {1, 2, 3});
  ExpectBatchRefused(count, StatusCode::INVALID_ARGUMENT, {"3 values for 1 tasks"});
  v1::Batch none = SmallAdd();
  Scalar(none, {});
  ExpectBatchRefused(none, StatusCode::INVALID_ARGUMENT, {"both f64 and i64 are set, or neither"});
  v1::Batch range = Tasks("scale", 1);
  Inline(range, {1}, {1});
  Returned(range, {1});
  Scalar(range, {1e300});
  ExpectBatchRefused(range, StatusCode::INVALID_ARGUMENT, {"1e+300", "does not fit f32"});
}

TEST_F(BadRequestsTest, UnknownEnumValues) {
  ExpectBatchRefused(
      Changed([](auto& b) {
        b.mutable_options()->set_ordering(static_cast<v1::BatchOptions::Ordering>(9));
      }),
      StatusCode::INVALID_ARGUMENT, {"BatchOptions.ordering", "9"});
  ExpectBatchRefused(Changed([](auto& b) {
                       b.mutable_options()->set_require_isolation(static_cast<v1::Isolation>(4));
                     }),
                     StatusCode::INVALID_ARGUMENT, {"BatchOptions.require_isolation", "4"});
  ExpectBatchRefused(Changed([](auto& b) {
                       b.mutable_tasks()->mutable_arguments(0)->mutable_inline_()->set_dtype(
                           static_cast<v1::DType>(200));
                     }),
                     StatusCode::INVALID_ARGUMENT, {"200", "DTYPE_F32"});
  v1::Batch flux = Programs({std::string("\x00", 1)});
  flux.mutable_programs()->set_unknown_opcode(static_cast<v1::FluxPrograms::UnknownOpcode>(-1));
  ExpectBatchRefused(flux, StatusCode::INVALID_ARGUMENT, {"unknown_opcode", "-1"});
  flux = Programs({std::string("\x00", 1)});
  flux.mutable_options()->set_require_isolation(v1::ISOLATION_TRUSTED);
  ExpectBatchRefused(flux, StatusCode::INVALID_ARGUMENT, {"require_isolation", "programs"});
}

TEST_F(BadRequestsTest, UnknownDevice) {
  ExpectBatchRefused(Changed([](auto& b) { b.mutable_options()->set_device(7); }),
                     StatusCode::NOT_FOUND, {"no device 7"});
}

TEST_F(BadRequestsTest, UnknownFreedAndForeignBuffers) {
  const auto use = [](uint64_t id) {
    v1::Batch batch = Tasks("copy", 1);
    Buffers(batch, {id});
    Returned(batch, {4});
    return batch;
  };
  ExpectBatchRefused(use(123456), StatusCode::NOT_FOUND, {"no buffer 123456"});
  const uint64_t id = MustAllocate(4);
  {
    Client other(*daemon_);
    ExpectRefused(other.Run(use(id)).call, StatusCode::NOT_FOUND, {"no buffer"});
  }
  const auto context = client_.Context();
  v1::FreeRequest request;
  request.set_buffer_id(id);
  v1::FreeResponse response;
  ASSERT_TRUE(client_.buffers().Free(context.get(), request, &response).ok());
  ExpectBatchRefused(use(id), StatusCode::NOT_FOUND, {"no buffer " + std::to_string(id)});
}

TEST_F(BadRequestsTest, OffsetsBeyondTheBuffer) {
  const uint64_t id = MustAllocate(8);
  struct Case {
    std::vector<uint64_t> offsets;
    uint64_t stride;
    uint64_t elements;
    std::vector<std::string> parts;
  };
  for (const Case& c : std::vector<Case>{
           {{0, 0, 20}, 0, 4, {"task 2", "offset 20", "of 32 bytes"}},
           {{}, 12, 4, {"task 2", "offset 24"}},
           {{}, 0, 9, {"task 0", "36 bytes"}},
           {{0, 0, ~uint64_t{0}}, 0, 1, {"task 2"}},
           {{}, ~uint64_t{0} - 3, 1, {"task 1"}},
           {{}, uint64_t{1} << 63, 1, {"task 1"}},
           {{0, 2, 0}, 0, 1, {"byte offset 2 of task 1", "4 bytes"}},
           {{}, 3, 1, {"byte offset 3"}},
           {{0, 4}, 0, 1, {"offsets has 2 values for 3 tasks"}},
       }) {
    v1::Batch batch = Tasks("copy", 3);
    v1::BufferColumn* column = Buffers(batch, {id});
    for (const uint64_t offset : c.offsets) column->add_offsets(offset);
    column->set_stride_bytes(c.stride);
    column->add_shape(c.elements);
    Returned(batch, {c.elements});
    ExpectBatchRefused(batch, StatusCode::INVALID_ARGUMENT, c.parts);
  }
}

TEST_F(BadRequestsTest, BuffersOfOneColumnWithDifferentTypes) {
  const uint64_t a = MustAllocate(4);
  const uint64_t b = MustAllocate(8);
  v1::Batch batch = Tasks("copy", 2);
  Buffers(batch, {a, b});
  Returned(batch, {4});
  ExpectBatchRefused(batch, StatusCode::INVALID_ARGUMENT, {"differ in dtype or shape"});
  v1::Batch ids = Tasks("copy", 3);
  Buffers(ids, {a, b});
  Returned(ids, {4});
  ExpectBatchRefused(ids, StatusCode::INVALID_ARGUMENT, {"buffer_ids has 2 values for 3 tasks"});
}

TEST_F(BadRequestsTest, MoreInlineDataThanStagingMemory) {
  v1::Batch batch = Tasks("fill", 100'000);
  Returned(batch, {10'000});
  Scalar(batch, {1});
  ExpectBatchRefused(batch, StatusCode::RESOURCE_EXHAUSTED, {"staging memory", "--staging_mib"});
}

TEST_F(BadRequestsTest, InconsistentFluxPrograms) {
  const std::string halt("\x00", 1);
  const auto changed = [&](const std::function<void(v1::FluxPrograms&)>& change) {
    v1::Batch batch = Programs({halt, halt});
    change(*batch.mutable_programs());
    return batch;
  };
  struct Case {
    v1::Batch batch;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases = {
      {changed([](auto& f) { f.set_offsets(2, 3); }), {"the last value is 3", "2 bytes"}},
      {changed([](auto& f) { f.set_offsets(1, 3); }), {"value 2", "below the one before"}},
      {changed([](auto& f) {
         f.clear_offsets();
         f.add_offsets(0);
       }),
       {"describes no program"}},
      {changed([](auto& f) { f.set_count(3); }), {"count is 3 for 2 programs"}},
      {changed([](auto& f) { f.set_count(100'001); }), {"100001", "--max_batch_tasks"}},
      {changed([](auto& f) { f.add_program_index(0); }), {"1 values for 2 runs"}},
      {changed([](auto& f) {
         f.add_program_index(0);
         f.add_program_index(2);
       }),
       {"run 1 names program 2 of 2"}},
      {changed([](auto& f) { f.set_initial_width(17); }), {"initial_width is 17"}},
      {changed([](auto& f) {
         f.set_initial_width(2);
         f.set_initial("123");
       }),
       {"initial has 3 bytes", "16 (all runs) or 8"}},
      {changed([](auto& f) { f.add_wanted(16); }), {"no register 16"}},
      {changed([](auto& f) {
         for (int i = 0; i < 17; ++i) f.add_wanted(0);
       }),
       {"17 registers"}},
      {changed([](auto& f) { f.set_max_cycles(5'000'001); }), {"--flux_max_cycles"}},
  };
  for (const Case& c : cases) {
    ExpectBatchRefused(c.batch, StatusCode::INVALID_ARGUMENT, c.parts);
  }
}

TEST_F(BadRequestsTest, OperatorsThatAreNotInstalledPrograms) {
  v1::Batch batch;
  batch.mutable_programs()->set_operator_("squere");
  ExpectBatchRefused(batch, StatusCode::NOT_FOUND, {"'squere'"});
  batch.mutable_programs()->set_operator_("add");
  ExpectBatchRefused(batch, StatusCode::INVALID_ARGUMENT, {"'add'"});
  batch.mutable_programs()->set_bytecode(std::string("\x00", 1));
  ExpectBatchRefused(batch, StatusCode::INVALID_ARGUMENT, {"'add'", "its own programs"});
  batch.mutable_programs()->clear_operator_();
  batch.mutable_programs()->set_version(2);
  ExpectBatchRefused(batch, StatusCode::INVALID_ARGUMENT, {"version is 2", "operator is not set"});
}

TEST_F(BadRequestsTest, MessageOverTheSizeLimit) {
  v1::Batch batch = SmallAdd();
  batch.mutable_tasks()->mutable_arguments(0)->mutable_inline_()->set_data(
      std::string(9 << 20, 'x'));
  const RunOutcome outcome = client_.Run(batch);
  EXPECT_EQ(outcome.call.error_code(), StatusCode::RESOURCE_EXHAUSTED);

  const auto context = client_.Context();
  const auto stream = client_.executor().Submit(context.get());
  v1::SubmitRequest request;
  *request.mutable_batch() = batch;
  stream->Write(request);
  v1::SubmitResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  ExpectServes();
}

TEST_F(BadRequestsTest, DeadlineThatHasPassed) {
  const auto context = client_.Context();
  context->set_deadline(std::chrono::system_clock::now() - std::chrono::seconds(1));
  v1::RunRequest request;
  *request.mutable_batch() = SmallAdd();
  v1::RunResponse response;
  EXPECT_EQ(client_.executor().Run(context.get(), request, &response).error_code(),
            StatusCode::DEADLINE_EXCEEDED);
  ExpectServes();
}

TEST_F(BadRequestsTest, UnknownSession) {
  const auto stub = v1::Executor::NewStub(daemon_->Connect());
  grpc::ClientContext context;
  context.AddMetadata("resident-session", "0123");
  v1::RunRequest request;
  *request.mutable_batch() = SmallAdd();
  v1::RunResponse response;
  ExpectRefused(stub->Run(&context, request, &response), StatusCode::UNAUTHENTICATED,
                {"no session '0123'"});
}

TEST_F(BadRequestsTest, SessionOfAnotherDaemon) {
  const auto stub = v1::Executor::NewStub(daemon_->Connect());
  grpc::ClientContext context;
  context.AddMetadata("resident-session", std::string(40, '0'));
  v1::RunRequest request;
  *request.mutable_batch() = SmallAdd();
  v1::RunResponse response;
  const grpc::Status status = stub->Run(&context, request, &response);
  ExpectRefused(status, StatusCode::UNAUTHENTICATED, {"is one of another daemon"});
  EXPECT_NE(status.error_details().find("SESSION_ELSEWHERE"), std::string::npos);
}

// Sends raw bytes as the messages of a call, and waits for its end. `responses` counts the
// responses.
grpc::Status CallWithBytes(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                           const std::string& session, const std::vector<std::string>& messages,
                           int* responses = nullptr) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  context.AddMetadata("resident-session", session);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, method, &queue);
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  for (size_t i = 0; ok && i < messages.size(); ++i) {
    grpc::Slice slice(messages[i]);
    grpc::WriteOptions options;
    if (i + 1 == messages.size()) options.set_last_message();
    call->Write(grpc::ByteBuffer(&slice, 1), options, nullptr);
    queue.Next(&tag, &ok);
  }
  if (method == kOpen || method == kWatch) context.TryCancel();  // They would not end.
  grpc::ByteBuffer response;
  do {
    call->Read(&response, nullptr);
    queue.Next(&tag, &ok);
    if (ok && responses != nullptr) ++*responses;
  } while (ok);
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  return status;
}

// What the daemon's reflection answers.
grpc::reflection::v1alpha::ServerReflectionResponse Reflect(
    const std::shared_ptr<grpc::Channel>& channel,
    const grpc::reflection::v1alpha::ServerReflectionRequest& request) {
  const auto stub = grpc::reflection::v1alpha::ServerReflection::NewStub(channel);
  grpc::ClientContext context;
  const auto stream = stub->ServerReflectionInfo(&context);
  grpc::reflection::v1alpha::ServerReflectionResponse response;
  stream->WriteLast(request, grpc::WriteOptions());
  EXPECT_TRUE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
  return response;
}

// The methods of a service, "/package.Service/Method", as the daemon describes it.
std::vector<std::string> ListMethods(const std::shared_ptr<grpc::Channel>& channel,
                                     const std::string& name) {
  grpc::reflection::v1alpha::ServerReflectionRequest request;
  request.set_file_containing_symbol(name);
  const auto response = Reflect(channel, request);
  std::vector<std::string> methods;
  for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
    google::protobuf::FileDescriptorProto file;
    EXPECT_TRUE(file.ParseFromString(bytes));
    for (const auto& service : file.service()) {
      if (file.package() + "." + service.name() != name) continue;
      for (const auto& method : service.method()) {
        methods.push_back("/" + name + "/" + method.name());
      }
    }
  }
  EXPECT_FALSE(methods.empty()) << name;
  return methods;
}

// All methods of the services that the daemon serves, except gRPC's own: a new one is tested
// without an entry here.
std::vector<std::string> EveryMethod(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::reflection::v1alpha::ServerReflectionRequest request;
  request.set_list_services("");
  const auto response = Reflect(channel, request);
  std::vector<std::string> methods;
  for (const auto& service : response.list_services_response().service()) {
    if (absl::StartsWith(service.name(), "grpc.")) continue;
    for (std::string& method : ListMethods(channel, service.name())) {
      methods.push_back(std::move(method));
    }
  }
  return methods;
}

// Random bytes; in odd rounds a valid message with some bytes changed.
std::string RandomBytes(std::mt19937& random, int round) {
  std::string bytes(random() % 200, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  if (round % 2 == 0) return bytes;
  const std::string valid = SmallAdd().SerializeAsString();
  bytes = std::string("\x0a") + static_cast<char>(valid.size()) + valid;
  for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
  return bytes;
}

TEST_F(BadRequestsTest, RandomBytesToEveryRpc) {
  const auto channel = daemon_->Connect();
  std::vector<std::string> methods = EveryMethod(channel);
  // A Drain that happens to be valid would stop the daemon that the other tests use.
  ASSERT_EQ(std::erase(methods, kDrain), 1u);
  methods.push_back("/resident.v1.Admin/NoSuchMethod");
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    for (const std::string& method : methods) {
      const grpc::Status status =
          CallWithBytes(channel, method, client_.session(), {RandomBytes(random, round)});
      EXPECT_NE(status.error_code(), StatusCode::DEADLINE_EXCEEDED) << method;
    }
    // A Park may have been valid by chance.
    (void)Resume(*daemon_);
    ExpectServes();
  }
  EXPECT_EQ(daemon_->Device().restarts(), 0u);
}

TEST(BadRequestsToDrainTest, RandomBytesDrainTheDaemonOrAreRefused) {
  const Daemon daemon;
  const Client client(daemon);
  const auto channel = daemon.Connect();
  std::mt19937 random(5);
  for (int round = 0; round < 30; ++round) {
    const grpc::Status status =
        CallWithBytes(channel, kDrain, client.session(), {RandomBytes(random, round)});
    EXPECT_NE(status.error_code(), StatusCode::DEADLINE_EXCEEDED) << status.error_message();
    // Either it has drained or it serves; in both cases it responds.
    const bool draining = daemon.Status().draining();
    EXPECT_TRUE(draining || !status.ok());
    const RunOutcome outcome = client.Run(SmallAdd());
    if (draining) {
      ExpectRefused(outcome.call, StatusCode::UNAVAILABLE, {"draining"});
    } else {
      EXPECT_TRUE(outcome.all_ok()) << outcome.message();
    }
  }
  EXPECT_EQ(daemon.Device().restarts(), 0u);
}

TEST_F(BadRequestsTest, TruncatedMessagesAreRefused) {
  const auto channel = daemon_->Connect();
  v1::RunRequest request;
  *request.mutable_batch() = SmallAdd();
  const std::string whole = request.SerializeAsString();
  for (size_t size = 1; size < whole.size(); ++size) {
    const grpc::Status status = CallWithBytes(channel, "/resident.v1.Executor/Run",
                                              client_.session(), {whole.substr(0, size)});
    EXPECT_FALSE(status.ok()) << size;
    EXPECT_NE(status.error_code(), StatusCode::DEADLINE_EXCEEDED) << size;
  }
  ExpectServes();
}

// Not a valid message of any type: a field number without an end.
const std::string kInvalidMessage = "\xff\xff\xff";

TEST_F(BadRequestsTest, InvalidMessagesAreRefusedByEveryRpc) {
  const auto channel = daemon_->Connect();
  std::vector<std::string> methods = EveryMethod(channel);
  // The test cancels these before they can answer.
  ASSERT_EQ(std::erase_if(methods, [](const auto& m) { return m == kOpen || m == kWatch; }), 2u);
  for (const std::string& method : methods) {
    SCOPED_TRACE(method);
    ExpectRefused(CallWithBytes(channel, method, client_.session(), {kInvalidMessage}),
                  StatusCode::INVALID_ARGUMENT, {"a message cannot be parsed as "});
  }
  EXPECT_FALSE(daemon_->Status().draining());
  ExpectServes();
}

TEST_F(BadRequestsTest, UnknownMethodIsUnimplemented) {
  const grpc::Status status = CallWithBytes(daemon_->Connect(), "/resident.v1.Admin/NoSuchMethod",
                                            client_.session(), {kInvalidMessage});
  EXPECT_EQ(status.error_code(), StatusCode::UNIMPLEMENTED);
}

// Earlier messages are answered; later ones are not read.
TEST_F(BadRequestsTest, StreamOfBatchesEndsAtAnInvalidMessage) {
  v1::SubmitRequest request;
  *request.mutable_batch() = SmallAdd();
  const std::string good = request.SerializeAsString();
  int responses = 0;
  ExpectRefused(CallWithBytes(daemon_->Connect(), "/resident.v1.Executor/Submit", client_.session(),
                              {good, good, kInvalidMessage, good}, &responses),
                StatusCode::INVALID_ARGUMENT,
                {"a message cannot be parsed as resident.v1.SubmitRequest", "UTF-8"});
  EXPECT_EQ(responses, 2);
  ExpectServes();
}

TEST_F(BadRequestsTest, UploadWithAnInvalidMessageFails) {
  v1::UploadRequest request;
  request.set_buffer_id(MustAllocate(16));
  request.set_data(std::string(32, 'x'));
  ExpectRefused(CallWithBytes(daemon_->Connect(), "/resident.v1.Buffers/Upload", client_.session(),
                              {request.SerializeAsString(), kInvalidMessage}),
                StatusCode::INVALID_ARGUMENT,
                {"a message cannot be parsed as resident.v1.UploadRequest"});
  ExpectServes();
}

TEST_F(BadRequestsTest, InstallWithAnInvalidMessageInstallsNothing) {
  v1::InstallRequest request;
  request.mutable_header()->set_name("cut_short");
  request.mutable_header()->set_signature("x: in f32[*S], out: out f32[*S]");
  request.mutable_header()->set_main_file("cut_short.cc");
  ExpectRefused(CallWithBytes(daemon_->Connect(), "/resident.v1.Operators/Install",
                              client_.session(), {request.SerializeAsString(), kInvalidMessage}),
                StatusCode::INVALID_ARGUMENT,
                {"a message cannot be parsed as resident.v1.InstallRequest"});
  v1::DescribeOperatorRequest describe;
  describe.set_name("cut_short");
  v1::DescribeOperatorResponse described;
  grpc::ClientContext context;
  EXPECT_EQ(v1::Operators::NewStub(daemon_->Connect())
                ->Describe(&context, describe, &described)
                .error_code(),
            StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace resident::testing
