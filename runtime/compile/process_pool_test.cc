#include "runtime/compile/process_pool.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <thread>
#include <vector>

#include "runtime/compile/host_compiler.h"
#include "tests/support/temp_folder.h"

namespace resident {
namespace {

namespace fs = std::filesystem;

TEST(ProcessPool, ConcurrentRefillsStartNoMoreThanAreKept) {
  constexpr size_t kAhead = 2;
  const testing::TempFolder work("pool");
  CompileProcessOptions options;
  auto host = FindHostCompiler("");
  ASSERT_TRUE(host.ok()) << host.status();
  options.host = *std::move(host);
  options.work_folder = work.path();
  options.program = "runtime/compile/compile_for_test";
  ProcessPool pool(options, kAhead);
  std::vector<std::thread> refills;
  for (int i = 0; i < 8; ++i) refills.emplace_back([&] { pool.Refill(); });
  for (std::thread& refill : refills) refill.join();
  // Each process has a folder of its own.
  EXPECT_EQ(std::distance(fs::directory_iterator(work.path()), fs::directory_iterator()),
            static_cast<ptrdiff_t>(kAhead));
}

}  // namespace
}  // namespace resident
