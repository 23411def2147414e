// Regions in device memory, with a fake engine. tests/inference has tests of a running daemon.
#include "server/inference/regions.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "inference/open_inference.pb.h"
#include "runtime/device/fake_device.h"
#include "runtime/operators/install/fake_operator_manager.h"
#include "runtime/operators/registry/registry.h"
#include "server/core/core.h"
#include "server/inference/infer_request.h"

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kMemory = 1 << 20;

// The session of a GPU's engine.
class GpuSession : public FakeSession {
 public:
  GpuSession(uint64_t epoch, uint64_t memory_bytes) : FakeSession(epoch, memory_bytes, kMemory) {
    traits().maps_device_memory = true;
  }

  absl::StatusOr<std::shared_ptr<const DeviceMemory>> MapSharedDevice(const std::string& handle,
                                                                      uint64_t bytes) override {
    handles.push_back(handle);
    return AllocateMemory(bytes);
  }

  std::vector<std::string> handles;  // Those that were mapped.
};

// A daemon with a CPU as device 0 and a GPU as device 1.
class RegionsTest : public ::testing::Test {
 protected:
  RegionsTest() {
    gpu_.set_session(session_);
    client_ = *core_.clients.ForCall("", "ipv4:127.0.0.1:1", access_.anonymous()->account());
  }

  static Limits FewBytes() {
    Limits limits;
    limits.max_client_memory_mib = 1;
    return limits;
  }

  static RegionSpec Cuda(const std::string& name, uint64_t bytes) {
    return {.kind = RegionKind::kCuda,
            .name = name,
            .bytes = bytes,
            .handle = std::string(kDeviceHandleBytes, 'h'),
            .device = 1};
  }

  absl::Status RegisterSystem(const std::string& name) {
    const std::string key = absl::StrCat("/residentd-regions-", getpid());
    const int fd = shm_open(key.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
    EXPECT_GE(fd, 0);
    EXPECT_EQ(ftruncate(fd, 4096), 0);
    close(fd);
    const absl::Status status =
        regions_->Register({.name = name, .key = key, .bytes = 4096}, *client_);
    shm_unlink(key.c_str());
    return status;
  }

  uint32_t DeviceOf(const std::string& name) {
    const auto region = regions_->Find(name);
    EXPECT_TRUE(region.ok()) << region.status();
    if (!region.ok()) return UINT32_MAX;
    const auto buffer = core_.buffers.Find(Regions::kBufferOwner, (*region)->buffer());
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return buffer.ok() ? (*buffer)->device : UINT32_MAX;
  }

  std::shared_ptr<GpuSession> session_ = std::make_shared<GpuSession>(2, kMemory);
  FakeDevice cpu_{0, kMemory, kMemory};
  FakeDevice gpu_{1, kMemory, kMemory};
  const std::unique_ptr<Registry> registry_ = *Registry::Create({});
  FakeOperatorManager manager_;
  Access access_;
  Core core_{{.limits = FewBytes(), .staging_bytes = kMemory},
             {&cpu_, &gpu_},
             *registry_,
             manager_,
             access_};
  Buffers buffers_{core_, {.named_shared_memory = true}};
  const std::shared_ptr<Regions> regions_ =
      std::make_shared<Regions>(buffers_, std::chrono::milliseconds(0));
  std::shared_ptr<Client> client_;
};

TEST_F(RegionsTest, DeviceMemoryIsMappedUntilItIsUnregistered) {
  ASSERT_EQ(regions_->Register(Cuda("r", 8192), *client_), absl::OkStatus());
  EXPECT_EQ(session_->handles, std::vector<std::string>{std::string(kDeviceHandleBytes, 'h')});
  EXPECT_EQ(session_->memory_used_bytes(), 8192u);
  EXPECT_EQ(DeviceOf("r"), 1u);
  const auto listed = regions_->List(RegionKind::kCuda, "r");
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_EQ((*listed)[0].bytes, 8192u);
  EXPECT_TRUE(absl::IsNotFound(regions_->List(RegionKind::kSystem, "r").status()));
  EXPECT_TRUE(absl::IsAlreadyExists(regions_->Register(Cuda("r", 1), *client_)));

  auto used = regions_->Find("r");
  ASSERT_TRUE(used.ok()) << used.status();
  regions_->Unregister(RegionKind::kSystem, "");
  const auto unused = regions_->Unregister(RegionKind::kCuda, "r");
  EXPECT_TRUE(absl::IsNotFound(regions_->Find("r").status()));
  EXPECT_FALSE(unused->HasBeenNotified());
  EXPECT_EQ(session_->memory_used_bytes(), 8192u);
  *used = nullptr;
  EXPECT_TRUE(unused->HasBeenNotified());
  EXPECT_EQ(session_->memory_used_bytes(), 0u);
}

TEST_F(RegionsTest, DeviceMemoryCountsLikeABuffer) {
  ASSERT_EQ(regions_->Register(Cuda("half", kMemory / 2), *client_), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(regions_->Register(Cuda("r", kMemory), *client_)));
  EXPECT_EQ(core_.buffers.usage(Regions::kBufferOwner).bytes, kMemory / 2);
  EXPECT_EQ(session_->handles.size(), 1u);  // The refused one was not mapped.
  regions_->Unregister(RegionKind::kCuda, "");
  EXPECT_EQ(regions_->Register(Cuda("r", kMemory), *client_), absl::OkStatus());
}

TEST_F(RegionsTest, SystemRegionsAreOnOneDeviceWhereverDeviceMemoryIs) {
  ASSERT_EQ(RegisterSystem("a"), absl::OkStatus());
  // The other device has more room from now on.
  const uint32_t home = DeviceOf("a");
  RegionSpec cuda = Cuda("c", 4096);
  if (home == 1) {
    // A daemon with two GPUs.
    cpu_.set_session(std::make_shared<GpuSession>(2, kMemory));
    cuda.device = 0;
  }
  ASSERT_EQ(regions_->Register(cuda, *client_), absl::OkStatus());
  EXPECT_NE(DeviceOf("c"), home);
  ASSERT_EQ(RegisterSystem("b"), absl::OkStatus());
  EXPECT_EQ(DeviceOf("b"), home);
}

// So does the first one, if there is only device memory, on any of several devices.
TEST_F(RegionsTest, TheFirstSystemRegionIsWhereDeviceMemoryIs) {
  ASSERT_EQ(regions_->Register(Cuda("c", 4096), *client_), absl::OkStatus());
  ASSERT_EQ(RegisterSystem("a"), absl::OkStatus());
  EXPECT_EQ(DeviceOf("a"), 1u);
  cpu_.set_session(std::make_shared<GpuSession>(2, kMemory));
  regions_->Unregister(RegionKind::kSystem, "")->WaitForNotification();
  RegionSpec other = Cuda("d", 4096);
  other.device = 0;
  ASSERT_EQ(regions_->Register(other, *client_), absl::OkStatus());
  ASSERT_EQ(RegisterSystem("b"), absl::OkStatus());
  EXPECT_EQ(DeviceOf("b"), 0u);
}

TEST_F(RegionsTest, ASystemRegionWaitsForTheDeviceOfTheOthers) {
  ASSERT_EQ(RegisterSystem("a"), absl::OkStatus());
  const uint32_t home = DeviceOf("a");
  FakeDevice& device = home == 0 ? cpu_ : gpu_;
  const std::shared_ptr<EngineSession> session = device.session();
  device.set_session(nullptr);  // Its engine is being replaced.
  const absl::Status waits = RegisterSystem("b");
  EXPECT_TRUE(absl::IsUnavailable(waits)) << waits;
  device.set_session(session);
  ASSERT_EQ(RegisterSystem("b"), absl::OkStatus());
  EXPECT_EQ(DeviceOf("b"), home);
}

TEST_F(RegionsTest, ARequestWithRegionsOnTwoDevicesIsRefused) {
  cpu_.set_session(std::make_shared<GpuSession>(2, kMemory));  // A daemon with two GPUs.
  RegionSpec other = Cuda("there", 4096);
  other.device = 0;
  ASSERT_EQ(regions_->Register(Cuda("here", 4096), *client_), absl::OkStatus());
  ASSERT_EQ(regions_->Register(other, *client_), absl::OkStatus());
  const auto translate = [&](const char* x, const char* y, const char* out) {
    inference::ModelInferRequest request;
    request.set_model_name("add");
    const auto put = [](const char* region, auto* tensor) {
      auto& parameters = *tensor->mutable_parameters();
      parameters["shared_memory_region"].set_string_param(region);
      parameters["shared_memory_byte_size"].set_int64_param(8);
    };
    for (const auto& [name, region] : {std::pair("x", x), std::pair("y", y)}) {
      auto* const input = request.add_inputs();
      input->set_name(name);
      input->set_datatype("FP32");
      input->add_shape(2);
      put(region, input);
    }
    request.add_outputs()->set_name("out");
    put(out, request.mutable_outputs(0));
    return TranslateInfer({core_.limits, *registry_, core_.models, *regions_}, request).status();
  };
  EXPECT_EQ(translate("here", "here", "here"), absl::OkStatus());
  for (const absl::Status& refused :
       {translate("here", "there", "here"), translate("here", "here", "there")}) {
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("'there' on device 0"), HasSubstr("'here' on device 1"),
                      HasSubstr("Fix: ")));
  }
}

TEST_F(RegionsTest, DeviceMemoryIsMappedIntoTheNextEngine) {
  ASSERT_EQ(regions_->Register(Cuda("r", 8192), *client_), absl::OkStatus());
  const BufferTable::Restore nothing = [](EngineSession&, const DeviceMemory&, uint64_t,
                                          const BufferTable::Fill&) { return absl::OkStatus(); };
  GpuSession next(3, kMemory);
  core_.buffers.OnRestart(1, next, "killed", nothing);
  EXPECT_EQ(next.handles, session_->handles);
  EXPECT_TRUE(regions_->Find("r").ok());

  // The process whose memory it is has ended: the third engine cannot map it.
  GpuSession third(4, /*memory_bytes=*/0);
  core_.buffers.OnRestart(1, third, "killed", nothing);
  const absl::Status lost = regions_->Find("r").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(lost)) << lost;
  regions_->Unregister(RegionKind::kCuda, "");
}

}  // namespace
}  // namespace resident
