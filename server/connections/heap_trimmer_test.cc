#include "server/connections/heap_trimmer.h"

#include <gtest/gtest.h>
#include <stdio.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <vector>

#include "tests/support/eventually.h"

namespace resident {
namespace {

using testing::Eventually;

TEST(HeapTrimmerTest, FreedMemoryIsReleasedOnceConnectionsHaveEnded) {
  std::atomic<uint64_t> ended{0};
  const auto resident = [] {
    FILE* const file = fopen("/proc/self/statm", "r");
    unsigned long long size = 0, pages = 0;
    EXPECT_EQ(fscanf(file, "%llu %llu", &size, &pages), 2);
    fclose(file);
    return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  };
  HeapTrimmer trimmer([&] { return ended.load(); });
  const uint64_t before = resident();
  // The last piece of each group stays allocated, so that glibc releases nothing by itself.
  std::vector<void*> freed, kept;
  constexpr size_t kPieces = 200'000, kBytes = 1024;
  for (size_t i = 0; i < kPieces; ++i) {
    void* const piece = malloc(kBytes);
    static_cast<char*>(piece)[0] = 1;
    (i % 1000 == 999 ? kept : freed).push_back(piece);
  }
  for (void* const piece : freed) free(piece);
  ASSERT_GT(resident(), before + kPieces * kBytes / 2);
  ++ended;
  EXPECT_TRUE(Eventually([&] { return resident() < before + kPieces * kBytes / 4; }));
  for (void* const piece : kept) free(piece);
}

}  // namespace
}  // namespace resident
