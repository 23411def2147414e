// Imports of device memory with fake engines: which memory is mapped where, limits, and what is
// refused. tests/gpu/cuda_memory_test.cc has tests of a running daemon on a GPU.
#include "server/buffers/cuda_import.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/fake_device.h"
#include "runtime/operators/install/fake_operator_manager.h"
#include "runtime/operators/registry/registry.h"
#include "server/core/core.h"

namespace resident {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMemory = 1 << 20;
constexpr uint64_t kAllocation = 2 << 20;
constexpr char kUuid[] = "GPU-11111111-2222-3333-4444-555555555555";
constexpr char kOtherUuid[] = "GPU-99999999-2222-3333-4444-555555555555";

// The session of a GPU's engine.
class GpuSession : public FakeSession {
 public:
  explicit GpuSession(uint64_t epoch) : FakeSession(epoch, kMemory, kMemory) {
    traits().maps_device_memory = true;
  }

  absl::StatusOr<std::shared_ptr<const DeviceMemory>> MapDeviceDescriptor(int fd,
                                                                          uint64_t allocation_bytes,
                                                                          uint64_t bytes) override {
    struct stat file {};
    EXPECT_EQ(fstat(fd, &file), 0);
    EXPECT_TRUE(S_ISCHR(file.st_mode));
    mapped.push_back(allocation_bytes);
    if (!error.ok()) return error;
    return AllocateMemory(bytes);
  }
  absl::StatusOr<std::shared_ptr<const DeviceMemory>> MapSharedDevice(const std::string& handle,
                                                                      uint64_t bytes) override {
    handles.push_back(handle);
    return AllocateMemory(bytes);
  }

  std::vector<uint64_t> mapped;  // allocation_bytes of what was mapped.
  std::vector<std::string> handles;
  absl::Status error;
};

size_t Descriptors() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                           std::filesystem::directory_iterator()));
}

// A daemon with a CPU as device 0 and two GPUs.
class CudaImportTest : public ::testing::Test {
 protected:
  CudaImportTest() {
    SetGpu(gpu_, session_, kUuid);
    SetGpu(other_, other_session_, kOtherUuid);
    client_ = OpenSession();
  }

  static void SetGpu(FakeDevice& gpu, const std::shared_ptr<GpuSession>& session,
                     const std::string& uuid) {
    gpu.set_session(session);
    gpu.status().info.traits.maps_device_memory = true;
    gpu.status().info.uuid = uuid;
  }
  std::shared_ptr<Client> OpenSession() {
    const auto session =
        core_.clients.OpenSession("test", "ipv4:127.0.0.1:1", access_.anonymous()->account());
    EXPECT_TRUE(session.ok()) << session.status();
    return *session;
  }

  // Passes a descriptor of a device file.
  std::string Pass(const Client& client) {
    const auto token = buffers_.passed_descriptors->Add(
        PassedDescriptors::Kind::kDeviceMemory, client.session(), 1000,
        open("/dev/null", O_RDWR | O_CLOEXEC), PassedDescriptors::Clock::now());
    EXPECT_TRUE(token.ok()) << token.status();
    return *token;
  }
  static v1::ImportCudaRequest Request(const std::string& token, uint64_t floats = 16,
                                       const std::string& uuid = kUuid) {
    v1::ImportCudaRequest request;
    request.set_descriptor_token(token);
    request.set_allocation_bytes(kAllocation);
    request.set_dtype(v1::DTYPE_F32);
    request.add_shape(floats);
    request.set_device_uuid(uuid);
    return request;
  }
  absl::StatusOr<std::shared_ptr<const Buffer>> Import(const v1::ImportCudaRequest& request) {
    RETURN_IF_ERROR(CheckCudaImport(buffers_, request));
    return ImportCuda(buffers_, *client_, request);
  }
  void ExpectRefused(const v1::ImportCudaRequest& request, absl::StatusCode code,
                     const std::string& part) {
    const absl::Status status = Import(request).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    EXPECT_THAT(std::string(status.message()), HasSubstr("Fix: "));
  }

  static Limits FewBytes() {
    Limits limits;
    limits.max_client_memory_mib = 1;
    return limits;
  }

  const std::shared_ptr<GpuSession> session_ = std::make_shared<GpuSession>(1);
  const std::shared_ptr<GpuSession> other_session_ = std::make_shared<GpuSession>(1);
  FakeDevice cpu_{0, kMemory, kMemory};
  FakeDevice gpu_{1, kMemory, kMemory};
  FakeDevice other_{2, kMemory, kMemory};
  const std::unique_ptr<Registry> registry_ = *Registry::Create({});
  FakeOperatorManager manager_;
  Access access_;
  Core core_{{.limits = FewBytes(), .staging_bytes = kMemory, .local_address = "/run/socket"},
             {&cpu_, &gpu_, &other_},
             *registry_,
             manager_,
             access_};
  Buffers buffers_{core_, {.named_shared_memory = true}};
  std::shared_ptr<Client> client_;
};

TEST_F(CudaImportTest, MemoryIsMappedOnTheGpuWithTheUuidUntilTheBufferIsFreed) {
  const size_t before = Descriptors();
  const auto buffer = Import(Request(Pass(*client_), 16, kOtherUuid));
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ((*buffer)->device, 2u);
  EXPECT_EQ((*buffer)->place, Buffer::Place::kImportedDevice);
  EXPECT_EQ((*buffer)->size_bytes, 64u);
  EXPECT_EQ(other_session_->mapped, std::vector<uint64_t>{kAllocation});
  EXPECT_TRUE(session_->mapped.empty());
  v1::BufferInfo info;
  DescribeBuffer(**buffer, &info);
  EXPECT_TRUE(info.imported());
  EXPECT_FALSE(info.shared());
  EXPECT_EQ(core_.buffers.usage(client_->id()).bytes, 64u);

  // The descriptor is kept, so that the memory can be mapped into the next engine.
  EXPECT_EQ(Descriptors(), before + 1);
  const auto next = std::make_shared<GpuSession>(2);
  core_.buffers.OnRestart(2, *next, "killed",
                          [](auto&&...) { return absl::InternalError("not durable"); });
  EXPECT_EQ(next->mapped, std::vector<uint64_t>{kAllocation});
  const auto moved = core_.buffers.Find(client_->id(), (*buffer)->id);
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_NE((*moved)->memory, nullptr);
  EXPECT_EQ((*moved)->epoch, 2u);
  EXPECT_EQ((*moved)->place, Buffer::Place::kImportedDevice);
}

TEST_F(CudaImportTest, ARefusedImportKeepsNothing) {
  const size_t before = Descriptors();
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const auto failed = absl::StatusCode::kFailedPrecondition;
  ExpectRefused(Request(Pass(*client_), kAllocation / 4 + 1), invalid,
                "allocation_bytes = 2097152");
  ExpectRefused(Request(Pass(*client_), 0), invalid, "size 0");
  ExpectRefused(Request(Pass(*client_), 16, "GPU-none"), failed, "'GPU-none'");
  ExpectRefused(Request(Pass(*client_), 16, ""), failed, "''");
  v1::ImportCudaRequest dtype = Request(Pass(*client_));
  dtype.set_dtype(v1::DTYPE_UNSPECIFIED);
  ExpectRefused(dtype, invalid, "dtype");
  // Over the client's share, which is 1 MiB.
  ExpectRefused(Request(Pass(*client_), (1 << 18) + 1), absl::StatusCode::kResourceExhausted,
                "max_client_memory_mib");
  EXPECT_TRUE(session_->mapped.empty());
  session_->error = absl::InvalidArgumentError("not device memory. Fix: none");
  ExpectRefused(Request(Pass(*client_)), invalid, "not device memory");
  session_->error = absl::OkStatus();

  // A token of nobody, of another session, of another kind, and used twice.
  ExpectRefused(Request("none"), absl::StatusCode::kNotFound, "descriptor_token");
  const auto other = OpenSession();
  ExpectRefused(Request(Pass(*other)), absl::StatusCode::kNotFound, "descriptor_token");
  const auto shared = buffers_.passed_descriptors->Add(
      PassedDescriptors::Kind::kSharedMemory, client_->session(), 1000,
      open("/dev/null", O_RDWR | O_CLOEXEC), PassedDescriptors::Clock::now());
  ASSERT_TRUE(shared.ok()) << shared.status();
  ExpectRefused(Request(*shared), invalid, "ImportShared");
  const std::string token = Pass(*client_);
  ExpectRefused(Request(token, 0), invalid, "size 0");
  ExpectRefused(Request(token), absl::StatusCode::kNotFound, "imported");

  EXPECT_EQ(Descriptors(), before + 1);  // That of the other session.
  EXPECT_EQ(core_.buffers.usage(client_->id()).buffers, 0u);
  EXPECT_EQ(session_->memory_used_bytes(), 0u);
}

TEST_F(CudaImportTest, ImportsHaveTheLimitOfBuffersInMemoryOfClients) {
  const size_t before = Descriptors();
  {
    std::vector<SharedSlots::Ticket> taken;
    while (true) {
      auto slot =
          buffers_.shared_memory_slots.Take(NameHolder(client_->account(), client_->peer()));
      if (!slot.ok()) break;
      taken.push_back(*std::move(slot));
    }
    ASSERT_GT(taken.size(), 100u);
    ExpectRefused(Request(Pass(*client_)), absl::StatusCode::kResourceExhausted,
                  "buffers in shared memory");
  }
  EXPECT_EQ(Descriptors(), before);
  const auto buffer = Import(Request(Pass(*client_)));
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_TRUE(core_.buffers.Free(client_->id(), (*buffer)->id).ok());
}

TEST_F(CudaImportTest, AHandleIsAcceptedWhereANameIs) {
  v1::ImportCudaRequest request = Request("");
  ExpectRefused(request, absl::StatusCode::kInvalidArgument, "neither descriptor_token");
  request.set_ipc_handle(std::string(kDeviceHandleBytes, 'h'));
  const auto buffer = Import(request);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ((*buffer)->place, Buffer::Place::kImportedDevice);
  EXPECT_EQ(session_->handles, std::vector<std::string>{request.ipc_handle()});
  EXPECT_TRUE(session_->mapped.empty());

  request.set_ipc_handle("short");
  ExpectRefused(request, absl::StatusCode::kInvalidArgument, "5 bytes");
  request.set_ipc_handle(std::string(kDeviceHandleBytes, 'h'));
  request.set_descriptor_token("token");
  ExpectRefused(request, absl::StatusCode::kInvalidArgument, "both descriptor_token");
  request.clear_descriptor_token();
  Buffers of_others(core_);
  const absl::Status status = CheckCudaImport(of_others, request);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("serves other machines"));
  Buffers disabled(core_, {.allow_shared_memory = false, .named_shared_memory = true});
  EXPECT_THAT(std::string(CheckCudaImport(disabled, request).message()),
              HasSubstr("--allow_shared_memory"));
}

TEST_F(CudaImportTest, WithoutAGpuOrALocalSocketItSaysSo) {
  for (FakeDevice* const gpu : {&gpu_, &other_}) gpu->status().info.traits = EngineTraits();
  ExpectRefused(Request(Pass(*client_)), absl::StatusCode::kFailedPrecondition, "has no GPU");
  Core core({}, {}, *registry_, manager_, access_);
  const absl::Status status = CheckCudaImport(Buffers(core), Request("token"));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--local_address"));
}

}  // namespace
}  // namespace resident
