#include "runtime/compile/object_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace resident {
namespace {

namespace fs = std::filesystem;

std::string Folder() {
  return absl::StrCat(getenv("TEST_TMPDIR"), "/",
                      ::testing::UnitTest::GetInstance()->current_test_info()->name());
}
std::string Key(char digit) { return std::string(64, digit); }

std::unique_ptr<ObjectCache> OpenCache(uint64_t bytes = 1 << 20) {
  auto opened = ObjectCache::Open(Folder(), bytes);
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

TEST(ObjectCache, KeepsEntriesAcrossRestarts) {
  EXPECT_EQ(OpenCache()->Get(Key('a')), std::nullopt);
  ASSERT_TRUE(OpenCache()->Put(Key('a'), std::string("x\0y", 3)).ok());
  EXPECT_EQ(OpenCache()->Get(Key('a')), std::string("x\0y", 3));
  EXPECT_EQ(OpenCache()->Get(Key('b')), std::nullopt);
}

TEST(ObjectCache, DamagedEntryIsNotFoundAndRemoved) {
  auto cache = OpenCache();
  ASSERT_TRUE(cache->Put(Key('a'), std::string(1000, 'x')).ok());
  const std::string path = Folder() + "/" + Key('a');
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(500);
    file << 'y';
  }
  EXPECT_EQ(cache->Get(Key('a')), std::nullopt);
  EXPECT_FALSE(fs::exists(path));
  ASSERT_TRUE(cache->Put(Key('a'), std::string(1000, 'x')).ok());
  fs::resize_file(path, 20);
  EXPECT_EQ(cache->Get(Key('a')), std::nullopt);
  EXPECT_FALSE(fs::exists(path));
}

TEST(ObjectCache, OverTheLimitTheLeastRecentlyUsedAreRemoved) {
  auto cache = OpenCache(10'000);
  for (const char digit : {'a', 'b', 'c'}) {
    ASSERT_TRUE(cache->Put(Key(digit), std::string(2'000, digit)).ok());
    // File times may be coarse, so set when each entry was used.
    timespec times[2] = {{digit, 0}, {digit, 0}};
    utimensat(AT_FDCWD, (Folder() + "/" + Key(digit)).c_str(), times, 0);
  }
  EXPECT_NE(cache->Get(Key('a')), std::nullopt);  // Used now.
  ASSERT_TRUE(cache->Put(Key('d'), std::string(4'000, 'd')).ok());
  EXPECT_LE(cache->bytes(), 10'000u);
  EXPECT_NE(cache->Get(Key('a')), std::nullopt);
  EXPECT_EQ(cache->Get(Key('b')), std::nullopt);
  EXPECT_NE(cache->Get(Key('d')), std::nullopt);
}

TEST(ObjectCache, SeveralCachesShareOneFolder) {
  std::atomic<int> hits{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, &hits] {
      auto cache = OpenCache(20'000);
      for (int i = 0; i < 100; ++i) {
        const char digit = static_cast<char>('0' + (i + t) % 10);
        EXPECT_TRUE(cache->Put(Key(digit), std::string(1'500, digit)).ok());
        const auto found = cache->Get(Key(digit));
        hits += found.has_value();
        EXPECT_EQ(found.value_or(std::string(1'500, digit)), std::string(1'500, digit));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(hits, 0);
}

TEST(ObjectCache, FolderThatCannotBeUsedIsAnError) {
  const auto opened = ObjectCache::Open("/dev/null/cache", 1000);
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace resident
