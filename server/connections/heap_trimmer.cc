#include "server/connections/heap_trimmer.h"

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace resident {
namespace {

// Resident memory of this process; 0: unknown.
uint64_t ResidentBytes() {
  FILE* const file = fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  unsigned long long size = 0, resident = 0;
  const bool read = fscanf(file, "%llu %llu", &size, &resident) == 2;
  fclose(file);
  return read ? resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace

HeapTrimmer::HeapTrimmer(std::function<uint64_t()> ended)
    : ended_(std::move(ended)),
      ended_at_start_(ended_()),
      bytes_at_start_(ResidentBytes()),
      thread_([this] {
        pthread_setname_np(pthread_self(), "resident-trim");
        Run();
      }) {}

HeapTrimmer::~HeapTrimmer() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

void HeapTrimmer::Run() {
  uint64_t ended_before = ended_at_start_;
  absl::Duration wait = absl::FromChrono(kCheckInterval);
  absl::MutexLock lock(&mu_);
  while (!mu_.AwaitWithTimeout(absl::Condition(&stop_), wait)) {
    wait = absl::FromChrono(kCheckInterval);
    const uint64_t ended = ended_();
    const uint64_t before = ResidentBytes();
    if (ended == ended_before || before < bytes_at_start_ + kWorthwhileBytes) continue;
    ended_before = ended;
    const absl::Time began = absl::Now();
    malloc_trim(0);
    wait = std::max(wait, kWaitFactor * (absl::Now() - began));
    if (ResidentBytes() + kLittleBytes > before) {
      wait = std::max(wait, absl::FromChrono(kWaitAfterLittle));
    }
  }
}

}  // namespace resident
