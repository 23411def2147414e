// An engine in the test's own process, with its ring and queue: for tests and
// benchmarks of everything below the processes.
//
// RESIDENT_TEST_ENGINE=cpu|cuda chooses the engine (default cpu), so that the same
// tests run on a GPU; RESIDENT_TEST_THREADS_PER_BLOCK is as the daemon's flag.
//
// Thread safety: as the objects it holds.
#ifndef RESIDENT_TESTS_SUPPORT_ENGINE_HARNESS_H_
#define RESIDENT_TESTS_SUPPORT_ENGINE_HARNESS_H_

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/layout/task.h"
#include "runtime/engine/engine.h"
#include "runtime/queue/batch.h"
#include "runtime/ring/host_ring.h"
#include "runtime/ring/shared_region.h"

namespace resident::testing {

class EngineHarness {
 public:
  struct Options {
    uint32_t ring_slots = 1024;
    uint64_t staging_bytes = uint64_t{16} << 20;
    EngineOptions engine;
  };

  // Starts the engine; aborts the test program with a message if it cannot.
  explicit EngineHarness(Options options);
  ~EngineHarness();

  Engine& engine() { return *engine_; }
  const EngineInfo& info() const { return info_; }
  const std::shared_ptr<SharedRegion>& region() const { return region_; }
  // A ring that continues where the kernel stands. At most one at a time is in use.
  std::shared_ptr<HostRing> NewRing();
  // Wakes workers that sleep: after Publish(), for a test that has no queue.
  void Ring();

  // Staging memory, never freed: where operators see it, and where the test does.
  struct Span {
    uint64_t address;
    uint8_t* host;
    template <typename T>
    T* as() const {
      return reinterpret_cast<T*>(host);
    }
  };
  Span Staging(uint64_t bytes);
  // Device memory, never freed. Only operators can reach it.
  uint64_t Memory(uint64_t bytes);

 private:
  std::shared_ptr<SharedRegion> region_;
  std::unique_ptr<Engine> engine_;
  EngineInfo info_;
  uint64_t staging_used_ = 0;
  uint64_t memory_used_ = 0;
};

// Slot of a built-in or test operator by name; aborts if there is none.
uint32_t OperatorSlot(const std::string& name);

// A compact task: n elements, then up to four arguments.
TaskDescriptor CompactTask(uint32_t operator_slot, uint64_t n,
                           std::initializer_list<uint64_t> arguments);
inline uint64_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Arguments of a task in the arguments form.
Argument DenseTensor(uint64_t address, DType dtype, std::initializer_list<int64_t> shape);
Argument Scalar(uint64_t bits);
TaskDescriptor ArgumentTask(uint32_t operator_slot, uint32_t arguments, uint32_t chunks);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_SUPPORT_ENGINE_HARNESS_H_
