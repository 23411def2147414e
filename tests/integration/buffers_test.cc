// Buffers and sessions: ownership, lifetime and contents of buffers.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "tests/daemon/messages.h"

namespace resident::testing {
namespace {

using grpc::StatusCode;

std::string RandomBytes(size_t size) {
  std::mt19937 random(static_cast<unsigned>(size));
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

class BuffersTest : public DaemonTest {
 protected:
  v1::BufferInfo MustAllocate(const v1::AllocateRequest& request) {
    const auto context = client_.Context();
    v1::AllocateResponse response;
    const grpc::Status status = client_.buffers().Allocate(context.get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.buffer();
  }
  grpc::Status Allocate(const v1::AllocateRequest& request) {
    const auto context = client_.Context();
    v1::AllocateResponse response;
    return client_.buffers().Allocate(context.get(), request, &response);
  }
  static grpc::Status Free(const Client& client, uint64_t id) {
    const auto context = client.Context();
    v1::FreeRequest request;
    request.set_buffer_id(id);
    v1::FreeResponse response;
    return client.buffers().Free(context.get(), request, &response);
  }
  static v1::AllocateRequest Bytes(uint64_t size) {
    v1::AllocateRequest request;
    request.set_dtype(v1::DTYPE_U8);
    request.add_shape(size);
    return request;
  }
};

TEST_F(BuffersTest, UploadAndDownloadRoundTripAtEverySizeAndOffset) {
  for (const uint64_t size :
       {uint64_t{1}, uint64_t{1000}, (uint64_t{1} << 20) + 1, (uint64_t{9} << 20) + 12345}) {
    const uint64_t id = MustAllocate(Bytes(size)).id();
    std::string expected = RandomBytes(size);
    ASSERT_TRUE(Upload(client_, id, expected).ok());
    std::string got;
    ASSERT_TRUE(Download(client_, id, &got).ok());
    EXPECT_TRUE(got == expected) << size;
    if (size > 600) {
      ASSERT_TRUE(Upload(client_, id, "hello", 555).ok());
      expected.replace(555, 5, "hello");
      ASSERT_TRUE(Download(client_, id, &got, 550, 20).ok());
      EXPECT_EQ(got, expected.substr(550, 20));
    }
    EXPECT_TRUE(Free(client_, id).ok());
  }
}

TEST_F(BuffersTest, UploadBeyondTheEndIsOutOfRange) {
  const uint64_t id = MustAllocate(Bytes(10)).id();
  ExpectRefused(Upload(client_, id, "12345678901"), StatusCode::OUT_OF_RANGE,
                {"11 bytes at offset 0", "of 10 bytes"});
  ExpectRefused(Upload(client_, id, "1", 10), StatusCode::OUT_OF_RANGE, {"offset 10"});
  ExpectRefused(Upload(client_, id, "1", ~uint64_t{0}), StatusCode::OUT_OF_RANGE, {"offset"});
  std::string got;
  ExpectRefused(Download(client_, id, &got, 4, 7), StatusCode::OUT_OF_RANGE, {"7 bytes"});
  ExpectRefused(Download(client_, id, &got, 4, ~uint64_t{0}), StatusCode::OUT_OF_RANGE, {"bytes"});
}

TEST_F(BuffersTest, UploadStreamWithoutAMessageIsRefused) {
  const auto context = client_.Context();
  v1::UploadResponse response;
  const auto writer = client_.buffers().Upload(context.get(), &response);
  writer->WritesDone();
  ExpectRefused(writer->Finish(), StatusCode::INVALID_ARGUMENT, {"no message"});
}

TEST_F(BuffersTest, TruncatedUploadKeepsWhatItHasWritten) {
  const uint64_t id = MustAllocate(Bytes(100)).id();
  ASSERT_TRUE(Upload(client_, id, std::string(100, 'a')).ok());
  {
    const auto context = client_.Context();
    v1::UploadResponse response;
    const auto writer = client_.buffers().Upload(context.get(), &response);
    v1::UploadRequest request;
    request.set_buffer_id(id);
    request.set_data("bbbbb");
    ASSERT_TRUE(writer->Write(request));
    EXPECT_TRUE(Eventually([&] {
      std::string now;
      return Download(client_, id, &now).ok() && now.substr(0, 5) == "bbbbb";
    }));
    context->TryCancel();
    EXPECT_EQ(writer->Finish().error_code(), StatusCode::CANCELLED);
  }
  std::string got;
  ASSERT_TRUE(Download(client_, id, &got).ok());
  EXPECT_EQ(got, "bbbbb" + std::string(95, 'a'));
}

TEST_F(BuffersTest, BadAllocationsAreRefused) {
  v1::AllocateRequest request;
  request.add_shape(1);
  ExpectRefused(Allocate(request), StatusCode::INVALID_ARGUMENT, {"dtype"});
  request.set_dtype(static_cast<v1::DType>(77));
  ExpectRefused(Allocate(request), StatusCode::INVALID_ARGUMENT, {"77"});
  ExpectRefused(Allocate(Bytes(0)), StatusCode::INVALID_ARGUMENT, {"size 0"});
  ExpectRefused(Allocate(Bytes(~uint64_t{0})), StatusCode::INVALID_ARGUMENT, {"too large"});
  ExpectRefused(Allocate(Bytes(uint64_t{1} << 50)), StatusCode::RESOURCE_EXHAUSTED, {});
  request = Bytes(1);
  request.set_device(5);
  ExpectRefused(Allocate(request), StatusCode::NOT_FOUND, {"no device 5"});
  request = Bytes(1);
  request.set_name(std::string(129, 'n'));
  ExpectRefused(Allocate(request), StatusCode::INVALID_ARGUMENT, {"129", "128"});
}

TEST_F(BuffersTest, CallsWithoutASessionOwnNoBuffers) {
  const auto stub = v1::Buffers::NewStub(daemon_->Connect());
  grpc::ClientContext context;
  v1::AllocateResponse response;
  ExpectRefused(stub->Allocate(&context, Bytes(1), &response), StatusCode::UNAUTHENTICATED,
                {"resident-session"});
}

TEST_F(BuffersTest, BuffersAreFreedWithTheirSessionUnlessDurable) {
  uint64_t durable = 0;
  const auto used = [&] { return daemon_->Device().memory_used_bytes(); };
  // Clients of tests before this one have ended.
  ASSERT_TRUE(Eventually([&] { return used() == 0; }));
  {
    Client other(*daemon_);
    const auto context = other.Context();
    v1::AllocateRequest request = Bytes(4096);
    request.set_durable(true);
    request.set_name("weights");
    v1::AllocateResponse response;
    ASSERT_TRUE(other.buffers().Allocate(context.get(), request, &response).ok());
    durable = response.buffer().id();
    ASSERT_TRUE(Upload(other, durable, std::string(4096, 'w')).ok());
    uint64_t plain = 0;
    ASSERT_TRUE(other.Allocate(1 << 20, &plain).ok());
    EXPECT_GE(used(), 4u << 20);
  }
  EXPECT_TRUE(Eventually([&] { return used() < 1u << 20; }));
  std::string got;
  ASSERT_TRUE(Download(client_, durable, &got).ok());
  EXPECT_EQ(got, std::string(4096, 'w'));

  const auto context = client_.Context();
  v1::ListBuffersResponse list;
  ASSERT_TRUE(client_.buffers().List(context.get(), v1::ListBuffersRequest(), &list).ok());
  ASSERT_EQ(list.buffers_size(), 1);
  EXPECT_EQ(list.buffers(0).name(), "weights");
  EXPECT_TRUE(list.buffers(0).durable());
  EXPECT_TRUE(Free(client_, durable).ok());
}

TEST_F(BuffersTest, PersistIsForDurableBuffers) {
  const uint64_t plain = MustAllocate(Bytes(16)).id();
  v1::AllocateRequest request = Bytes((5 << 20) + 3);
  request.set_durable(true);
  const uint64_t durable = MustAllocate(request).id();
  v1::PersistRequest persist;
  v1::PersistResponse response;
  persist.set_buffer_id(plain);
  {
    const auto context = client_.Context();
    ExpectRefused(client_.buffers().Persist(context.get(), persist, &response),
                  StatusCode::FAILED_PRECONDITION, {"not durable"});
  }
  persist.set_buffer_id(durable);
  const auto context = client_.Context();
  EXPECT_TRUE(client_.buffers().Persist(context.get(), persist, &response).ok());
  EXPECT_TRUE(Free(client_, durable).ok());
}

TEST_F(BuffersTest, SharedMemoryIsReadAndWrittenInPlace) {
  const std::string name = "/resident-test-" + std::to_string(getpid());
  const int fd = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(ftruncate(fd, 4096), 0);
  auto* const floats =
      static_cast<float*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  close(fd);
  floats[0] = 20;
  floats[1] = 22;

  v1::ImportSharedRequest request;
  request.set_name(name);
  request.set_size_bytes(4096);
  request.set_dtype(v1::DTYPE_F32);
  request.add_shape(1024);
  v1::ImportSharedResponse response;
  const auto import = [&] {
    const auto context = client_.Context();
    return client_.buffers().ImportShared(context.get(), request, &response);
  };
  ASSERT_TRUE(import().ok());
  const uint64_t id = response.buffer().id();
  EXPECT_TRUE(response.buffer().shared());
  v1::Batch batch = Tasks("add", 1);
  v1::BufferColumn* x = Buffers(batch, {id});
  x->add_shape(1);
  v1::BufferColumn* y = Buffers(batch, {id});
  y->add_shape(1);
  y->add_offsets(4);
  v1::BufferColumn* out = Buffers(batch, {id});
  out->add_shape(1);
  out->add_offsets(8);
  EXPECT_TRUE(client_.Run(batch).all_ok());
  EXPECT_EQ(floats[2], 42);
  EXPECT_TRUE(Free(client_, id).ok());

  request.set_size_bytes(4097);
  ExpectRefused(import(), StatusCode::INVALID_ARGUMENT, {"4097", "4096"});
  request.set_size_bytes(4092);
  ExpectRefused(import(), StatusCode::INVALID_ARGUMENT, {"[1024]", "4092"});
  request.set_size_bytes(4096);
  for (const char* bad : {"", "/", "x", "/a/b", "/.."}) {
    request.set_name(bad);
    ExpectRefused(import(), StatusCode::INVALID_ARGUMENT, {"shm_open"});
  }
  request.set_name("/resident-test-nothing");
  ExpectRefused(import(), StatusCode::NOT_FOUND, {"no shared-memory object"});
  munmap(floats, 4096);
  shm_unlink(name.c_str());
}

TEST_F(BuffersTest, OnlyTheMappedPartOfSharedMemoryCounts) {
  const Daemon daemon({"--max_client_memory_mib=1"});
  const Client client(daemon);
  const std::string name = "/resident-test-limit-" + std::to_string(getpid());
  const int fd = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(ftruncate(fd, 64 << 20), 0);
  close(fd);
  const auto import = [&](uint64_t floats, v1::ImportSharedResponse* response) {
    v1::ImportSharedRequest request;
    request.set_name(name);
    request.set_size_bytes(64 << 20);
    request.set_dtype(v1::DTYPE_F32);
    request.add_shape(floats);
    const auto context = client.Context();
    return client.buffers().ImportShared(context.get(), request, response);
  };
  // Bytes of the object that the engine has mapped.
  const auto mapped_bytes = [&] {
    std::ifstream maps("/proc/" + std::to_string(daemon.engine_pid()) + "/maps");
    uint64_t bytes = 0;
    for (std::string line; std::getline(maps, line);) {
      if (line.find(name) == std::string::npos) continue;
      const size_t dash = line.find('-');
      bytes += std::stoull(line.substr(dash + 1), nullptr, 16) - std::stoull(line, nullptr, 16);
    }
    return bytes;
  };
  v1::ImportSharedResponse response;
  ExpectRefused(import(1 << 20, &response), StatusCode::RESOURCE_EXHAUSTED,
                {"--max_client_memory_mib"});
  EXPECT_EQ(mapped_bytes(), 0u);
  const grpc::Status taken = import(1 << 10, &response);
  ASSERT_TRUE(taken.ok()) << taken.error_message();
  EXPECT_EQ(response.buffer().size_bytes(), 4096u);
  EXPECT_EQ(mapped_bytes(), 4096u);
  shm_unlink(name.c_str());
}

TEST_F(BuffersTest, CopiesOfDurableBuffersAreLimited) {
  const Daemon daemon({"--max_client_host_mib=1"});
  const Client client(daemon);
  const auto allocate = [&](v1::AllocateResponse* response) {
    v1::AllocateRequest request = Bytes(600 << 10);
    request.set_durable(true);
    const auto context = client.Context();
    return client.buffers().Allocate(context.get(), request, response);
  };
  v1::AllocateResponse first, second;
  ASSERT_TRUE(allocate(&first).ok());
  ExpectRefused(allocate(&second), StatusCode::RESOURCE_EXHAUSTED, {"--max_client_host_mib"});
  EXPECT_TRUE(Free(client, first.buffer().id()).ok());
  EXPECT_TRUE(allocate(&second).ok());
}

TEST_F(BuffersTest, SharedMemoryCanBeSwitchedOff) {
  const Daemon daemon({"--allow_shared_memory=false"});
  const Client client(daemon);
  const auto context = client.Context();
  v1::ImportSharedRequest request;
  request.set_name("/x");
  v1::ImportSharedResponse response;
  ExpectRefused(client.buffers().ImportShared(context.get(), request, &response),
                StatusCode::FAILED_PRECONDITION, {"--allow_shared_memory"});
}

TEST_F(BuffersTest, LimitsOfASessionNameTheirFlag) {
  const Daemon daemon({"--max_buffers=2", "--max_client_memory_mib=1", "--max_sessions=2"});
  const Client client(daemon);
  uint64_t id = 0;
  ExpectRefused(client.Allocate(1 << 20, &id), StatusCode::RESOURCE_EXHAUSTED,
                {"--max_client_memory_mib"});
  EXPECT_TRUE(client.Allocate(1, &id).ok());
  EXPECT_TRUE(client.Allocate(1, &id).ok());
  ExpectRefused(client.Allocate(1, &id), StatusCode::RESOURCE_EXHAUSTED, {"--max_buffers"});

  const Client second(daemon);
  const auto stub = v1::Sessions::NewStub(daemon.Connect());
  const auto open = [&](const std::string& name) {
    grpc::ClientContext context;
    v1::OpenSessionRequest request;
    request.set_client_name(name);
    const auto stream = stub->Open(&context, request);
    v1::OpenSessionResponse response;
    EXPECT_FALSE(stream->Read(&response));
    return stream->Finish();
  };
  ExpectRefused(open("third"), StatusCode::RESOURCE_EXHAUSTED, {"--max_sessions"});
  ExpectRefused(open(std::string(65, 'n')), StatusCode::INVALID_ARGUMENT, {"65", "64"});
}

TEST_F(BuffersTest, ABufferOfAnotherDeviceIsRefused) {
  const Daemon daemon({OnGpu() ? "--devices=0,cpu" : "--devices=cpu,cpu"});
  const Client client(daemon);
  std::vector<uint64_t> ids;
  for (const uint32_t device : {0u, 1u}) {
    v1::AllocateRequest request;
    request.set_dtype(v1::DTYPE_F32);
    request.add_shape(4);
    request.set_device(device);
    v1::AllocateResponse response;
    const auto context = client.Context();
    ASSERT_TRUE(client.buffers().Allocate(context.get(), request, &response).ok());
    EXPECT_EQ(response.buffer().device(), device);
    ids.push_back(response.buffer().id());
  }
  v1::Batch mixed = Tasks("copy", 1);
  Buffers(mixed, {ids[0]});
  Buffers(mixed, {ids[1]});
  ExpectRefused(client.Run(mixed).call, StatusCode::FAILED_PRECONDITION,
                {"is on device 1", "runs on device 0"});
  v1::Batch elsewhere = Tasks("copy", 1);
  Buffers(elsewhere, {ids[0]});
  Returned(elsewhere, {4});
  elsewhere.mutable_options()->set_device(1);
  ExpectRefused(client.Run(elsewhere).call, StatusCode::FAILED_PRECONDITION, {"device 0"});
  elsewhere.mutable_options()->set_device(0);
  const RunOutcome outcome = client.Run(elsewhere);
  EXPECT_TRUE(outcome.all_ok()) << outcome.message();
  v1::Batch second = Tasks("copy", 1);
  Buffers(second, {ids[1]});
  Returned(second, {4});
  EXPECT_EQ(client.Run(second).result.device(), 1u);
}

// The device is parked, so that the load waits for its first copy when it is cancelled.
TEST(LoadFileTest, ACancelledLoadLeavesNoBuffer) {
  const TempFolder folder("load");
  const std::string header = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  const uint64_t length = header.size();
  std::ofstream file(folder.path() + "/model");
  file.write(reinterpret_cast<const char*>(&length), sizeof(length)) << header << "abcd";
  file.close();
  const Daemon daemon({"--load_dir=" + folder.path()});
  const Client client(daemon);
  v1::LoadFileRequest request;
  request.set_path("model");
  v1::LoadFileResponse response;
  ASSERT_TRUE(Park(daemon).ok());
  {
    const auto context = client.Context();
    const auto stream = client.buffers().LoadFile(context.get(), request);
    ASSERT_TRUE(Eventually([&] { return daemon.Device().buffers() == 1; }));
    context->TryCancel();
    EXPECT_FALSE(stream->Read(&response));
    EXPECT_EQ(stream->Finish().error_code(), StatusCode::CANCELLED);
  }
  EXPECT_TRUE(Eventually([&] { return daemon.Device().buffers() == 0; }));
  ASSERT_TRUE(Resume(daemon).ok());

  const auto context = client.Context();
  const auto stream = client.buffers().LoadFile(context.get(), request);
  uint64_t id = 0;
  while (stream->Read(&response)) {
    if (response.buffers_size() > 0) id = response.buffers(0).id();
  }
  ASSERT_TRUE(stream->Finish().ok());
  EXPECT_EQ(response.loaded_bytes(), response.total_bytes());
  std::string got;
  ASSERT_TRUE(Download(client, id, &got).ok());
  EXPECT_EQ(got, "abcd");
}

}  // namespace
}  // namespace resident::testing
