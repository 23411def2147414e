// The C++ client against a real daemon.
#include <fcntl.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/residentd_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/daemon.h"

namespace resident::client {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ReadMessage(const absl::Status& status) { return std::string(status.message()); }

// Sums the numbers from n down to 1: ADD R1, R1, R0; LOOP R0, -4; MOV R0, R1; HALT.
const std::vector<uint8_t> kTriangle = {0x20, 1, 1, 0, 0x46, 0, 4, 0, 0x3a, 0, 1, 0, 0x00};

class ClientTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = new testing::Daemon; }
  static void TearDownTestSuite() {
    delete daemon_;
    daemon_ = nullptr;
  }

  void SetUp() override {
    client_ = Connect();
    ASSERT_NE(client_, nullptr);
  }

  static std::unique_ptr<Client> Connect() {
    auto client = Client::Connect(daemon_->address());
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }

  // Number of buffers that `client` sees and that are not durable.
  static size_t OwnBuffers(Client& client) {
    auto buffers = client.ListBuffers();
    EXPECT_TRUE(buffers.ok()) << buffers.status();
    size_t own = 0;
    for (const v1::BufferInfo& buffer : *buffers) own += !buffer.durable();
    return own;
  }

  static testing::Daemon* daemon_;
  std::unique_ptr<Client> client_;
};

testing::Daemon* ClientTest::daemon_ = nullptr;

TEST_F(ClientTest, AnAddressWithoutAServerIsUnreachable) {
  auto client = Client::Connect("127.0.0.1:1");
  ASSERT_FALSE(client.ok());
  EXPECT_TRUE(IsUnreachable(client.status())) << client.status();
  EXPECT_THAT(ReadMessage(client.status()), HasSubstr("127.0.0.1:1"));
}

TEST_F(ClientTest, ADownloadReturnsWhatWasUploaded) {
  std::vector<int64_t> values(1 << 18);  // 2 MiB: more than one message in each direction.
  std::iota(values.begin(), values.end(), -5);
  auto buffer = client_->Upload(values);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ(buffer->dtype(), v1::DTYPE_I64);
  EXPECT_EQ(buffer->size(), values.size());
  auto back = buffer->Download();
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, values);
}

TEST_F(ClientTest, PartsAreWrittenAndReadInPlace) {
  auto buffer = client_->Upload(std::vector<float>{1, 2, 3, 4});
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  ASSERT_TRUE(buffer->Upload(std::vector<float>{20, 30}, /*first=*/1).ok());
  std::vector<float> middle(2);
  ASSERT_TRUE(buffer->Download(std::span<float>(middle), /*first=*/2).ok());
  EXPECT_THAT(middle, ElementsAre(30, 4));
  const absl::Status beyond = buffer->Upload(std::vector<float>{1, 2}, /*first=*/3);
  EXPECT_TRUE(absl::IsOutOfRange(beyond)) << beyond;
}

TEST_F(ClientTest, ABufferIsFreedWithItsVariable) {
  {
    auto one = client_->Allocate<float>({16});
    auto two = client_->Allocate<float>({16});
    ASSERT_TRUE(one.ok() && two.ok());
    EXPECT_EQ(OwnBuffers(*client_), 2u);
    *one = *std::move(two);  // Frees the previous buffer of `one`.
    EXPECT_EQ(OwnBuffers(*client_), 1u);
    ASSERT_TRUE(one->Free().ok());
    EXPECT_EQ(OwnBuffers(*client_), 0u);
    EXPECT_TRUE(one->Free().ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(one->Download().status()));
  }
  EXPECT_EQ(OwnBuffers(*client_), 0u);
}

TEST_F(ClientTest, ABufferKeepsTheSessionOpen) {
  auto buffer = client_->Upload(std::vector<float>{7, 8});
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  client_.reset();
  auto back = buffer->Download();
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_THAT(*back, ElementsAre(7, 8));
}

TEST_F(ClientTest, BuffersOfAnotherSessionAreNotFound) {
  auto buffer = client_->Upload(std::vector<float>{1});
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  auto other = Connect();
  EXPECT_EQ(OwnBuffers(*other), 0u);
  EXPECT_TRUE(absl::IsNotFound(other->Free(buffer->id())));
}

TEST_F(ClientTest, ADurableBufferOutlivesItsSession) {
  uint64_t id = 0;
  {
    auto buffer = client_->Upload(std::vector<float>{1, 2}, {.durable = true, .name = "kept"});
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    id = buffer->id();
    buffer->Release();
  }
  client_ = Connect();
  std::string bytes;
  absl::Status read = client_->DownloadBytes(id, 0, 0, [&](std::string_view piece) {
    bytes.append(piece);
    return true;
  });
  EXPECT_TRUE(read.ok()) << read;
  EXPECT_EQ(bytes.size(), 8u);
  EXPECT_TRUE(client_->Free(id).ok());
}

TEST_F(ClientTest, ATaskTakesBuffersInlineTensorsAndScalars) {
  auto x = client_->Upload(std::vector<float>{1, 2, 3});
  ASSERT_TRUE(x.ok()) << x.status();
  TaskBatch batch("add");
  batch.Use(*x).Input(std::vector<float>{10, 20, 30}).Return<float>({3}).Scalar(2);
  batch.set_id(77);
  for (int times = 0; times < 2; ++times) {  // A batch can be sent again.
    auto result = client_->Run(batch);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->status().ok()) << result->status();
    EXPECT_EQ(result->id(), 77u);
    EXPECT_EQ(result->version(), 1u);
    EXPECT_THAT(result->Output<float>(), ElementsAre(21, 42, 63));
    EXPECT_TRUE(result->Output<float>(1).empty());
  }
}

// Each task adds one to the result of the previous one.
TEST_F(ClientTest, TasksInOrderSeeEarlierResults) {
  constexpr uint32_t kTasks = 500;
  auto sum = client_->Upload(std::vector<float>{0});
  ASSERT_TRUE(sum.ok()) << sum.status();
  TaskBatch batch("add", kTasks);
  batch.Use(*sum).Input(std::vector<float>(kTasks, 1), {1}).Use(*sum).Scalar(1.0);
  batch.set_in_order();
  auto result = client_->Run(batch);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->status().ok()) << result->status();
  auto left = sum->Download();
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_THAT(*left, ElementsAre(kTasks));
}

TEST_F(ClientTest, TasksThatHaveNotStartedByTheTimeoutAreSkipped) {
  ASSERT_TRUE(client_->Park(0).ok());
  TaskBatch batch("add");
  batch.Input(std::vector<float>{1}).Input(std::vector<float>{1}).Return<float>({1}).Scalar(1.0);
  batch.set_timeout(absl::Milliseconds(20));
  auto late = client_->Run(batch);
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_EQ(late->status().code(), absl::StatusCode::kDeadlineExceeded) << late->status();
  ASSERT_TRUE(client_->Resume(0).ok());
  batch.set_timeout(absl::Minutes(1));
  auto served = client_->Run(batch);
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_TRUE(served->status().ok()) << served->status();
}

TEST_F(ClientTest, TypesOfOutputsFollowFromTheInputs) {
  auto column = client_->Upload(std::vector<float>{10, 20});
  ASSERT_TRUE(column.ok()) << column.status();
  TaskBatch add("add");
  add.Input(std::vector<float>{1, 2, 3}).Use(*column, {.shape = {2, 1}}).ReturnInferred();
  auto result = client_->Run(add);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->Output<float>(), ElementsAre(11, 12, 13, 21, 22, 23));
  ASSERT_NE(result->output_type(), nullptr);
  EXPECT_EQ(result->output_type()->dtype(), v1::DTYPE_F32);
  EXPECT_THAT(result->output_type()->shape(), ElementsAre(2, 3));
  EXPECT_EQ(result->output_type(1), nullptr);

  TaskBatch copy("copy", 2);
  copy.Input(std::vector<float>{1, -2}, {1}).ReturnInferred(v1::DTYPE_I64);
  result = client_->Run(copy);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->Output<int64_t>(), ElementsAre(1, -2));
  ASSERT_NE(result->output_type(), nullptr);
  EXPECT_EQ(result->output_type()->dtype(), v1::DTYPE_I64);
  EXPECT_THAT(result->output_type()->shape(), ElementsAre(1));

  TaskBatch given("relu");
  given.Input(std::vector<float>{1}).Return<float>({1});
  result = client_->Run(given);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->output_type(), nullptr);

  TaskBatch sum("sum");  // Its shape depends on a value.
  sum.Input(std::vector<float>{1, 2}).ReturnInferred().Integer(1);
  EXPECT_THAT(ReadMessage(client_->Run(sum).status()), HasSubstr("cannot be inferred"));
}

TEST_F(ClientTest, ViewsAreRowsOfABuffer) {
  auto x = client_->Upload(std::vector<float>{1, 2, 3, 4, 5, 6});
  ASSERT_TRUE(x.ok()) << x.status();
  TaskBatch batch("scale", 3);
  batch.Use(*x, {.shape = {2}, .stride = 2}).Return<float>({2});
  batch.Scalars(std::vector<double>{1, 10, 100});
  auto result = client_->Run(batch);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->Output<float>(), ElementsAre(1, 2, 30, 40, 500, 600));
  EXPECT_EQ(result->device_ns().size(), 3u);

  TaskBatch dense("relu");
  dense.Use(*x, {.shape = {2, 3}, .strides = {3, 1}}).Return<float>({2, 3});
  result = client_->Run(dense);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->Output<float>(), ElementsAre(1, 2, 3, 4, 5, 6));
  TaskBatch transposed("relu");
  transposed.Use(*x, {.shape = {3, 2}, .strides = {1, 3}}).Return<float>({3, 2});
  result = client_->Run(transposed);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->Output<float>(), ElementsAre(1, 4, 2, 5, 3, 6));
  TaskBatch sums("sum_rows");  // Takes only dense tensors.
  sums.Use(*x, {.shape = {3, 2}, .strides = {1, 3}}).Return<float>({3});
  EXPECT_THAT(ReadMessage(client_->Run(sums).status()), HasSubstr("a strided view"));
}

TEST_F(ClientTest, ARefusalHasTheServersMessage) {
  TaskBatch unknown("no_such_operator");
  EXPECT_TRUE(absl::IsNotFound(client_->Run(unknown).status()));
  TaskBatch unequal("add");
  unequal.Input(std::vector<float>{1, 2}).Input(std::vector<float>{1, 2, 3}).Return<float>({2});
  const absl::Status status = client_->Run(unequal).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(ReadMessage(status), HasSubstr("Fix:"));
  EXPECT_FALSE(IsUnreachable(status));
}

TEST_F(ClientTest, ARefusalHasItsReasonForProgramsAlsoInAStream) {
  TaskBatch unequal("add");
  unequal.Input(std::vector<float>{1, 2}).Input(std::vector<float>{1, 2, 3}).Return<float>({2});
  auto stream = client_->OpenStream({});
  ASSERT_TRUE(stream.ok()) << stream.status();
  for (const absl::Status& status :
       {client_->Run(unequal).status(), (*stream)->Send(unequal).get().status()}) {
    const std::optional<ErrorInfo> info = FindErrorInfo(status);
    ASSERT_TRUE(info.has_value()) << status;
    EXPECT_EQ(info->reason, "SHAPE_MISMATCH");
    EXPECT_EQ(info->metadata.at("argument"), "y");
    EXPECT_EQ(info->metadata.at("got"), "[3]");
  }
  EXPECT_FALSE(FindErrorInfo(absl::OkStatus()).has_value());
  EXPECT_FALSE(FindErrorInfo(absl::InvalidArgumentError("without")).has_value());
}

TEST_F(ClientTest, FluxOfOneProgramOverManyInputs) {
  FluxBatch batch;
  batch.Program(kTriangle).Inputs(std::vector<int32_t>{1, 2, 3, 100}, 1).Wanted({0, 1});
  auto result = client_->Run(batch);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->registers(), ElementsAre(1, 1, 3, 3, 6, 6, 5050, 5050));
  EXPECT_THAT(result->cycles(), ElementsAre(4, 6, 8, 202));
}

TEST_F(ClientTest, FluxOfManyProgramsByIndex) {
  FluxBatch batch;
  batch.Program({0x18, 0, 5, 0x00}).Program({0x18, 0, 9, 0x00});
  batch.SelectProgram(std::vector<uint32_t>{1, 0, 1});
  auto result = client_->Run(batch);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->registers(), ElementsAre(9, 5, 9));
  EXPECT_THAT(result->flux_errors(), Each(0));
}

TEST_F(ClientTest, AStreamReturnsTheCallersIdOfEachBatch) {
  auto stream = client_->OpenStream({.max_in_flight = 4});
  ASSERT_TRUE(stream.ok()) << stream.status();
  std::vector<std::future<absl::StatusOr<Result>>> futures;
  for (int i = 0; i < 100; ++i) {
    TaskBatch batch("scale");
    batch.Input(std::vector<float>{static_cast<float>(i)}).Return<float>({1}).Scalar(2);
    batch.set_id(i % 3);  // Ids do not need to be unique.
    futures.push_back((*stream)->Send(batch));
  }
  for (int i = 0; i < 100; ++i) {
    auto result = futures[i].get();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->id(), static_cast<uint64_t>(i % 3));
    EXPECT_THAT(result->Output<float>(), ElementsAre(2.0f * i));
  }
  EXPECT_TRUE((*stream)->Finish().ok());
}

TEST_F(ClientTest, ARefusedBatchDoesNotEndTheStream) {
  auto stream = client_->OpenStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  TaskBatch bad("no_such_operator");
  TaskBatch good("scale");
  good.Input(std::vector<float>{4}).Return<float>({1}).Scalar(0.5);
  auto refused = (*stream)->Send(bad);
  auto answered = (*stream)->Send(good);
  EXPECT_TRUE(absl::IsNotFound(refused.get().status()));
  auto result = answered.get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->Output<float>(), ElementsAre(2));
  EXPECT_TRUE((*stream)->Finish().ok());
}

// The end of a stream then ends its connection and gRPC's threads.
TEST_F(ClientTest, AStreamCanBeTheLastUserOfItsConnection) {
  client_.reset();
  for (int i = 0; i < 100; ++i) {
    auto client = Connect();
    auto stream = client->OpenStream();
    ASSERT_TRUE(stream.ok()) << stream.status();
    client.reset();
    TaskBatch batch("scale");
    batch.Input(std::vector<float>{4}).Return<float>({1}).Scalar(0.5);
    auto result = (*stream)->Send(batch).get();
    ASSERT_TRUE(result.ok()) << result.status();
    if (i % 2 == 0) {
      EXPECT_TRUE((*stream)->Finish().ok());
    }
  }
}

TEST_F(ClientTest, ACallbackCanOwnTheLastReferenceToItsConnection) {
  client_.reset();
  for (int i = 0; i < 20; ++i) {
    auto client = Connect();
    auto buffer = client->Upload(std::vector<float>{1});
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    auto stream = client->OpenStream();
    ASSERT_TRUE(stream.ok()) << stream.status();
    client.reset();
    FluxBatch batch;  // Jumps to itself, so that the stream is cancelled before it is answered.
    batch.Program({0x43, 0, 0, 0}).MaxCycles(20'000'000).Runs(1);
    int calls = 0;
    auto owned = std::make_shared<Buffer<float>>(*std::move(buffer));
    auto done = [&calls, owned = std::move(owned)](const absl::StatusOr<Result>&) { ++calls; };
    ASSERT_TRUE((*stream)->Send(batch, std::move(done)).ok());
    stream->reset();
    EXPECT_EQ(calls, 1);
  }
}

// Answers the first message of each call with bytes that are no message, and keeps the call open.
class UnreadableService final : public grpc::CallbackGenericService {
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    Reactor() { StartRead(&request_); }

   private:
    void OnReadDone(bool ok) override {
      if (ok) StartWrite(&response_);
    }
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }

    grpc::ByteBuffer request_;
    const grpc::Slice bytes_{std::string("\xff\xff\xff\xff")};
    grpc::ByteBuffer response_{&bytes_, 1};
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Reactor;
  }
};

TEST_F(ClientTest, AResponseThatCannotBeParsedEndsTheStream) {
  UnreadableService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  Options options;
  options.session = false;
  auto client = Client::Connect(absl::StrCat("127.0.0.1:", port), options);
  ASSERT_TRUE(client.ok()) << client.status();
  auto stream = (*client)->OpenStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  TaskBatch batch("scale");
  const absl::Status answer = (*stream)->Send(batch).get().status();
  EXPECT_TRUE(absl::IsInternal(answer)) << answer;
  EXPECT_THAT(ReadMessage(answer), HasSubstr("cannot be parsed. Fix: "));
  EXPECT_EQ((*stream)->Finish(), answer);
}

TEST_F(ClientTest, ManyThreadsMaySendOnOneStream) {
  auto stream = client_->OpenStream({.max_in_flight = 8});
  ASSERT_TRUE(stream.ok()) << stream.status();
  std::atomic<int> answered{0};
  std::atomic<int> in_flight{0};
  std::atomic<int> max_in_flight{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        TaskBatch batch("scale");
        batch.Input(std::vector<float>{1}).Return<float>({1}).Scalar(3);
        const absl::Status sent = (*stream)->Send(batch, [&](absl::StatusOr<Result> result) {
          in_flight.fetch_sub(1);
          answered += result.ok() && result->Output<float>()[0] == 3;
        });
        ASSERT_TRUE(sent.ok()) << sent;
        const int now = in_flight.fetch_add(1) + 1;
        int max = max_in_flight;
        while (now > max && !max_in_flight.compare_exchange_weak(max, now)) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE((*stream)->Finish().ok());
  EXPECT_EQ(answered, 200);
  // in_flight is incremented after Send, so each of the four threads may be one ahead.
  EXPECT_LE(max_in_flight, 8 + 4);
}

TEST_F(ClientTest, AnAbandonedStreamAnswersEachBatchOnce) {
  std::atomic<int> sent{0}, answers{0};
  {
    auto stream = client_->OpenStream({.max_in_flight = 64});
    ASSERT_TRUE(stream.ok()) << stream.status();
    FluxBatch slow;  // Jumps to itself until the cycle limit.
    slow.Program({0x43, 0, 0, 0}).MaxCycles(2'000'000).Runs(8);
    for (int i = 0; i < 20; ++i) {
      sent += (*stream)->Send(slow, [&](absl::StatusOr<Result>) { ++answers; }).ok();
    }
  }
  EXPECT_EQ(sent, 20);
  EXPECT_EQ(answers, 20);
  TaskBatch next("scale");
  next.Input(std::vector<float>{1}).Return<float>({1}).Scalar(1);
  auto result = client_->Run(next);
  EXPECT_TRUE(result.ok()) << result.status();
}

TEST_F(ClientTest, SendAfterFinishIsAnError) {
  auto stream = client_->OpenStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_TRUE((*stream)->Finish().ok());
  EXPECT_TRUE((*stream)->Finish().ok());
  TaskBatch batch("scale");
  EXPECT_FALSE((*stream)->Send(batch).get().ok());
}

TEST_F(ClientTest, SharedMemoryIsReadAndWrittenInPlace) {
  const std::string name = absl::StrCat("/residentd-client-test-", getpid());
  const int file = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  ASSERT_GE(file, 0);
  ASSERT_EQ(ftruncate(file, 4096), 0);
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  ASSERT_NE(memory, MAP_FAILED);
  float* values = static_cast<float*>(memory);
  for (int i = 0; i < 1024; ++i) values[i] = static_cast<float>(i);
  auto buffer = client_->ImportShared<float>(name, {1024});
  shm_unlink(name.c_str());
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  TaskBatch batch("scale");
  batch.Use(*buffer, {.shape = {512}});
  // The second half is the output: a view at an offset, through the message.
  v1::BufferColumn& half = *batch.message().mutable_tasks()->add_arguments()->mutable_buffer();
  half.add_buffer_ids(buffer->id());
  half.add_offsets(512 * sizeof(float));
  half.add_shape(512);
  batch.Scalar(2);
  auto result = client_->Run(batch);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->status().ok()) << result->status();
  EXPECT_EQ(values[512 + 100], 200);
  ASSERT_TRUE(buffer->Free().ok());
  munmap(memory, 4096);
}

TEST_F(ClientTest, StatusNamesTheClient) {
  Options options;
  options.client_name = "somebody";
  auto named = Client::Connect(daemon_->address(), options);
  ASSERT_TRUE(named.ok()) << named.status();
  ASSERT_TRUE((*named)->SessionId().ok());
  auto status = client_->Status();
  ASSERT_TRUE(status.ok()) << status.status();
  bool found = false;
  for (const v1::ClientStatus& client : status->clients()) found |= client.name() == "somebody";
  EXPECT_TRUE(found);
}

TEST(ClientWithoutDaemonTest, ALostDaemonIsUnreachableAndNothingHangs) {
  testing::Daemon daemon;
  auto client = Client::Connect(daemon.address());
  ASSERT_TRUE(client.ok()) << client.status();
  auto buffer = (*client)->Upload(std::vector<float>{1});
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  auto stream = (*client)->OpenStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  daemon.Kill(SIGKILL);
  daemon.Wait();
  EXPECT_FALSE((*stream)->Finish().ok());
  const absl::Status status = (*client)->Status().status();
  EXPECT_TRUE(IsUnreachable(status)) << status;
  EXPECT_FALSE(buffer->Download().ok());
}

}  // namespace
}  // namespace resident::client
