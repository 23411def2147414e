// The pool of device memory of libresidentd_lane, with a driver that the test plays (fake_cuda.cc).
// tests/gpu/cuda_memory_test.cc has the test with a GPU and a daemon.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/lane/residentd_lane.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/lanes/fake_cuda.h"

namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr uint64_t kGranularity = 2 << 20;

class LanePoolTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    library_ = dlopen("tests/lanes/libfake_cuda.so", RTLD_NOW | RTLD_GLOBAL);
    ASSERT_NE(library_, nullptr) << dlerror();
  }
  ~LanePoolTest() override {
    EXPECT_EQ(allocations_(), 0);
    EXPECT_THAT(PopAll(), ::testing::IsEmpty());
  }
  template <typename Function>
  static Function* Find(const char* name) {
    void* const found = dlsym(library_, name);
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<Function*>(found);
  }

  static void* Alloc(size_t bytes, int device = 0) {
    return residentd_lane_pool_alloc(bytes, device, nullptr);
  }
  static void Free(void* address) { residentd_lane_pool_free(address, 1, 0, nullptr); }
  static residentd_lane_segment FindSegment(const void* address) {
    residentd_lane_segment segment{};
    EXPECT_EQ(residentd_lane_pool_find(address, &segment), RESIDENTD_LANE_OK)
        << residentd_lane_last_error();
    return segment;
  }
  static std::vector<uint64_t> PopAll() {
    std::vector<uint64_t> all;
    uint64_t ids[7];
    int popped = 0;
    while ((popped = residentd_lane_pool_freed(ids, 7)) > 0) {
      all.insert(all.end(), ids, ids + popped);
    }
    EXPECT_EQ(popped, 0);
    return all;
  }
  static void ExpectError(const std::string& part) {
    EXPECT_THAT(residentd_lane_last_error(), HasSubstr(part));
    EXPECT_THAT(residentd_lane_last_error(), HasSubstr("Fix: "));
  }

  static void* library_;
  decltype(&FakeCudaAllocations) allocations_ =
      Find<decltype(FakeCudaAllocations)>("FakeCudaAllocations");
  decltype(&FakeCudaFailAt) fail_at_ = Find<decltype(FakeCudaFailAt)>("FakeCudaFailAt");
};
void* LanePoolTest::library_ = nullptr;

TEST_F(LanePoolTest, ASegmentIsFoundByEachOfItsAddresses) {
  auto* const first = static_cast<char*>(Alloc(1000, 1));
  auto* const second = static_cast<char*>(Alloc(kGranularity + 1));
  ASSERT_NE(first, nullptr) << residentd_lane_last_error();
  ASSERT_NE(second, nullptr) << residentd_lane_last_error();
  const residentd_lane_segment segment = FindSegment(first);
  EXPECT_EQ(segment.address, reinterpret_cast<uint64_t>(first));
  EXPECT_EQ(segment.bytes, kGranularity);
  EXPECT_EQ(segment.device, 1);
  EXPECT_THAT(segment.device_uuid, Each(2));
  EXPECT_EQ(FindSegment(first + kGranularity - 1).id, segment.id);
  EXPECT_EQ(FindSegment(second).bytes, 2 * kGranularity);
  EXPECT_EQ(FindSegment(second + 2 * kGranularity - 1).id, FindSegment(second).id);
  EXPECT_NE(FindSegment(second).id, segment.id);
  // Between mappings of the process, or in the other segment.
  residentd_lane_segment other{};
  if (residentd_lane_pool_find(first + kGranularity, &other) == RESIDENTD_LANE_OK) {
    EXPECT_NE(other.id, segment.id);
  }
  for (const void* const address : {static_cast<void*>(nullptr), static_cast<void*>(&other)}) {
    EXPECT_EQ(residentd_lane_pool_find(address, &other), RESIDENTD_LANE_INVALID);
    ExpectError("in no segment");
  }
  Free(first);
  EXPECT_EQ(residentd_lane_pool_find(first, &other), RESIDENTD_LANE_INVALID);
  Free(second);
}

TEST_F(LanePoolTest, ADescriptorKeepsTheMemoryOfAFreedSegment) {
  auto* const address = static_cast<char*>(Alloc(1));
  ASSERT_NE(address, nullptr);
  const uint64_t id = FindSegment(address).id;
  const int descriptor = residentd_lane_pool_export(id);
  const int second = residentd_lane_pool_export(id);
  ASSERT_GE(descriptor, 0) << residentd_lane_last_error();
  ASSERT_GE(second, 0);
  EXPECT_NE(descriptor, second);
  EXPECT_EQ(fcntl(descriptor, F_GETFD), FD_CLOEXEC);
  strcpy(address, "written");
  EXPECT_THAT(PopAll(), ::testing::IsEmpty());
  Free(address);
  EXPECT_EQ(allocations_(), 0);
  void* const again = mmap(nullptr, kGranularity, PROT_READ, MAP_SHARED, descriptor, 0);
  EXPECT_STREQ(static_cast<char*>(again), "written");
  munmap(again, kGranularity);
  close(descriptor);
  close(second);
  EXPECT_EQ(residentd_lane_pool_export(id), RESIDENTD_LANE_INVALID);
  ExpectError("no segment");
  EXPECT_EQ(PopAll(), std::vector<uint64_t>{id});
}

TEST_F(LanePoolTest, FreedSegmentsArePoppedInTheirOrderIfTheyWereExported) {
  std::vector<void*> addresses;
  std::vector<uint64_t> exported;
  for (int i = 0; i < 20; ++i) {
    addresses.push_back(Alloc(1));
    if (i % 2 == 0) {
      exported.push_back(FindSegment(addresses.back()).id);
      close(residentd_lane_pool_export(exported.back()));
    }
  }
  for (void* const address : addresses) Free(address);
  EXPECT_EQ(residentd_lane_pool_freed(nullptr, 0), 0);
  EXPECT_EQ(PopAll(), exported);
}

// An address that another thread gets is not yet known by its old id.
TEST_F(LanePoolTest, AFreeWaitsForTheDeviceAndListsTheIdBefore) {
  const auto create = Find<decltype(FakeCudaCreateStream)>("FakeCudaCreateStream");
  const auto enqueue = Find<decltype(FakeCudaEnqueue)>("FakeCudaEnqueue");
  const auto destroy = Find<decltype(FakeCudaDestroyStream)>("FakeCudaDestroyStream");
  void* const address = Alloc(1);
  const uint64_t id = FindSegment(address).id;
  close(residentd_lane_pool_export(id));
  const uint64_t* const changes = residentd_lane_pool_changes();
  const uint64_t before = *changes;
  std::atomic<bool> go{false};
  void* const stream = create(nullptr);
  enqueue(
      stream,
      [](void* flag) {
        while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
      },
      &go);
  std::thread freeing([&] { Free(address); });
  while (__atomic_load_n(changes, __ATOMIC_ACQUIRE) == before) std::this_thread::yield();
  EXPECT_EQ(PopAll(), std::vector<uint64_t>{id});
  EXPECT_EQ(allocations_(), 3);
  go = true;
  freeing.join();
  EXPECT_EQ(allocations_(), 0);
  EXPECT_EQ(*changes, before + 1);
  destroy(stream);
}

TEST_F(LanePoolTest, AnAddressThatIsUsedAgainHasANewId) {
  std::set<uint64_t> ids;
  std::set<void*> addresses;
  for (int i = 0; i < 500; ++i) {
    void* const address = Alloc(1);
    addresses.insert(address);
    EXPECT_TRUE(ids.insert(FindSegment(address).id).second);
    Free(address);
  }
  EXPECT_LT(addresses.size(), ids.size());
}

TEST_F(LanePoolTest, AnAllocationThatFailsLeavesNothing) {
  const char* const calls[] = {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"};
  void* const held = Alloc(1);
  const int before = allocations_();
  for (int i = 0; i < 4; ++i) {
    fail_at_(i + 1);
    EXPECT_EQ(Alloc(1), nullptr);
    ExpectError(calls[i]);
    EXPECT_EQ(allocations_(), before) << calls[i];
  }
  fail_at_(0);
  EXPECT_EQ(Alloc(1, 2), nullptr);
  ExpectError("cuDeviceGet");
  EXPECT_EQ(Alloc(1, -1), nullptr);
  EXPECT_EQ(Alloc(0), nullptr);
  ExpectError("0 bytes");
  EXPECT_EQ(Alloc(~size_t{0}), nullptr);
  ExpectError("bytes");
  Free(nullptr);
  Free(static_cast<char*>(held) + 1);
  ExpectError("no segment begins");
  uint64_t id = 0;
  EXPECT_EQ(residentd_lane_pool_freed(&id, -1), RESIDENTD_LANE_INVALID);
  EXPECT_EQ(residentd_lane_pool_export(~uint64_t{0}), RESIDENTD_LANE_INVALID);
  EXPECT_EQ(allocations_(), before);
  Free(held);
}

TEST_F(LanePoolTest, SegmentsThatWereNotPoppedHaveALimit) {
  constexpr int kLimit = 65536;
  for (int i = 0; i < kLimit; ++i) {
    void* const address = Alloc(1);
    ASSERT_NE(address, nullptr) << residentd_lane_last_error();
    close(residentd_lane_pool_export(FindSegment(address).id));
    Free(address);
  }
  EXPECT_EQ(Alloc(1), nullptr);
  ExpectError("residentd_lane_pool_freed");
  uint64_t id = 0;
  EXPECT_EQ(residentd_lane_pool_freed(&id, 1), 1);
  void* const address = Alloc(1);
  EXPECT_NE(address, nullptr);
  Free(address);
  EXPECT_EQ(PopAll().size(), kLimit - 1u);
}

TEST_F(LanePoolTest, ThreadsUseItAtTheSameTime) {
  constexpr int kThreads = 4, kRounds = 2000;
  std::vector<std::thread> threads;
  std::vector<std::vector<uint64_t>> exported(kThreads);
  std::atomic<int> wrong{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(static_cast<unsigned>(t + 1));
      std::vector<char*> held;
      const auto release = [&] {
        std::swap(held[random() % held.size()], held.back());
        // No other thread has it, or wrote to it.
        wrong += held.back()[7] != static_cast<char>(t + 1);
        Free(held.back());
        held.pop_back();
      };
      for (int i = 0; i < kRounds; ++i) {
        auto* const address = static_cast<char*>(Alloc(1 + random() % (3 * kGranularity)));
        if (address == nullptr) {
          ++wrong;
          continue;
        }
        address[7] = static_cast<char>(t + 1);
        residentd_lane_segment segment{};
        wrong += residentd_lane_pool_find(address + 7, &segment) != RESIDENTD_LANE_OK ||
                 segment.address != reinterpret_cast<uint64_t>(address);
        if (random() % 2 == 0) {
          const int descriptor = residentd_lane_pool_export(segment.id);
          wrong += descriptor < 0;
          close(descriptor);
          exported[t].push_back(segment.id);
        }
        held.push_back(address);
        while (held.size() > random() % 8) release();
      }
      while (!held.empty()) release();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  std::vector<uint64_t> all, popped = PopAll();
  for (const auto& ids : exported) all.insert(all.end(), ids.begin(), ids.end());
  std::sort(all.begin(), all.end());
  std::sort(popped.begin(), popped.end());
  EXPECT_EQ(all, popped);
}

// Also while another thread is inside of the pool.
TEST_F(LanePoolTest, AChildOfForkCannotUseIt) {
  auto* const address = static_cast<char*>(Alloc(1));
  const uint64_t id = FindSegment(address).id;
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    residentd_lane_segment segment;
    while (!stop) residentd_lane_pool_find(address, &segment);
  });
  for (int i = 0; i < 50; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(60);
      residentd_lane_segment segment;
      uint64_t ids[1];
      Free(address);
      const bool refused = residentd_lane_pool_find(address, &segment) == RESIDENTD_LANE_FORKED &&
                           residentd_lane_pool_export(id) == RESIDENTD_LANE_FORKED &&
                           residentd_lane_pool_freed(ids, 1) == RESIDENTD_LANE_FORKED &&
                           Alloc(1) == nullptr &&
                           strstr(residentd_lane_last_error(), "fork()") != nullptr;
      _exit(refused && allocations_() == 3 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  busy.join();
  EXPECT_EQ(FindSegment(address).id, id);
  Free(address);
}

}  // namespace
