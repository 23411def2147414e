// Staging memory, which every batch and transfer in progress uses: how clients share it,
// and who waits for it.
#include <cstdint>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "tests/daemon/messages.h"
#include "tests/daemon/nothing_left.h"

namespace resident::testing {
namespace {

using grpc::StatusCode;

// The value of a series; -1 if it does not exist.
int64_t Gauge(const Daemon& daemon, const std::string& name) {
  const std::string series = "\n" + name + " ";
  const std::string page = daemon.Metrics();
  const size_t at = page.find(series);
  return at == std::string::npos ? -1 : std::stoll(page.substr(at + series.size()));
}

int64_t CountWaiting(const Daemon& daemon) {
  return Gauge(daemon, "resident_staging_waiting{device=\"0\"}");
}
int64_t BytesHeld(const Daemon& daemon) {
  return Gauge(daemon, "resident_staging_used_bytes{device=\"0\"}");
}

// A client's batch that holds staging memory of the first device, while the device is
// parked.
class HeldMemory {
 public:
  HeldMemory(const Daemon& daemon, uint64_t floats) : daemon_(daemon), client_(daemon, "holder") {
    EXPECT_TRUE(Park(daemon).ok());
    outcome_ =
        std::async(std::launch::async, [this, floats] { return client_.Run(Fill(0, floats)); });
    EXPECT_TRUE(Eventually([&] { return daemon.Device().queued_tasks() == 1; }));
  }

  // Resumes the device, so that the batch ends.
  void Release() {
    EXPECT_TRUE(Resume(daemon_).ok());
    EXPECT_TRUE(outcome_.get().all_ok());
  }

 private:
  const Daemon& daemon_;
  const Client client_;
  std::future<RunOutcome> outcome_;
};

TEST(StagingMemoryTest, OneClientCannotUseUpStagingMemory) {
  const Daemon daemon({"--staging_mib=4"});
  const Baseline before(daemon);
  {
    const Client greedy(daemon);
    const Client modest(daemon);
    ASSERT_TRUE(Park(daemon).ok());
    const auto context = greedy.Context();
    const auto stream = greedy.executor().Submit(context.get());
    constexpr int kBatches = 32;  // 1 MiB each; eight times the total.
    std::thread writer([&] {
      for (int i = 0; i < kBatches; ++i) {
        v1::SubmitRequest request;
        *request.mutable_batch() = Fill(i, 1 << 18);
        ASSERT_TRUE(stream->Write(request));
      }
      stream->WritesDone();
    });
    // The client holds its maximum, and waits for more.
    ASSERT_TRUE(Eventually([&] { return CountWaiting(daemon) == 1; }));
    EXPECT_GE(daemon.Device().queued_tasks(), 1u);
    v1::Batch small = SmallAdd();
    small.mutable_options()->set_device(0);  // Other devices are not parked.
    auto lone = std::async(std::launch::async, [&] { return modest.Run(small); });
    ASSERT_TRUE(Eventually([&] {
      const v1::StatusResponse status = daemon.Status();
      for (const auto& client : status.clients()) {
        // Status shows the first characters of the session's id.
        if (client.queued_tasks() == 1 && modest.session().rfind(client.id(), 0) == 0) return true;
      }
      return false;
    }));
    ASSERT_TRUE(Resume(daemon).ok());
    EXPECT_TRUE(lone.get().all_ok());
    int answered = 0;
    v1::SubmitResponse response;
    while (stream->Read(&response)) {
      EXPECT_FALSE(response.result().has_refused()) << response.result().refused().message();
      ++answered;
    }
    writer.join();
    EXPECT_EQ(answered, kBatches);
    EXPECT_TRUE(stream->Finish().ok());
  }
  ExpectNothingLeft(daemon, before);
}

TEST(StagingMemoryTest, BatchWaitsForStagingMemoryThatAnotherClientHolds) {
  const Daemon daemon({"--staging_mib=4"});
  HeldMemory held(daemon, 3 << 18);  // Three of four MiB.
  const Client waiting(daemon);
  const auto context = waiting.Context();
  const auto stream = waiting.executor().Submit(context.get());
  v1::SubmitRequest request;
  *request.mutable_batch() = Fill(1, 1 << 19);
  ASSERT_TRUE(stream->Write(request));
  stream->WritesDone();
  ASSERT_TRUE(Eventually([&] { return CountWaiting(daemon) == 1; }));
  // A waiting batch that is cancelled does not block others, and one that can never fit is
  // refused.
  const auto cancelled = waiting.Context();
  const auto another = waiting.executor().Submit(cancelled.get());
  ASSERT_TRUE(another->Write(request));
  ASSERT_TRUE(Eventually([&] { return CountWaiting(daemon) == 2; }));
  const auto too_large_context = waiting.Context();
  const auto too_large = waiting.executor().Submit(too_large_context.get());
  *request.mutable_batch() = Fill(2, 5 << 18);
  ASSERT_TRUE(too_large->Write(request));
  v1::SubmitResponse response;
  ASSERT_TRUE(too_large->Read(&response));
  EXPECT_EQ(response.result().refused().code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(response.result().refused().message().find("Fix: "), std::string::npos);
  too_large->WritesDone();
  EXPECT_TRUE(too_large->Finish().ok());
  cancelled->TryCancel();
  EXPECT_EQ(another->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return CountWaiting(daemon) == 1; }));

  held.Release();
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_FALSE(response.result().has_refused()) << response.result().refused().message();
  EXPECT_EQ(Floats(response.result()).size(), size_t{1} << 19);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(CountWaiting(daemon), 0);
}

TEST(StagingMemoryTest, DrainRefusesBatchesThatWaitForStagingMemory) {
  const Daemon daemon({"--staging_mib=4"});
  HeldMemory held(daemon, 3 << 18);
  const Client waiting(daemon);
  const auto context = waiting.Context();
  const auto stream = waiting.executor().Submit(context.get());
  v1::SubmitRequest request;
  *request.mutable_batch() = Fill(1, 1 << 19);
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(Eventually([&] { return CountWaiting(daemon) == 1; }));
  // The device is parked and the memory is not released, so that only the drain can end the
  // wait.
  v1::DrainResponse drained;
  grpc::ClientContext drain_context;
  v1::DrainRequest drain;
  drain.set_timeout_ms(1);
  ExpectRefused(v1::Admin::NewStub(daemon.Connect())->Drain(&drain_context, drain, &drained),
                StatusCode::DEADLINE_EXCEEDED, {"1 tasks have not finished"});
  v1::SubmitResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.result().refused().code(), StatusCode::UNAVAILABLE);
  held.Release();
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

// By default, gRPC buffers 16 MiB of the daemon's data for a client that does not read.
std::shared_ptr<grpc::Channel> ChannelWithLittleBuffer(const Daemon& daemon) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1 << 16);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(daemon.address(), grpc::InsecureChannelCredentials(), arguments);
}
std::unique_ptr<v1::Executor::Stub> ExecutorWithLittleBuffer(const Daemon& daemon) {
  return v1::Executor::NewStub(ChannelWithLittleBuffer(daemon));
}

// A buffer of `floats` floats, and a download of it that is not read.
struct UnreadDownload {
  UnreadDownload(const Client& client, uint64_t floats)
      : UnreadDownload(client, floats, client.buffers()) {}
  template <typename Stub>
  UnreadDownload(const Client& client, uint64_t floats, Stub& buffers) : context(client.Context()) {
    uint64_t id = 0;
    EXPECT_TRUE(client.Allocate(floats, &id).ok());
    v1::DownloadRequest request;
    request.set_buffer_id(id);
    stream = buffers.Download(context.get(), request);
  }
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientReader<v1::DownloadResponse>> stream;
};

TEST(StagingMemoryTest, UnreadDownloadsDoNotUseUpStagingMemory) {
  const Daemon daemon({"--staging_mib=4"});
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<UnreadDownload> downloads;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<Client>(daemon));
    downloads.emplace_back(*clients.back(), 2 << 20);  // 8 MiB.
  }
  for (auto& download : downloads) download.stream->WaitForInitialMetadata();
  // Each download sends as much as it can, and then holds no staging memory.
  EXPECT_TRUE(Eventually([&] { return BytesHeld(daemon) == 0; }));
  const Client other(daemon);
  const std::vector<v1::Batch> batches(200, Fill(0, 1 << 18));
  for (const v1::BatchResult& result : SubmitSequentially(other, batches)) {
    EXPECT_FALSE(result.has_refused()) << result.refused().message();
    EXPECT_EQ(Floats(result).size(), size_t{1} << 18);
  }
  for (auto& download : downloads) {
    v1::DownloadResponse piece;
    size_t bytes = 0;
    while (download.stream->Read(&piece)) bytes += piece.data().size();
    EXPECT_EQ(bytes, size_t{8} << 20);
    EXPECT_TRUE(download.stream->Finish().ok());
  }
}

TEST(StagingMemoryTest, UnreadDownloadsAreChargedForTheirMemory) {
  constexpr int64_t kLimit = 16 << 20;
  const Daemon daemon({"--max_host_mib=16"});
  const auto charged = [&] {
    return Gauge(daemon, "resident_host_memory_used_bytes{purpose=\"downloads\"}");
  };
  const auto buffers = v1::Buffers::NewStub(ChannelWithLittleBuffer(daemon));
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<UnreadDownload> downloads;
  for (int i = 0; i < 40; ++i) {
    clients.push_back(std::make_unique<Client>(daemon));
    downloads.emplace_back(*clients.back(), 1 << 18, *buffers);  // 1 MiB.
  }
  // So much memory is charged that another piece does not fit.
  ASSERT_TRUE(Eventually([&] { return charged() > kLimit / 2; }));
  EXPECT_LE(charged(), kLimit);
  // There is still room for small batches.
  const Client other(daemon);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(other.Run(SmallAdd()).all_ok());
  EXPECT_LE(charged(), kLimit);
  // Once they are read, all downloads continue.
  std::vector<std::future<size_t>> reads;
  for (auto& download : downloads) {
    reads.push_back(std::async(std::launch::async, [&download] {
      v1::DownloadResponse piece;
      size_t bytes = 0;
      while (download.stream->Read(&piece)) bytes += piece.data().size();
      EXPECT_TRUE(download.stream->Finish().ok());
      return bytes;
    }));
  }
  for (auto& read : reads) EXPECT_EQ(read.get(), size_t{1} << 20);
  EXPECT_TRUE(Eventually([&] { return charged() == 0; }));
}

TEST(StagingMemoryTest, ManyTransfersShareSmallStagingMemory) {
  const Daemon daemon({"--staging_mib=1"});
  constexpr int kClients = 24;
  constexpr uint64_t kFloats = 1 << 19;  // 2 MiB.
  std::vector<std::future<std::string>> transfers;
  for (int i = 0; i < kClients; ++i) {
    transfers.push_back(std::async(std::launch::async, [&daemon, i]() -> std::string {
      const Client client(daemon);
      uint64_t id = 0;
      grpc::Status status = client.Allocate(kFloats, &id);
      const std::string bytes(kFloats * sizeof(float), static_cast<char>(i + 1));
      if (status.ok()) status = Upload(client, id, bytes);
      std::string got;
      if (status.ok()) status = Download(client, id, &got);
      if (!status.ok()) return status.error_message();
      return got == bytes ? "" : "other bytes";
    }));
  }
  for (auto& transfer : transfers) EXPECT_EQ(transfer.get(), "");
}

TEST(StagingMemoryTest, CancelledUploadStopsWaitingForStagingMemory) {
  const Daemon daemon({"--staging_mib=1"});
  const Client client(daemon);
  uint64_t id = 0;
  ASSERT_TRUE(client.Allocate(1 << 18, &id).ok());
  HeldMemory held(daemon, 1 << 18);  // All of the memory.
  {
    const auto context = client.Context();
    v1::UploadResponse response;
    const auto writer = client.buffers().Upload(context.get(), &response);
    v1::UploadRequest request;
    request.set_buffer_id(id);
    request.set_data(std::string(1 << 20, 'a'));
    ASSERT_TRUE(writer->Write(request));
    ASSERT_TRUE(Eventually([&] { return CountWaiting(daemon) == 1; }));
    context->TryCancel();
    EXPECT_EQ(writer->Finish().error_code(), StatusCode::CANCELLED);
  }
  EXPECT_TRUE(Eventually([&] { return CountWaiting(daemon) == 0; }));
  held.Release();
  EXPECT_TRUE(Upload(client, id, std::string(1 << 20, 'b')).ok());
}

TEST(StagingMemoryTest, CancelledDownloadStopsWaitingForStagingMemory) {
  const Daemon daemon({"--staging_mib=1"});
  const Client client(daemon);
  uint64_t id = 0;
  ASSERT_TRUE(client.Allocate(1 << 18, &id).ok());
  HeldMemory held(daemon, 1 << 18);  // All of the memory.
  {
    const auto context = client.Context();
    v1::DownloadRequest request;
    request.set_buffer_id(id);
    const auto reader = client.buffers().Download(context.get(), request);
    ASSERT_TRUE(Eventually([&] { return CountWaiting(daemon) == 1; }));
    context->TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  }
  EXPECT_TRUE(Eventually([&] { return CountWaiting(daemon) == 0; }));
  held.Release();
  std::string got;
  EXPECT_TRUE(Download(client, id, &got).ok());
}

TEST(StagingMemoryTest, CancelledLoadStopsWaitingForStagingMemory) {
  const TempFolder folder("load");
  constexpr uint64_t kTensorBytes = 1 << 20;
  const std::string header = absl::StrCat(R"({"a":{"dtype":"U8","shape":[)", kTensorBytes,
                                          R"(],"data_offsets":[0,)", kTensorBytes, "]}}");
  const uint64_t length = header.size();
  std::ofstream file(folder.path() + "/model");
  file.write(reinterpret_cast<const char*>(&length), sizeof(length)) << header;
  file << std::string(kTensorBytes, 'a');
  file.close();
  const Daemon daemon({"--staging_mib=1", "--load_dir=" + folder.path()});
  const Client client(daemon);
  HeldMemory held(daemon, 1 << 18);  // All of the memory.
  v1::LoadFileRequest request;
  request.set_path("model");
  {
    const auto context = client.Context();
    const auto stream = client.buffers().LoadFile(context.get(), request);
    ASSERT_TRUE(Eventually([&] { return CountWaiting(daemon) == 1; }));
    context->TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), StatusCode::CANCELLED);
  }
  EXPECT_TRUE(Eventually([&] { return CountWaiting(daemon) == 0; }));
  EXPECT_TRUE(Eventually([&] { return daemon.Device().buffers() == 0; }));
  held.Release();
  const auto context = client.Context();
  const auto stream = client.buffers().LoadFile(context.get(), request);
  v1::LoadFileResponse response;
  while (stream->Read(&response)) {
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(response.loaded_bytes(), kTensorBytes);
}

// If memory becomes free while the first waiting client does not read its answers, the next
// one gets the memory.
TEST(StagingMemoryTest, ClientThatDoesNotReadDoesNotBlockOthers) {
  const Daemon daemon({"--staging_mib=4", "--max_client_host_mib=2"});
  const Client silent(daemon), other(daemon);
  ASSERT_TRUE(Park(daemon).ok());
  v1::SubmitRequest request;
  const auto executor = ExecutorWithLittleBuffer(daemon);
  const auto context = silent.Context();
  const auto unread = executor->Submit(context.get());
  for (int i = 0; i < 2; ++i) {
    *request.mutable_batch() =
        Fill(i, 3 << 18);  // One holds three of four MiB, the other one waits.
    ASSERT_TRUE(unread->Write(request));
  }
  ASSERT_TRUE(Eventually([&] { return CountWaiting(daemon) == 1; }));
  const auto other_context = other.Context();
  const auto stream = other.executor().Submit(other_context.get());
  *request.mutable_batch() = Fill(2, 3 << 18);
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(Eventually([&] { return CountWaiting(daemon) == 2; }));

  ASSERT_TRUE(Resume(daemon).ok());
  v1::SubmitResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_FALSE(response.result().has_refused()) << response.result().refused().message();
  // No batch of the silent client is lost.
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(unread->Read(&response));
    EXPECT_FALSE(response.result().has_refused()) << response.result().refused().message();
  }
}

TEST(StagingMemoryTest, BatchWhoseDeadlinePassesWhileItWaitsIsRefused) {
  const Daemon daemon({"--staging_mib=4"});
  HeldMemory held(daemon, 3 << 18);
  const Client waiting(daemon);
  const auto context = waiting.Context();
  const auto stream = waiting.executor().Submit(context.get());
  v1::SubmitRequest request;
  *request.mutable_batch() = Fill(1, 1 << 19);
  request.mutable_batch()->mutable_options()->set_timeout_us(100'000);
  ASSERT_TRUE(stream->Write(request));
  v1::SubmitResponse response;
  ASSERT_TRUE(stream->Read(&response));  // The device is still parked.
  EXPECT_EQ(response.result().refused().code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_NE(response.result().refused().message().find("Fix: "), std::string::npos);
  EXPECT_EQ(CountWaiting(daemon), 0);
  held.Release();
  // The stream continues.
  request.mutable_batch()->mutable_options()->set_timeout_us(60'000'000);
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_FALSE(response.result().has_refused()) << response.result().refused().message();
}

TEST(StagingMemoryTest, BatchWhoseDeadlinePassesBehindUnreadAnswersIsRefused) {
  const Daemon daemon({"--staging_mib=4", "--max_client_host_mib=2"});
  const Client silent(daemon);
  const auto executor = ExecutorWithLittleBuffer(daemon);
  v1::SubmitRequest request;
  // The second batch is sent while an answer of 3 MiB is unread. Two streams are used,
  // since the daemon does not read from a stream with an unread answer.
  const auto context = silent.Context(), second_context = silent.Context();
  const auto unread = executor->Submit(context.get());
  const auto second = executor->Submit(second_context.get());
  *request.mutable_batch() = SmallAdd(0);
  ASSERT_TRUE(second->Write(request));
  v1::SubmitResponse response;
  ASSERT_TRUE(second->Read(&response));  // The daemon reads from this stream.
  *request.mutable_batch() = Fill(1, 3 << 18);
  ASSERT_TRUE(unread->Write(request));
  ASSERT_TRUE(Eventually([&] {
    return Gauge(daemon, "resident_host_memory_used_bytes{purpose=\"answers\"}") > 2 << 20;
  }));
  *request.mutable_batch() = SmallAdd(2);
  request.mutable_batch()->mutable_options()->set_timeout_us(100'000);
  ASSERT_TRUE(second->Write(request));
  ASSERT_TRUE(second->Read(&response));  // Nothing of the first answer was read meanwhile.
  EXPECT_EQ(response.result().refused().code(), StatusCode::DEADLINE_EXCEEDED);
  ASSERT_TRUE(unread->Read(&response));
  EXPECT_FALSE(response.result().has_refused()) << response.result().refused().message();
}

// Small integers use one byte on the wire and eight in memory.
TEST(StagingMemoryTest, WaitingMessageIsChargedForItsMemory) {
  constexpr uint32_t kTasks = 200'000;
  const Daemon daemon({"--staging_mib=4"});
  HeldMemory held(daemon, 3 << 18);
  const Client waiting(daemon);
  uint64_t id = 0;
  ASSERT_TRUE(waiting.Allocate(1, &id).ok());
  v1::SubmitRequest request;
  v1::Batch& batch = *request.mutable_batch();
  batch = Tasks("add", kTasks);
  for (int input = 0; input < 2; ++input) {
    v1::BufferColumn* const column = Buffers(batch, {id});
    for (uint32_t i = 0; i < kTasks; ++i) column->add_offsets(0);
    column->set_dtype(v1::DTYPE_F32);
    column->add_shape(1);
  }
  Returned(batch, {1});
  Scalar(batch, {1});
  const auto context = waiting.Context();
  const auto stream = waiting.executor().Submit(context.get());
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(Eventually([&] { return CountWaiting(daemon) == 1; }));
  EXPECT_LT(request.ByteSizeLong(), 3 * kTasks);
  EXPECT_GE(Gauge(daemon, "resident_host_memory_used_bytes{purpose=\"requests\"}"),
            2 * 8 * int64_t{kTasks});
  held.Release();
  v1::SubmitResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_FALSE(response.result().has_refused()) << response.result().refused().message();
}

}  // namespace
}  // namespace resident::testing
