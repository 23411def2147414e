// The arguments of the operator flux_run, in order. The host side that submits a
// batch and the operator both use these indices.
//
// One task performs `count` runs, one on each thread. Run i executes program
//
//   index[i]   if index is not empty
//   0          if there is one program
//   i          otherwise
//
// Program p is bytecode[offsets[p], offsets[p + 1]); if offsets is empty, all of
// bytecode is one program. The host checks offsets and index before submission. The
// operator checks those that its runs use again and never reads outside bytecode; if they are
// invalid, it ends with CompletionStatus::kInvalidArgument and the argument's index as detail.
//
// Memory: bytecode, offsets, index and initial may be host memory that is mapped
// into the device: each byte of initial, and of bytecode in general, is read once for each
// chunk, by adjacent threads. Exceptions: an instruction that lies inside of another one is read
// again when a branch leads there, if each run has its own program; and programs too large to be
// staged, about 50 KiB on a GPU, or 1.6 KiB if each run has its own program, are read each time
// they run, and should be in device memory. Outputs may be mapped host memory too.
//
// Chunks: any number. If all runs of a chunk execute the same program, of up to 2,047 bytes, 512
// runs or more are best on a GPU: each thread executes two at a time if there are more runs than
// threads. Otherwise a multiple of 256 is best. Each chunk stages its programs, so for one program
// with many inputs use chunks of a thousand runs or more. Runs that select the same program by
// index should be adjacent.
#ifndef RESIDENT_KERNELS_FLUX_RUN_ARGUMENTS_H_
#define RESIDENT_KERNELS_FLUX_RUN_ARGUMENTS_H_

#include "kernels/layout/platform.h"

namespace resident::flux {

enum RunArgument : u32 {
  kRunBytecode = 0,       // in u8[B]
  kRunOffsets = 1,        // in u32[P]: programs + 1 ascending byte offsets, or empty
  kRunIndex = 2,          // in u32[I]: count program numbers, or empty
  kRunInitial = 3,        // in i32[V]: count * initial_width values, or initial_width
                          // if initial_shared; empty if initial_width is 0
  kRunRegisters = 4,      // out i32[W]: count * wanted_count, run after run
  kRunErrors = 5,         // out u8[N]: flux::Error of each run; N = count
  kRunCycles = 6,         // out u32[N]: instructions each run executed
  kRunCount = 7,          // scalar i64
  kRunInitialWidth = 8,   // scalar i64: 0 to 16; the other registers start at 0
  kRunInitialShared = 9,  // scalar i64: 1 if all runs start with the same values
  kRunWanted = 10,        // scalar i64: register of output k in bits 4k to 4k + 3
  kRunWantedCount = 11,   // scalar i64: 0 to 16
  kRunMaxCycles = 12,     // scalar i64: 0 to 2^32 - 1
  kRunUnknownNop = 13,    // scalar i64: 1 if an unknown opcode is a no-op
  kRunArguments = 14,
};

}  // namespace resident::flux

#endif  // RESIDENT_KERNELS_FLUX_RUN_ARGUMENTS_H_
