#include "runtime/compile/process_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "runtime/compile/host_compiler.h"
#include "tests/support/temp_folder.h"

namespace resident {
namespace {

namespace fs = std::filesystem;

constexpr size_t kAhead = 2;

// Each process has a folder of its own in `folder`.
CompileProcessOptions Options(const std::string& folder) {
  CompileProcessOptions options;
  auto host = FindHostCompiler("");
  EXPECT_TRUE(host.ok()) << host.status();
  if (host.ok()) options.host = *std::move(host);
  options.work_folder = folder;
  options.program = "runtime/compile/compile_for_test";
  return options;
}

std::set<std::string> FoldersIn(const std::string& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    names.insert(entry.path().filename());
  }
  return names;
}

TEST(ProcessPool, ConcurrentRefillsStartNoMoreThanAreKept) {
  const testing::TempFolder work("pool");
  ProcessPool pool(Options(work.path()), kAhead);
  std::vector<std::thread> refills;
  for (int i = 0; i < 8; ++i) refills.emplace_back([&] { pool.Refill(); });
  for (std::thread& refill : refills) refill.join();
  EXPECT_EQ(FoldersIn(work.path()).size(), kAhead);
}

TEST(ProcessPool, AReturnedProcessEndsAndAnotherTakesItsPlace) {
  const testing::TempFolder work("pool");
  ProcessPool pool(Options(work.path()), kAhead);
  pool.Refill();
  const std::set<std::string> first = FoldersIn(work.path());
  for (size_t i = 0; i < kAhead; ++i) {
    auto process = pool.Take();
    ASSERT_TRUE(process.ok()) << process.status();
    pool.Return(*std::move(process));
  }
  const auto all_are_new = [&] {
    const std::set<std::string> now = FoldersIn(work.path());
    return now.size() == kAhead && std::none_of(now.begin(), now.end(), [&](const auto& name) {
             return first.count(name) != 0;
           });
  };
  while (!all_are_new()) std::this_thread::yield();
}

TEST(ProcessPool, ProcessesThatWereReturnedEndWithThePool) {
  const testing::TempFolder work("pool");
  {
    ProcessPool pool(Options(work.path()), kAhead);
    auto process = pool.Take();
    ASSERT_TRUE(process.ok()) << process.status();
    pool.Return(*std::move(process));
    pool.Return(nullptr);
  }
  EXPECT_TRUE(FoldersIn(work.path()).empty());
}

}  // namespace
}  // namespace resident
