// Memory of a GPU that belongs to a client's process: this process has a CUDA context of its own,
// exports memory, imports it into the daemon, and runs tasks on it. The test needs a GPU;
// server/buffers/cuda_import_test.cc and tests/integration/shared_memory_test.cc do not.
//
// RESIDENT_TEST_LANE_SCALE multiplies the counts (default 1).
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/lane.h"
#include "client/residentd_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "resident/v1/buffers.grpc.pb.h"
#include "tests/daemon/client.h"
#include "tests/daemon/daemon.h"
#include "tests/gpu/cuda_calls.h"
#include "tests/support/eventually.h"
#include "tests/support/lane_tests.h"
#include "tests/support/temp_folder.h"

namespace resident::testing {
namespace {

using client::Lane;
using client::LaneCall;
using client::Varying;
using ::testing::HasSubstr;

constexpr uint64_t kN = 1024;
// A test that lasts longer is ended: a GPU's time is short.
constexpr unsigned kTestSeconds = 100;

// Makes a context of the first GPU current on this thread.
void OpenContext() {
  CUdevice device = 0;
  CUcontext context = nullptr;
  RUN_CUDA(cuDeviceGet, &device, 0);
  RUN_CUDA(cuDevicePrimaryCtxRetain, &context, device);
  RUN_CUDA(cuCtxSetCurrent, context);
}

CUmemAllocationProp Properties(CUmemLocationType type) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = type;
  return properties;
}

// Memory of this process on the first GPU, with a descriptor of it.
class CudaMemory {
 public:
  explicit CudaMemory(uint64_t bytes) {
    const CUmemAllocationProp properties = Properties(CU_MEM_LOCATION_TYPE_DEVICE);
    RUN_CUDA(cuMemGetAllocationGranularity, &granularity_, &properties,
             CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    bytes_ = (bytes + granularity_ - 1) / granularity_ * granularity_;
    CUmemGenericAllocationHandle memory = 0;
    RUN_CUDA(cuMemCreate, &memory, bytes_, &properties, 0);
    RUN_CUDA(cuMemAddressReserve, &address_, bytes_, 0, 0, 0);
    RUN_CUDA(cuMemMap, address_, bytes_, 0, memory, 0);
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    RUN_CUDA(cuMemSetAccess, address_, bytes_, &access, 1);
    RUN_CUDA(cuMemExportToShareableHandle, &fd_, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
             0);
    RUN_CUDA(cuMemRelease, memory);
  }
  ~CudaMemory() { Free(); }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  // Ends this process's use of the memory.
  void Free() {
    if (fd_ < 0) return;
    close(std::exchange(fd_, -1));
    RUN_CUDA(cuMemUnmap, address_, bytes_);
    RUN_CUDA(cuMemAddressFree, address_, bytes_);
  }

  int fd() const { return fd_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t granularity() const { return granularity_; }
  CUdeviceptr address() const { return address_; }

  // By the driver's kernel, and by its copy.
  void Fill(float value) {
    unsigned bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    RUN_CUDA(cuMemsetD32, address_, bits, kN);
    RUN_CUDA(cuCtxSynchronize);
  }
  std::vector<float> Read() const {
    std::vector<float> values(kN);
    RUN_CUDA(cuMemcpyDtoH, values.data(), address_, kN * sizeof(float));
    return values;
  }

 private:
  size_t granularity_ = 0;
  uint64_t bytes_ = 0;
  CUdeviceptr address_ = 0;
  int fd_ = -1;
};

uint64_t FreeBytes() {
  size_t free = 0, total = 0;
  RUN_CUDA(cuMemGetInfo, &free, &total);
  return free;
}

size_t CountDescriptors(pid_t pid) {
  std::error_code error;
  const std::filesystem::directory_iterator first(absl::StrCat("/proc/", pid, "/fd"), error);
  EXPECT_FALSE(error) << error.message();
  return error ? 0
               : static_cast<size_t>(std::distance(first, std::filesystem::directory_iterator()));
}

// Three imported tensors.
struct Imported {
  Imported(client::Client& client, const std::string& uuid)
      : x_buffer(Import(client, uuid, x)),
        y_buffer(Import(client, uuid, y)),
        out_buffer(Import(client, uuid, out)) {}
  static client::Buffer<float> Import(client::Client& client, const std::string& uuid,
                                      const CudaMemory& memory) {
    return Must(client.ImportCuda<float>(memory.fd(), memory.bytes(), uuid, {kN}));
  }
  LaneCall PrepareAdd(Lane& lane) const {
    client::TaskBatch add("add");
    add.Use(x_buffer).Use(y_buffer).Use(out_buffer).Scalar(2);
    return Must(lane.Prepare(add, {Varying::Place(0), Varying::Place(1), Varying::Place(2)}));
  }

  CudaMemory x{kN * sizeof(float)}, y{kN * sizeof(float)}, out{kN * sizeof(float)};
  client::Buffer<float> x_buffer, y_buffer, out_buffer;
};

class CudaMemoryTest : public ::testing::Test {
 protected:
  CudaMemoryTest() : daemon_({"--local_address=" + folder_.path() + "/local"}) {
    alarm(kTestSeconds);
    OpenContext();
    client_ = Must(client::Client::Connect(daemon_.address()));
    uuid_ = daemon_.Device().uuid();
  }
  ~CudaMemoryTest() override { alarm(0); }

  // Waits until the spare engine is ready, which has a context of the GPU.
  bool HasSpareEngine() {
    return Eventually([&] { return daemon_.Figure("resident_spare_engine{device=\"0\"}") == 1; });
  }

  void ExpectServes() {
    client::TaskBatch fill("fill");
    auto buffer = Must(client_->Allocate<float>({kN}, {.device = 0}));
    fill.Use(buffer).Scalar(4);
    const auto done = client_->Run(fill);
    ASSERT_TRUE(done.ok() && done->ok()) << done.status();
  }

  const TempFolder folder_{"cuda-memory", "/tmp"};
  Daemon daemon_;
  std::unique_ptr<client::Client> client_;
  std::string uuid_;
};

// The process's kernel writes, a lane's task computes, and the process's copy reads.
TEST_F(CudaMemoryTest, TasksOfALaneUseTheMemoryInPlace) {
  Imported tensors(*client_, uuid_);
  EXPECT_TRUE(tensors.x_buffer.info().imported());
  EXPECT_FALSE(tensors.x_buffer.info().shared());
  const auto lane = Must(client_->OpenLane({.device = 0}));
  LaneCall add = tensors.PrepareAdd(*lane);
  tensors.y.Fill(0.5);
  const auto started = std::chrono::steady_clock::now();
  const uint64_t calls = Scaled(500);
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < calls; ++i) {
    const auto value = static_cast<float>(i % 8192);
    tensors.x.Fill(value);
    const absl::Status done = add(tensors.x_buffer, tensors.y_buffer, tensors.out_buffer);
    ASSERT_TRUE(done.ok()) << done;
    for (const float got : tensors.out.Read()) wrong += got != value + 1;
  }
  EXPECT_EQ(wrong, 0u);
  std::printf("%lu x {memset, lane add, copy}: %.0f us each\n", calls,
              std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - started)
                      .count() /
                  static_cast<double>(calls));
}

// Many submissions, joined or not, with outputs in imported memory: each has its result when it is
// answered.
TEST_F(CudaMemoryTest, AnsweredTasksHaveWrittenTheMemory) {
  constexpr uint64_t kSets = 512;
  constexpr uint64_t kSet = 64;
  CudaMemory x(kSets * kSet * sizeof(float)), out(kSets * kSet * sizeof(float));
  const auto x_buffer = Must(client_->ImportCuda<float>(x.fd(), x.bytes(), uuid_, {kSets * kSet}));
  const auto out_buffer =
      Must(client_->ImportCuda<float>(out.fd(), out.bytes(), uuid_, {kSets * kSet}));
  std::vector<float> values(kSets * kSet);
  const auto lane = Must(client_->OpenLane({.device = 0}));
  client::TaskBatch scale("scale");
  scale.Use(x_buffer, {.shape = {kSet}}).Use(out_buffer, {.shape = {kSet}}).Scalar(2);
  LaneCall call = Must(lane->Prepare(scale, {Varying::Place(0), Varying::Place(1)}));
  for (uint64_t round = 0; round < Scaled(50); ++round) {
    for (uint64_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + round);
    RUN_CUDA(cuMemcpyHtoD, x.address(), values.data(), values.size() * sizeof(float));
    RUN_CUDA(cuMemsetD32, out.address(), 0xffffffff, values.size());
    RUN_CUDA(cuCtxSynchronize);
    std::vector<int64_t> sequences;
    for (uint64_t set = 0; set < kSets; ++set) {
      const uint64_t at = set * kSet * sizeof(float);
      sequences.push_back(
          Must(call.Submit(0, client::PlaceIn{x_buffer, at}, client::PlaceIn{out_buffer, at})));
    }
    for (const int64_t sequence : sequences) {
      const residentd_lane_completion done = Must(lane->Await(sequence));
      ASSERT_TRUE(lane->Ended(done).ok()) << lane->Ended(done);
    }
    std::vector<float> got(values.size());
    RUN_CUDA(cuMemcpyDtoH, got.data(), out.address(), got.size() * sizeof(float));
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < values.size(); ++i) wrong += got[i] != 2 * values[i];
    ASSERT_EQ(wrong, 0u) << round;
  }
}

// Each import is of new memory, which its process frees before the daemon does. The device is
// never parked: nothing waits for that.
TEST_F(CudaMemoryTest, ImportsAndFreesLeaveNothing) {
  ASSERT_TRUE(HasSpareEngine());
  const pid_t engine = daemon_.engine_pid();
  auto own = Must(client_->Allocate<float>({kN}, {.device = 0}));
  std::vector<double> import_us, free_us;
  const auto us_since = [](std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
        .count();
  };
  const auto import = [&](float value) {
    auto memory = std::make_unique<CudaMemory>(kN * sizeof(float));
    memory->Fill(value);
    auto start = std::chrono::steady_clock::now();
    auto buffer = Imported::Import(*client_, uuid_, *memory);
    import_us.push_back(us_since(start));
    memory->Free();
    client::TaskBatch scale("scale");
    scale.Use(buffer).Use(own).Scalar(2);
    const auto done = client_->Run(scale);
    ASSERT_TRUE(done.ok() && done->ok()) << done.status();
    start = std::chrono::steady_clock::now();
    ASSERT_TRUE(buffer.Free().ok());
    free_us.push_back(us_since(start));
  };
  for (int i = 0; i < 20; ++i) import(static_cast<float>(i));
  const uint64_t parks = daemon_.Device().parks();
  const size_t of_engine = CountDescriptors(engine), of_daemon = daemon_.Descriptors();
  ASSERT_GT(of_engine, 0u);
  const uint64_t free = FreeBytes();
  import_us.clear();
  free_us.clear();
  const uint64_t imports = Scaled(1000);
  for (uint64_t i = 0; i < imports; ++i) {
    const auto value = static_cast<float>(i);
    import(value);
    if (HasFatalFailure()) return;
    if (i % 50 == 0) {
      EXPECT_EQ(Must(own.Download()), std::vector<float>(kN, 2 * value));
    }
  }
  // A mapping that was left would hold 2 MiB.
  EXPECT_TRUE(Eventually([&] { return FreeBytes() + (16 << 20) >= free; }))
      << FreeBytes() << " " << free;
  EXPECT_TRUE(Eventually([&] { return CountDescriptors(engine) <= of_engine; }))
      << CountDescriptors(engine) << " " << of_engine;
  EXPECT_TRUE(Eventually([&] { return daemon_.Descriptors() <= of_daemon + 2; }))
      << daemon_.Descriptors() << " " << of_daemon;
  EXPECT_EQ(daemon_.engine_pid(), engine);
  EXPECT_EQ(daemon_.Device().parks(), parks);
  std::sort(import_us.begin(), import_us.end());
  std::sort(free_us.begin(), free_us.end());
  std::printf("import: p50 %.0f us, p99 %.0f us; free: p50 %.0f us; device memory %+.1f MiB\n",
              import_us[imports / 2], import_us[imports * 99 / 100], free_us[imports / 2],
              (static_cast<double>(FreeBytes()) - static_cast<double>(free)) / (1 << 20));
}

// As nvidia-smi and the daemon write it.
std::string UuidText(const uint8_t (&uuid)[16]) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    absl::StrAppend(&text, absl::Hex(uuid[i], absl::kZeroPad2));
  }
  return text;
}

// The pool of the C library: a segment is imported, a task writes it while it is freed here, and
// the process's copy reads another one. Nothing is left, neither of segments nor of imports.
TEST_F(CudaMemoryTest, SegmentsOfThePoolLeaveNothing) {
  ASSERT_TRUE(HasSpareEngine());
  const pid_t engine = daemon_.engine_pid();
  const auto lane = Must(client_->OpenLane({.device = 0}));
  std::vector<double> alloc_us, free_us;
  const auto us_since = [](std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
        .count();
  };
  std::set<uint64_t> ids;
  uint64_t wrong = 0;
  const auto round = [&](uint64_t i) {
    auto start = std::chrono::steady_clock::now();
    void* const address =
        residentd_lane_pool_alloc((i % 3) * (2 << 20) + kN * sizeof(float), 0, nullptr);
    alloc_us.push_back(us_since(start));
    ASSERT_NE(address, nullptr) << residentd_lane_last_error();
    residentd_lane_segment segment{};
    ASSERT_EQ(residentd_lane_pool_find(static_cast<char*>(address) + kN, &segment),
              RESIDENTD_LANE_OK);
    EXPECT_EQ(UuidText(segment.device_uuid), uuid_);
    EXPECT_TRUE(ids.insert(segment.id).second);
    const int fd = residentd_lane_pool_export(segment.id);
    ASSERT_GE(fd, 0) << residentd_lane_last_error();
    auto buffer = Must(client_->ImportCuda<float>(fd, segment.bytes, uuid_, {kN}));
    close(fd);
    client::TaskBatch fill("fill");
    fill.Use(buffer).Scalar(static_cast<double>(i));
    LaneCall call = Must(lane->Prepare(fill, {Varying::Place(0)}));
    ASSERT_TRUE(call(buffer).ok());
    std::vector<float> values(kN);
    RUN_CUDA(cuMemcpyDtoH, values.data(), segment.address, kN * sizeof(float));
    for (const float value : values) wrong += value != static_cast<float>(i);
    // The daemon's tasks use the memory while and after it is freed here.
    std::vector<int64_t> sequences;
    for (int j = 0; j < 20; ++j) sequences.push_back(Must(call.Submit(0, buffer)));
    start = std::chrono::steady_clock::now();
    residentd_lane_pool_free(address, 0, 0, nullptr);
    free_us.push_back(us_since(start));
    for (const int64_t sequence : sequences) {
      const residentd_lane_completion done = Must(lane->Await(sequence));
      ASSERT_TRUE(lane->Ended(done).ok()) << lane->Ended(done);
    }
    uint64_t freed[2];
    ASSERT_EQ(residentd_lane_pool_freed(freed, 2), 1);
    EXPECT_EQ(freed[0], segment.id);
    ASSERT_TRUE(lane->Release(buffer).ok());
    ASSERT_TRUE(lane->Release(call).ok());
    ASSERT_TRUE(buffer.Free().ok());
  };
  for (uint64_t i = 0; i < 20; ++i) {
    round(i);
    if (HasFatalFailure()) return;
  }
  const size_t of_engine = CountDescriptors(engine), of_daemon = daemon_.Descriptors(),
               of_this = CountDescriptors(getpid());
  const uint64_t free = FreeBytes();
  alloc_us.clear();
  free_us.clear();
  const uint64_t rounds = Scaled(1000);
  for (uint64_t i = 0; i < rounds; ++i) {
    round(i);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(wrong, 0u);
  // A segment that was left would hold 2 MiB.
  EXPECT_TRUE(Eventually([&] { return FreeBytes() + (16 << 20) >= free; }))
      << FreeBytes() << " " << free;
  EXPECT_TRUE(Eventually([&] { return CountDescriptors(engine) <= of_engine; }))
      << CountDescriptors(engine) << " " << of_engine;
  EXPECT_TRUE(Eventually([&] { return daemon_.Descriptors() <= of_daemon + 2; }))
      << daemon_.Descriptors() << " " << of_daemon;
  EXPECT_LE(CountDescriptors(getpid()), of_this);
  std::sort(alloc_us.begin(), alloc_us.end());
  std::sort(free_us.begin(), free_us.end());
  std::printf(
      "pool: allocation p50 %.0f us, p99 %.0f us; free: p50 %.0f us; device memory %+.1f MiB\n",
      alloc_us[rounds / 2], alloc_us[rounds * 99 / 100], free_us[rounds / 2],
      (static_cast<double>(FreeBytes()) - static_cast<double>(free)) / (1 << 20));
}

// A thread without a context, as an allocator's caller may be, and one that frees what another one
// allocated.
TEST_F(CudaMemoryTest, ThePoolNeedsNoCurrentContext) {
  void* address = nullptr;
  std::string error;
  std::thread([&] {
    address = residentd_lane_pool_alloc(1, 0, nullptr);
    error = residentd_lane_last_error();
  }).join();
  ASSERT_NE(address, nullptr) << error;
  const auto device = reinterpret_cast<CUdeviceptr>(address);
  RUN_CUDA(cuMemsetD32, device, 7, kN);
  unsigned value = 0;
  RUN_CUDA(cuMemcpyDtoH, &value, device, sizeof(value));
  EXPECT_EQ(value, 7u);
  std::thread([&] { residentd_lane_pool_free(address, 1, 0, nullptr); }).join();
  residentd_lane_segment segment{};
  EXPECT_EQ(residentd_lane_pool_find(address, &segment), RESIDENTD_LANE_INVALID);
  EXPECT_EQ(residentd_lane_pool_alloc(1, 4096, nullptr), nullptr);
  std::printf("refused: %s\n", residentd_lane_last_error());
  EXPECT_EQ(residentd_lane_pool_alloc(size_t{1} << 45, 0, nullptr), nullptr);
  std::printf("refused: %s\n", residentd_lane_last_error());
}

// Ten chains of dependent steps on memory of the GPU, in one lane: the library adds the order.
TEST_F(CudaMemoryTest, OrderedSubmissionsOfDependentTasksAreChains) {
  constexpr uint64_t kChains = 10, kBytes = kN * sizeof(float);
  CudaMemory memory(kChains * kBytes), one(kBytes);
  RUN_CUDA(cuMemsetD32, memory.address(), 0, kChains * kN);
  one.Fill(1);
  const auto sums =
      Must(client_->ImportCuda<float>(memory.fd(), memory.bytes(), uuid_, {kChains, kN}));
  const auto ones = Imported::Import(*client_, uuid_, one);
  const auto lane = Must(client_->OpenLane({.device = 0}));
  client::TaskBatch add("add");
  add.Use(sums, {.shape = {kN}}).Use(ones).Use(sums, {.shape = {kN}}).Scalar(1);
  LaneCall call =
      Must(lane->Prepare(add, {Varying::Place(0), Varying::Place(1), Varying::Place(2)}));
  for (const uint32_t word : {0u, 1u, 2u}) {
    ASSERT_EQ(residentd_lane_set_access(
                  lane->handle(), call.number(), word, kBytes,
                  word == 2 ? RESIDENTD_LANE_ACCESS_WRITE : RESIDENTD_LANE_ACCESS_READ),
              RESIDENTD_LANE_OK);
  }
  const uint64_t steps = Scaled(500);
  const auto started = std::chrono::steady_clock::now();
  for (uint64_t step = 0; step < steps; ++step) {
    for (uint64_t chain = 0; chain < kChains; ++chain) {
      const client::PlaceIn sum{sums, chain * kBytes};
      const auto sequence =
          Must(call.Submit(RESIDENTD_LANE_ORDERED | RESIDENTD_LANE_QUIET, sum, ones, sum));
      if (sequence % 1024 == 1023) {
        ASSERT_TRUE(lane->Await(sequence).ok());
      }
    }
  }
  ASSERT_TRUE(lane->Await(residentd_lane_next(lane->handle()) - 1).ok());
  ASSERT_TRUE(Eventually([&] {
    return residentd_lane_completed(lane->handle()) == residentd_lane_next(lane->handle());
  }));
  std::printf("%lu chains x %lu ordered adds: %.2f us each\n", kChains, steps,
              std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - started)
                      .count() /
                  static_cast<double>(kChains * steps));
  std::vector<float> got(kChains * kN);
  RUN_CUDA(cuMemcpyDtoH, got.data(), memory.address(), got.size() * sizeof(float));
  EXPECT_EQ(got, std::vector<float>(kChains * kN, static_cast<float>(steps)));
}

TEST_F(CudaMemoryTest, ALostEngineIsFollowedByOneWithTheMemory) {
  Imported tensors(*client_, uuid_);
  const auto lane = Must(client_->OpenLane({.device = 0}));
  LaneCall add = tensors.PrepareAdd(*lane);
  tensors.y.Fill(3);
  for (int kills = 0; kills < 2; ++kills) {
    tensors.x.Fill(static_cast<float>(kills));
    ASSERT_TRUE(add(tensors.x_buffer, tensors.y_buffer, tensors.out_buffer).ok());
    EXPECT_EQ(tensors.out.Read(), std::vector<float>(kN, static_cast<float>(kills + 6)));
    // Tasks are in flight.
    std::vector<int64_t> sequences;
    for (int i = 0; i < 200; ++i) {
      sequences.push_back(
          Must(add.Submit(0, tensors.x_buffer, tensors.y_buffer, tensors.out_buffer)));
    }
    const pid_t engine = daemon_.engine_pid();
    kill(engine, SIGKILL);
    ASSERT_TRUE(daemon_.AwaitAnotherEngine(engine));
    for (const int64_t sequence : sequences) {
      const absl::Status status = lane->Ended(Must(lane->Await(sequence)));
      ASSERT_TRUE(status.ok() || absl::IsUnavailable(status) || absl::IsAborted(status)) << status;
    }
    // The contents were never in the engine.
    tensors.out.Fill(-1);
    EXPECT_TRUE(Eventually(
        [&] { return add(tensors.x_buffer, tensors.y_buffer, tensors.out_buffer).ok(); }));
    EXPECT_EQ(tensors.out.Read(), std::vector<float>(kN, static_cast<float>(kills + 6)));
  }
}

TEST_F(CudaMemoryTest, WhatIsNotMemoryOfTheGpuIsRefused) {
  Imported tensors(*client_, uuid_);
  const size_t before = CountDescriptors(daemon_.engine_pid());
  const auto refused = [&](int fd, uint64_t bytes, const std::string& uuid, absl::StatusCode code,
                           const std::string& part) {
    const absl::Status status = client_->ImportCuda<float>(fd, bytes, uuid, {kN}).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    EXPECT_THAT(std::string(status.message()), HasSubstr("Fix: "));
    std::printf("refused: %s\n", status.ToString().c_str());
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const CudaMemory& x = tensors.x;
  refused(x.fd(), x.bytes() + x.granularity(), uuid_, invalid, "allocation_bytes");
  refused(x.fd(), x.bytes() + 1, uuid_, invalid, "allocation_bytes");
  EXPECT_FALSE(client_->ImportCuda<float>(x.fd(), uint64_t{1} << 60, uuid_, {kN}).ok());
  refused(x.fd(), x.bytes(), "GPU-00000000-0000-0000-0000-000000000000",
          absl::StatusCode::kFailedPrecondition, "UUID");
  for (const char* const path : {"/dev/null", "/dev/zero", "/dev/nvidiactl"}) {
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd, 0) << path;
    refused(fd, x.bytes(), uuid_, invalid, "not one of device memory");
    close(fd);
  }
  const int file = memfd_create("memory", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, 4 << 20), 0);
  refused(file, 2 << 20, uuid_, invalid, "not one of device memory");
  close(file);
  // Memory of the host that the driver made, where the machine allows it.
  CUmemGenericAllocationHandle memory = 0;
  const CUmemAllocationProp host = Properties(CU_MEM_LOCATION_TYPE_HOST_NUMA);
  if (GetCudaCalls().cuMemCreate(&memory, x.bytes(), &host, 0) == CUDA_SUCCESS) {
    int fd = -1;
    RUN_CUDA(cuMemExportToShareableHandle, &fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
             0);
    refused(fd, x.bytes(), uuid_, invalid, "device memory");
    close(fd);
    RUN_CUDA(cuMemRelease, memory);
  } else {
    std::printf("memory of the host cannot be made here\n");
  }
  EXPECT_TRUE(Eventually([&] { return CountDescriptors(daemon_.engine_pid()) <= before; }));
  ExpectServes();
}

// Without identities, and on the loopback interface.
TEST_F(CudaMemoryTest, AHandleIsImported) {
  CUdeviceptr address = 0;
  RUN_CUDA(cuMemAlloc, &address, kN * sizeof(float));
  CUipcMemHandle handle{};
  RUN_CUDA(cuIpcGetMemHandle, &handle, address);
  const Client client(daemon_);
  v1::ImportCudaRequest request;
  request.set_ipc_handle(&handle, sizeof(handle));
  request.set_allocation_bytes(kN * sizeof(float));
  request.set_dtype(v1::DTYPE_F32);
  request.add_shape(kN);
  request.set_device_uuid(uuid_);
  v1::ImportCudaResponse response;
  const grpc::Status imported =
      client.buffers().ImportCuda(client.Context().get(), request, &response);
  ASSERT_TRUE(imported.ok()) << imported.error_message();
  v1::Batch batch;
  batch.mutable_tasks()->set_operator_("fill");
  batch.mutable_tasks()->set_count(1);
  v1::BufferColumn& column = *batch.mutable_tasks()->add_arguments()->mutable_buffer();
  column.add_buffer_ids(response.buffer().id());
  column.add_shape(kN);
  batch.mutable_tasks()->add_arguments()->mutable_scalar()->add_f64(7);
  const RunOutcome outcome = client.Run(batch);
  ASSERT_EQ(outcome.status(0), v1::TASK_STATUS_OK) << outcome.message();
  std::vector<float> values(kN);
  RUN_CUDA(cuMemcpyDtoH, values.data(), address, kN * sizeof(float));
  EXPECT_EQ(values, std::vector<float>(kN, 7));
  RUN_CUDA(cuMemFree, address);
}

// --- Streams -------------------------------------------------------------------------------------

// A stream with tensors, and memory of the host for its results.
struct StreamTensors {
  StreamTensors(client::Client& client, const std::string& uuid, uint64_t rounds)
      : tensors(client, uuid) {
    RUN_CUDA(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    void* host = nullptr;
    RUN_CUDA(cuMemHostAlloc, &host, rounds * kN * sizeof(float), 0);
    results = static_cast<float*>(host);
    tensors.y.Fill(0.5);
  }
  ~StreamTensors() {
    RUN_CUDA(cuMemFreeHost, results);
    RUN_CUDA(cuStreamDestroy, stream);
  }
  // Enqueues memset, lane add, copy.
  void Enqueue(Lane& lane, LaneCall& add, uint64_t round, float value) {
    unsigned bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    RUN_CUDA(cuMemsetD32Async, tensors.x.address(), bits, kN, stream);
    ASSERT_EQ(residentd_lane_stream_begin(lane.handle(), stream), RESIDENTD_LANE_OK)
        << residentd_lane_last_error();
    const auto submitted =
        add.Submit(RESIDENTD_LANE_QUIET, tensors.x_buffer, tensors.y_buffer, tensors.out_buffer);
    ASSERT_TRUE(submitted.ok()) << submitted.status();
    ASSERT_EQ(residentd_lane_stream_end(lane.handle(), stream), RESIDENTD_LANE_OK)
        << residentd_lane_last_error();
    RUN_CUDA(cuMemcpyDtoHAsync, results + round * kN, tensors.out.address(), kN * sizeof(float),
             stream);
  }

  Imported tensors;
  CUstream stream = nullptr;
  float* results = nullptr;
};

// The processor enqueues everything and waits once; each value is checked.
TEST_F(CudaMemoryTest, TasksRunInTheOrderOfAStream) {
  const uint64_t rounds = Scaled(400);
  for (const uint64_t streams : {1, 4}) {
    std::vector<std::unique_ptr<StreamTensors>> all;
    for (uint64_t s = 0; s < streams; ++s) {
      all.push_back(std::make_unique<StreamTensors>(*client_, uuid_, rounds));
    }
    const auto lane = Must(client_->OpenLane({.device = 0}));
    LaneCall add = all[0]->tensors.PrepareAdd(*lane);
    const auto started = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < rounds; ++i) {
      for (uint64_t s = 0; s < streams; ++s) {
        all[s]->Enqueue(*lane, add, i, static_cast<float>(i * streams + s));
        if (HasFatalFailure()) return;
      }
      // At most half of the slots are in use.
      const int64_t behind = residentd_lane_next(lane->handle()) - 2048;
      if (i % 100 == 99 && behind > 0) {
        ASSERT_TRUE(lane->Await(behind).ok());
      }
    }
    uint64_t wrong = 0;
    for (uint64_t s = 0; s < streams; ++s) {
      RUN_CUDA(cuStreamSynchronize, all[s]->stream);
      EXPECT_EQ(residentd_lane_get_failed(lane->handle(), 31 - static_cast<uint32_t>(s)), 0u);
      for (uint64_t i = 0; i < rounds; ++i) {
        for (uint64_t j = 0; j < kN; ++j) {
          wrong += all[s]->results[i * kN + j] != static_cast<float>(i * streams + s + 1);
        }
      }
    }
    EXPECT_EQ(wrong, 0u) << streams;
    std::printf(
        "%lu streams x %lu x {memset, lane add, copy}: %.0f us each\n", streams, rounds,
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - started)
                .count() /
            static_cast<double>(rounds * streams));
  }
}

TEST_F(CudaMemoryTest, ACapturedStreamIsRefused) {
  StreamTensors one(*client_, uuid_, 1);
  const auto lane = Must(client_->OpenLane({.device = 0}));
  LaneCall add = one.tensors.PrepareAdd(*lane);
  RUN_CUDA(cuStreamBeginCapture, one.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  for (const auto& call : {residentd_lane_stream_begin, residentd_lane_stream_end}) {
    EXPECT_EQ(call(lane->handle(), one.stream), RESIDENTD_LANE_INVALID);
    EXPECT_THAT(residentd_lane_last_error(), HasSubstr("captured"));
  }
  CUgraph graph = nullptr;
  RUN_CUDA(cuStreamEndCapture, one.stream, &graph);
  if (graph != nullptr) RUN_CUDA(cuGraphDestroy, graph);
  one.Enqueue(*lane, add, 0, 4);
  RUN_CUDA(cuStreamSynchronize, one.stream);
  EXPECT_EQ(one.results[kN - 1], 5);
}

// A stream does not wait for ever for a daemon that was killed.
TEST_F(CudaMemoryTest, AStreamGoesOnWhenTheDaemonIsKilled) {
  constexpr uint64_t kRounds = 200;
  StreamTensors one(*client_, uuid_, kRounds);
  const auto lane = Must(client_->OpenLane({.device = 0}));
  LaneCall add = one.tensors.PrepareAdd(*lane);
  one.Enqueue(*lane, add, 0, 1);
  RUN_CUDA(cuStreamSynchronize, one.stream);
  for (uint64_t i = 0; i < kRounds; ++i) {
    one.Enqueue(*lane, add, i, 1);
    if (HasFatalFailure()) return;
  }
  daemon_.Kill(SIGKILL);
  ASSERT_TRUE(daemon_.Wait().has_value());
  RUN_CUDA(cuStreamSynchronize, one.stream);
  EXPECT_EQ(residentd_lane_get_signal(lane->handle(), 31), kRounds + 1);
  // Nor does it from now on.
  (void)residentd_lane_stream_end(lane->handle(), one.stream);
  RUN_CUDA(cuStreamSynchronize, one.stream);
}

// Runs in a child process: imports memory and submits until it is killed. Writes a byte to `ready`
// when it has begun.
[[noreturn]] void SubmitUntilKilled(const std::string& address, const std::string& uuid,
                                    int ready) {
  alarm(kTestSeconds);
  OpenContext();
  const auto client = Must(client::Client::Connect(address));
  Imported tensors(*client, uuid);
  const auto lane = Must(client->OpenLane({.device = 0}));
  LaneCall add = tensors.PrepareAdd(*lane);
  if (!add(tensors.x_buffer, tensors.y_buffer, tensors.out_buffer).ok()) _exit(3);
  if (write(ready, "r", 1) != 1) _exit(4);
  while (true) {
    (void)add.Submit(RESIDENTD_LANE_QUIET, tensors.x_buffer, tensors.y_buffer, tensors.out_buffer);
  }
}

TEST_F(CudaMemoryTest, AKilledClientsMemoryIsReleased) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  size_t of_engine = 0, of_daemon = 0;
  uint64_t free = 0;
  ASSERT_TRUE(HasSpareEngine());
  for (uint64_t i = 0; i < Scaled(6); ++i) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      execl(program.c_str(), program.c_str(), "--cuda_client", daemon_.address().c_str(),
            uuid_.c_str(), std::to_string(ready[1]).c_str(), nullptr);
      _exit(127);
    }
    close(ready[1]);
    char byte;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    std::this_thread::sleep_for(std::chrono::milliseconds(i * 3));
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    // This test's own client has no session.
    ASSERT_TRUE(Eventually([&] { return daemon_.Status().clients_size() == 0; }));
    if (i == 1) {
      ASSERT_TRUE(Eventually([&] { return daemon_.Figure("resident_lanes{device=\"0\"}") == 0; }));
      of_engine = CountDescriptors(daemon_.engine_pid());
      of_daemon = daemon_.Descriptors();
      free = FreeBytes();
    }
  }
  EXPECT_TRUE(Eventually([&] { return CountDescriptors(daemon_.engine_pid()) <= of_engine; }))
      << CountDescriptors(daemon_.engine_pid()) << " " << of_engine;
  EXPECT_TRUE(Eventually([&] { return daemon_.Descriptors() <= of_daemon + 2; }))
      << daemon_.Descriptors() << " " << of_daemon;
  EXPECT_TRUE(Eventually([&] { return FreeBytes() + (8 << 20) >= free; }))
      << FreeBytes() << " " << free;
  ExpectServes();
}

}  // namespace
}  // namespace resident::testing

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "--cuda_client") {
    resident::testing::SubmitUntilKilled(argv[2], argv[3], std::atoi(argv[4]));
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
