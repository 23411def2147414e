// Shared memory if callers have identities: which objects may be imported, and what proves
// the right to do so.
#include "client/shared_memory.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/residentd_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "resident/v1/buffers.grpc.pb.h"
#include "tests/auth/auth_support.h"
#include "tests/daemon/daemon.h"
#include "tests/daemon/messages.h"
#include "tests/support/local_packets.h"

namespace resident::testing {
namespace {

using ::grpc::StatusCode;
using ::testing::HasSubstr;

constexpr char kAliceToken[] = "alice-token";
constexpr char kBobToken[] = "bob-token";

constexpr char kPolicy[] = R"({"identities": {
  "alice": {"roles": ["submit"], "quotas": {"buffer_mib": 1}},
  "bob": {"roles": ["submit"]}}})";

class SharedMemoryOfIdentitiesTest : public ::testing::Test {
 protected:
  SharedMemoryOfIdentitiesTest()
      : daemon_({"--policy=" + folder_.Write("policy", kPolicy),
                 "--token_file=" + folder_.Write("tokens", TokenLine("alice", kAliceToken) +
                                                               TokenLine("bob", kBobToken)),
                 "--local_address=" + path_}) {}

  std::unique_ptr<client::Client> Connect(const std::string& token) {
    client::Options options;
    options.credentials.token = token;
    auto client = client::Client::Connect(daemon_.address(), options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  // Passes a descriptor for the client's session, and closes it.
  LocalAnswer Pass(client::Client& client, int fd) {
    const auto session = client.SessionId();
    EXPECT_TRUE(session.ok()) << session.status();
    LocalAnswer answer = PassDescriptors(path_, "residfd1" + *session, {fd});
    close(fd);
    return answer;
  }
  // Imports the descriptor of `descriptor_token` in the session of `client`, with a
  // credential.
  grpc::Status Import(client::Client& client, const std::string& credential,
                      const std::string& descriptor_token, uint64_t floats = 4) {
    const auto stub = v1::Buffers::NewStub(daemon_.Connect());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    context.AddMetadata("authorization", "Bearer " + credential);
    context.AddMetadata("resident-session", client.SessionId().value_or(""));
    v1::ImportSharedRequest request;
    request.set_descriptor_token(descriptor_token);
    request.set_dtype(v1::DTYPE_F32);
    request.add_shape(floats);
    request.set_size_bytes(floats * sizeof(float));
    v1::ImportSharedResponse response;
    return stub->ImportShared(&context, request, &response);
  }

  // The number of the daemon's descriptors once all permanent ones exist and others are closed.
  size_t AwaitDescriptors() {
    // The spare engine is started while the daemon serves.
    EXPECT_TRUE(
        Eventually([&] { return daemon_.Figure("resident_spare_engine{device=\"0\"}") == 1; }));
    size_t count = daemon_.Descriptors();
    EXPECT_TRUE(Eventually([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      const size_t last = std::exchange(count, daemon_.Descriptors());
      return count == last;
    }));
    return count;
  }

  const Folder folder_{"/tmp"};
  const std::string path_ = folder_.Path("socket");
  const Daemon daemon_;
};

TEST_F(SharedMemoryOfIdentitiesTest, AnObjectIsNotImportedByItsName) {
  const std::string name = absl::StrCat("/resident-secret-", getpid());
  const int fd = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(ftruncate(fd, 4096), 0);
  close(fd);
  const auto alice = Connect(kAliceToken);
  const absl::Status status = alice->ImportShared<float>(name, {4}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--local_address"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("Fix: "));
  // The refusal must not reveal which names exist.
  EXPECT_EQ(status, alice->ImportShared<float>(name + "-none", {4}).status());
  shm_unlink(name.c_str());
}

TEST_F(SharedMemoryOfIdentitiesTest, TasksUseTheMemoryOfAPassedDescriptorInPlace) {
  const auto alice = Connect(kAliceToken);
  auto memory = client::SharedMemory::Create(8 * sizeof(float));
  ASSERT_TRUE(memory.ok()) << memory.status();
  const std::span<float> floats = memory->As<float>();
  for (int i = 0; i < 4; ++i) floats[i] = static_cast<float>(i);
  auto buffer = alice->ImportShared<float>(memory->fd(), {8});
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  client::TaskBatch scale("scale");
  scale.Use(*buffer, {.shape = {4}});
  v1::BufferColumn& half = *scale.message().mutable_tasks()->add_arguments()->mutable_buffer();
  half.add_buffer_ids(buffer->id());
  half.add_offsets(4 * sizeof(float));
  half.add_shape(4);
  scale.Scalar(2);
  auto result = alice->Run(scale);
  ASSERT_TRUE(result.ok() && result->ok()) << result.status();
  EXPECT_EQ(floats[4 + 3], 6);

  // The owner cannot truncate the memory while tasks use it, which would end the engine.
  EXPECT_NE(ftruncate(memory->fd(), 0), 0);
  EXPECT_EQ(fallocate(memory->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  result = alice->Run(scale);
  ASSERT_TRUE(result.ok() && result->ok()) << result.status();
  EXPECT_EQ(floats[4 + 3], 0);
  *memory = *client::SharedMemory::Create(1);
  result = alice->Run(scale);
  EXPECT_TRUE(result.ok() && result->ok()) << result.status();
}

TEST_F(SharedMemoryOfIdentitiesTest, MemoryThatCanBeTruncatedIsRefused) {
  const auto alice = Connect(kAliceToken);
  const int fd = NewMemory(4096, /*shrink_sealed=*/false);
  const absl::Status status = alice->ImportShared<float>(fd, {4}).status();
  close(fd);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("F_SEAL_SHRINK"));
}

TEST_F(SharedMemoryOfIdentitiesTest, ATokenIsValidOnceForTheSessionThatPassedTheDescriptor) {
  const auto alice = Connect(kAliceToken);
  const auto other = Connect(kAliceToken);
  const auto bob = Connect(kBobToken);
  const LocalAnswer answer = Pass(*alice, NewMemory(4096, true));
  ASSERT_EQ(answer.code, 0) << answer.text;
  const std::string gone = "no descriptor of this session has";
  ExpectRefused(Import(*bob, kBobToken, answer.text), StatusCode::NOT_FOUND, {gone});
  ExpectRefused(Import(*other, kAliceToken, answer.text), StatusCode::NOT_FOUND, {gone});
  ExpectRefused(Import(*alice, kBobToken, answer.text), StatusCode::PERMISSION_DENIED, {"'bob'"});
  ExpectRefused(Import(*alice, kAliceToken, std::string(32, '0')), StatusCode::NOT_FOUND, {gone});
  EXPECT_TRUE(Import(*alice, kAliceToken, answer.text).ok());
  ExpectRefused(Import(*alice, kAliceToken, answer.text), StatusCode::NOT_FOUND, {gone});
}

TEST_F(SharedMemoryOfIdentitiesTest, ADescriptorNeedsAnOpenSession) {
  const int fd = NewMemory(4096, true);
  LocalAnswer answer = PassDescriptors(path_, "residfd1" + std::string(32, 'a'), {fd});
  EXPECT_EQ(answer.code, StatusCode::UNAUTHENTICATED) << answer.text;
  auto alice = Connect(kAliceToken);
  const std::string session = alice->SessionId().value_or("");
  // The prefix of an id, which status shows, is not enough.
  answer = PassDescriptors(path_, "residfd1" + session.substr(0, 8), {fd});
  EXPECT_EQ(answer.code, StatusCode::UNAUTHENTICATED) << answer.text;
  alice = nullptr;
  EXPECT_TRUE(Eventually([&] {
    return PassDescriptors(path_, "residfd1" + session, {fd}).code == StatusCode::UNAUTHENTICATED;
  }));
  close(fd);
}

TEST_F(SharedMemoryOfIdentitiesTest, MappedBytesCountForTheQuotaAndARefusalLeaksNothing) {
  const auto alice = Connect(kAliceToken);
  ASSERT_TRUE(alice->SessionId().ok());
  const size_t before = AwaitDescriptors();
  LocalAnswer answer = Pass(*alice, NewMemory(4 << 20, true));
  ASSERT_EQ(answer.code, 0) << answer.text;
  ExpectRefused(Import(*alice, kAliceToken, answer.text, 1 << 20), StatusCode::RESOURCE_EXHAUSTED,
                {"buffer_mib"});
  ExpectRefused(Import(*alice, kAliceToken, answer.text), StatusCode::NOT_FOUND, {"imported"});
  // The import is longer than the memory.
  answer = Pass(*alice, NewMemory(4096, true));
  ASSERT_EQ(answer.code, 0) << answer.text;
  ExpectRefused(Import(*alice, kAliceToken, answer.text, 1025), StatusCode::INVALID_ARGUMENT,
                {"4100", "4096"});
  EXPECT_TRUE(Eventually([&] { return daemon_.Descriptors() <= before; }))
      << daemon_.Descriptors() << " descriptors, " << before << " before";
}

}  // namespace
}  // namespace resident::testing
