// How many processors gRPC is told that there are.
//
// gRPC runs callback services on half as many threads as there are processors, and they
// take turns at polling: with eight, a call wakes five of them one after the other, each
// on a processor that has gone to sleep. With two, the thread that reads a request is
// the one that answers it, and finds its caches warm. Measured on 16 processors and an
// H200 (`residentctl bench`, one add through Run, against an echo of the same machine):
//
//   threads   residentd p50, p90    echo p50    inside the handler, p50
//   8         169 µs, 411 µs        87 µs       20 µs
//   2          69 µs,  81 µs        61 µs        9 µs
//
// Two are enough: a batch of 1,024 tasks takes one of them about 20 µs, and what blocks
// or copies a lot is done elsewhere (worker_pool.h).
//
// gRPC 1.51 has no setting for it; it asks these two functions, which a program's own
// definitions take the place of (gRPC is a shared library here). Tables sized by the
// first are indexed by the second, so that both must agree.
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
