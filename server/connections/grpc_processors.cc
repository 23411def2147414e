// Sets the number of processors that gRPC sees.
//
// gRPC runs callback services on half as many threads as there are processors, and they
// take turns at polling: with eight, one call wakes five of them one after the other, each
// on a processor that was sleeping. With two, the thread that reads a request also answers
// it, with warm caches. Measured on 16 processors and an H200 (`residentctl bench`, one add
// through Run, compared with an echo on the same machine):
//
//   threads   residentd p50, p90    echo p50    inside the handler, p50
//   8         169 µs, 411 µs        87 µs       20 µs
//   2          69 µs,  81 µs        61 µs        9 µs
//
// Two are enough: a batch of 1,024 tasks takes one of them about 20 µs, and work that
// blocks or copies large data runs on other threads (worker_pool.h).
//
// gRPC 1.51 has no setting for this; it calls these two functions, which the program's
// definitions override (gRPC is a shared library here). Tables sized by the first are
// indexed by the second, so both must agree.
//
// Thread safety: functions without state.
#include <sched.h>

extern "C" {

constexpr unsigned kProcessors = 4;  // gRPC uses half.

__attribute__((visibility("default"))) unsigned gpr_cpu_num_cores(void) { return kProcessors; }

__attribute__((visibility("default"))) unsigned gpr_cpu_current_cpu(void) {
  const int cpu = sched_getcpu();
  return cpu < 0 ? 0 : static_cast<unsigned>(cpu) % kProcessors;
}

}  // extern "C"
