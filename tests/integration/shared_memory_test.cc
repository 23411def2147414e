// Memory that daemon and client share, if callers have no identities: descriptors passed
// over the local socket, and names. tests/auth/shared_memory_test.cc tests it with
// identities.
#include "client/shared_memory.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/residentd_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "resident/v1/buffers.grpc.pb.h"
#include "tests/daemon/messages.h"
#include "tests/daemon/nothing_left.h"
#include "tests/support/eventually.h"
#include "tests/support/local_packets.h"
#include "tests/support/temp_folder.h"

namespace resident::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

class SharedMemoryTest : public ::testing::Test {
 protected:
  std::string Flag() const { return "--local_address=" + path_; }
  static std::unique_ptr<client::Client> Connect(const Daemon& daemon,
                                                 const client::Options& options = {}) {
    auto client = client::Client::Connect(daemon.address(), options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  static grpc::Status Import(const Client& client, const std::string& name,
                             const std::string& descriptor_token, uint64_t floats = 4) {
    v1::ImportSharedRequest request;
    request.set_name(name);
    request.set_descriptor_token(descriptor_token);
    request.set_dtype(v1::DTYPE_F32);
    request.add_shape(floats);
    request.set_size_bytes(floats * sizeof(float));
    v1::ImportSharedResponse response;
    return client.buffers().ImportShared(client.Context().get(), request, &response);
  }
  static grpc::Status ImportCuda(const Client& client, const std::string& descriptor_token,
                                 const std::string& uuid) {
    v1::ImportCudaRequest request;
    request.set_descriptor_token(descriptor_token);
    request.set_allocation_bytes(2 << 20);
    request.set_dtype(v1::DTYPE_F32);
    request.add_shape(4);
    request.set_device_uuid(uuid);
    v1::ImportCudaResponse response;
    return client.buffers().ImportCuda(client.Context().get(), request, &response);
  }
  LocalAnswer Pass(const Client& client, int fd, const std::string& magic = "residfd1") const {
    LocalAnswer answer = PassDescriptors(path_, magic + client.session(), {fd});
    close(fd);
    return answer;
  }

  // In /tmp: Bazel's folder may be too deep for a socket's path.
  const TempFolder folder_{"resident-shm", "/tmp"};
  const std::string path_ = folder_.path() + "/socket";
};

TEST_F(SharedMemoryTest, ADescriptorsMemoryIsReadAndWrittenInPlace) {
  const Daemon daemon({Flag()});
  const auto client = Connect(daemon);
  auto memory = client::SharedMemory::Create(2 * sizeof(float));
  ASSERT_TRUE(memory.ok()) << memory.status();
  const std::span<float> floats = memory->As<float>();
  floats[0] = 21;
  auto buffer = client->ImportShared<float>(memory->fd(), {2});
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  client::TaskBatch scale("scale");
  scale.Use(*buffer, {.shape = {1}});
  v1::BufferColumn& out = *scale.message().mutable_tasks()->add_arguments()->mutable_buffer();
  out.add_buffer_ids(buffer->id());
  out.add_offsets(sizeof(float));
  out.add_shape(1);
  scale.Scalar(2);
  const auto result = client->Run(scale);
  ASSERT_TRUE(result.ok() && result->ok()) << result.status();
  EXPECT_EQ(floats[1], 42);
  EXPECT_TRUE(buffer->Free().ok());

  // Without identities, memory that can be truncated is also accepted.
  const int fd = NewMemory(4096, /*shrink_sealed=*/false);
  EXPECT_TRUE(client->ImportShared<float>(fd, {1024}).ok());
  close(fd);
}

TEST_F(SharedMemoryTest, TheDaemonNamesItsSocketAndRemovesItAtTheEnd) {
  Daemon daemon({Flag()});
  EXPECT_EQ(daemon.Status().local_address(), path_);
  // The daemon may serve before this line has arrived.
  EXPECT_TRUE(Eventually(
      [&] { return daemon.Output().find("shared memory at " + path_) != std::string::npos; }));
  EXPECT_TRUE(std::filesystem::is_socket(path_));
  daemon.Kill(SIGTERM);
  const auto exit = daemon.Wait();
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->status, 0) << exit->ToString();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(SharedMemoryTest, AKilledDaemonsSocketIsReplacedAndALiveOneIsNot) {
  {
    Daemon killed({Flag()});
    killed.Kill(SIGKILL);
    ASSERT_TRUE(killed.Wait());
  }
  EXPECT_TRUE(std::filesystem::is_socket(path_));
  const Daemon daemon({Flag()});
  const Daemon::Failure second = Daemon::StartExpectingFailure({Flag()});
  EXPECT_EQ(second.exit.status, 1) << second.exit.ToString();
  EXPECT_THAT(second.output, HasSubstr("--local_address=" + path_));
  EXPECT_THAT(second.output, HasSubstr("in use"));
  EXPECT_THAT(second.output, HasSubstr("Fix: "));
  const Client client(daemon);
  EXPECT_EQ(Pass(client, NewMemory(4096, true)).code, 0);
}

TEST_F(SharedMemoryTest, InvalidPathsPreventTheStart) {
  // A folder that does not exist may be there at another start.
  for (const auto& [path, status] : {std::pair(std::string("relative"), 2),
                                     {"/tmp/" + std::string(120, 'x'), 2},
                                     {folder_.path() + "/none/socket", 1},
                                     {folder_.path() + "/", 2}}) {
    const Daemon::Failure failure = Daemon::StartExpectingFailure({"--local_address=" + path});
    EXPECT_EQ(failure.exit.status, status) << failure.exit.ToString();
    EXPECT_THAT(failure.output, HasSubstr("--local_address=" + path));
    EXPECT_THAT(failure.output, HasSubstr("Fix: "));
  }
}

TEST_F(SharedMemoryTest, InvalidImportsAreRefused) {
  const Daemon daemon({Flag()});
  const Client client(daemon);
  LocalAnswer answer = Pass(client, NewMemory(4096, true));
  ASSERT_EQ(answer.code, 0) << answer.text;
  ExpectRefused(Import(client, "/name", answer.text), StatusCode::INVALID_ARGUMENT,
                {"both name and descriptor_token"});
  ExpectRefused(Import(client, "", answer.text, 1025), StatusCode::INVALID_ARGUMENT,
                {"4100", "4096"});
  // The failed call has consumed the token.
  ExpectRefused(Import(client, "", answer.text), StatusCode::NOT_FOUND, {"descriptor_token"});
  ExpectRefused(Import(client, "", std::string(1 << 16, 'x')), StatusCode::NOT_FOUND,
                {"descriptor_token"});

  const Daemon without;
  const Client other(without);
  ExpectRefused(Import(other, "", std::string(32, '0')), StatusCode::FAILED_PRECONDITION,
                {"--local_address"});
  const int fd = NewMemory(4096, true);
  const absl::Status status = Connect(without)->ImportShared<float>(fd, {4}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--local_address"));
  // A path without a socket: as if the daemon were on another machine.
  client::Options far;
  far.local_address = folder_.path() + "/none";
  const absl::Status none = Connect(daemon, far)->ImportShared<float>(fd, {4}).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition) << none;
  EXPECT_THAT(std::string(none.message()), HasSubstr("Fix: "));
  close(fd);
}

// tests/gpu/cuda_memory_test.cc imports memory of a GPU.
TEST_F(SharedMemoryTest, WhatIsNotDeviceMemoryIsNotImportedAsSuch) {
  const Daemon daemon({Flag()});
  const Client client(daemon);
  const std::string uuid = daemon.Device().uuid();
  LocalAnswer answer = Pass(client, NewMemory(4096, true), "residcu1");
  EXPECT_EQ(answer.code, StatusCode::INVALID_ARGUMENT) << answer.text;
  EXPECT_THAT(answer.text, HasSubstr("not one of device memory"));

  answer = Pass(client, open("/dev/null", O_RDWR), "residcu1");
  ASSERT_EQ(answer.code, 0) << answer.text;
  ExpectRefused(Import(client, "", answer.text), StatusCode::INVALID_ARGUMENT, {"ImportCuda"});
  answer = Pass(client, open("/dev/null", O_RDWR), "residcu1");
  ExpectRefused(ImportCuda(client, answer.text, uuid),
                uuid.empty() ? StatusCode::FAILED_PRECONDITION : StatusCode::INVALID_ARGUMENT,
                {uuid.empty() ? "has no GPU" : "not one of device memory"});
  ExpectRefused(ImportCuda(client, answer.text, uuid), StatusCode::NOT_FOUND, {"descriptor_token"});
  answer = Pass(client, NewMemory(4096, true));
  ExpectRefused(ImportCuda(client, answer.text, uuid), StatusCode::INVALID_ARGUMENT,
                {"ImportShared"});

  const auto library = Connect(daemon);
  const int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_FALSE(library->ImportCuda<float>(fd, 2 << 20, uuid, {4}).ok());
  close(fd);
  ExpectServes(daemon);
}

TEST_F(SharedMemoryTest, NamesAreOnlyAcceptedOnTheLoopbackInterface) {
  const std::string name = absl::StrCat("/resident-names-", getpid());
  const int fd = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(ftruncate(fd, 4096), 0);
  close(fd);
  {
    const Daemon daemon({Flag()});
    EXPECT_TRUE(Import(Client(daemon), name, "").ok());
  }
  {
    const Daemon daemon({"--insecure_non_loopback", Flag()}, "0.0.0.0:0");
    const Client client(daemon);
    ExpectRefused(Import(client, name, ""), StatusCode::FAILED_PRECONDITION,
                  {"serves other machines", "--local_address"});
    const LocalAnswer answer = Pass(client, NewMemory(4096, false));
    ASSERT_EQ(answer.code, 0) << answer.text;
    EXPECT_TRUE(Import(client, "", answer.text).ok());
  }
  shm_unlink(name.c_str());
}

TEST_F(SharedMemoryTest, WithoutSharedMemoryThereIsNoSocket) {
  const Daemon daemon({Flag(), "--allow_shared_memory=false"});
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ(daemon.Status().local_address(), "");
  ExpectRefused(Import(Client(daemon), "", "token"), StatusCode::FAILED_PRECONDITION,
                {"--allow_shared_memory"});
}

TEST_F(SharedMemoryTest, PassedDescriptorsAreNotLeaked) {
  const Daemon daemon({Flag()});
  const Baseline before(daemon);
  {
    const Client client(daemon);
    const std::string request = "residfd1" + client.session();
    for (int i = 0; i < 6; ++i) {
      // This one is never imported.
      EXPECT_EQ(Pass(client, NewMemory(4096, true)).code, 0);
      const LocalAnswer answer = Pass(client, NewMemory(4096, true));
      ASSERT_EQ(answer.code, 0) << answer.text;
      EXPECT_TRUE(Import(client, "", answer.text).ok());
      EXPECT_EQ(Pass(client, open("/dev/null", O_RDWR), "residcu1").code, 0);
      const LocalAnswer device = Pass(client, open("/dev/null", O_RDWR), "residcu1");
      ASSERT_EQ(device.code, 0) << device.text;
      EXPECT_FALSE(ImportCuda(client, device.text, daemon.Device().uuid()).ok());
    }
    const int fd = NewMemory(4096, true);
    for (int i = 0; i < 50; ++i) {
      EXPECT_GT(PassDescriptors(path_, request, {fd, fd}).code, 0);
      EXPECT_GT(PassDescriptors(path_, std::string(static_cast<size_t>(i), 'r'), {fd}).code, 0);
    }
    close(fd);
    // More silent connections than a user may have; they are closed without sending
    // anything.
    std::vector<int> silent;
    for (int i = 0; i < 40; ++i) silent.push_back(ConnectLocal(path_));
    for (const int connection : silent) close(connection);
  }
  ExpectNothingLeft(daemon, before);
  ExpectServes(daemon);
}

}  // namespace
}  // namespace resident::testing
