// An engine in the test's own process, with its ring and queue: for tests and benchmarks of
// the code below the processes.
//
// RESIDENT_TEST_ENGINE=cpu|cuda selects the engine (default cpu), so that the same tests
// run on a GPU; RESIDENT_TEST_THREADS_PER_BLOCK has the meaning of the daemon's flag.
//
// Thread safety: that of the objects it owns.
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
  // Loads a generation and starts the kernel with it, so that it can be made when the target of its
  // operators is known. Aborts like the constructor. REQUIRES: options.engine.start_parked; the
  // first call.
  void Launch(std::shared_ptr<const Generation> generation);
  ~EngineHarness();

  Engine& engine() { return *engine_; }
  const EngineInfo& info() const { return info_; }
  const std::shared_ptr<SharedRegion>& region() const { return region_; }
  // Creates a ring that continues at the kernel's position. Only one may be in use at a
  // time.
  std::shared_ptr<HostRing> NewRing();
  // Wakes sleeping workers: call it after Publish(), in a test without a queue.
  void Ring();

  // Allocates staging memory, which is never freed: its address for operators, and for the
  // test.
  struct Span {
    uint64_t address;
    uint8_t* host;
    template <typename T>
    T* as() const {
      return reinterpret_cast<T*>(host);
    }
  };
  Span Staging(uint64_t bytes);
  // Allocates device memory, which is never freed. Only operators can access it.
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
inline uint64_t Bits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Arguments of a task in the arguments form.
Argument DenseTensor(uint64_t address, DType dtype, std::initializer_list<int64_t> shape);
Argument Scalar(uint64_t bits);
TaskDescriptor ArgumentTask(uint32_t operator_slot, uint32_t arguments, uint32_t chunks);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_SUPPORT_ENGINE_HARNESS_H_
