// The arguments of the operator flux_run, in order. The host side that submits a
// batch and the operator both use these indices.
//
// One task runs `count` programs ("runs"), one to a thread. Run i executes program
//
//   index[i]   when index is not empty
//   0          when there is one program
//   i          otherwise
//
// Program p is bytecode[offsets[p], offsets[p + 1]); with offsets empty all of
// bytecode is one program. The host checks offsets and index before submission; the
// operator checks them again, never reads outside bytecode, and ends with
// CompletionStatus::kInvalidArgument and the argument's index as detail.
//
// Memory: bytecode, offsets, index and initial may be host memory that is mapped
// into the device: each byte of bytecode and initial that a chunk needs is read
// once, by neighbouring threads. (Exception: programs too large to be staged, about
// 50 KiB on a GPU, 1.6 KiB where each run has a program of its own, are read where
// they are; put those in device memory.) Outputs may be mapped host memory too.
//
// Chunks: any number; a multiple of 256 runs each is best. A chunk stages the
// programs it runs, so that one program over many inputs wants chunks of several
// thousand runs.
#ifndef RESIDENT_KERNELS_FLUX_RUN_ARGUMENTS_H_
#define RESIDENT_KERNELS_FLUX_RUN_ARGUMENTS_H_

#include "kernels/layout/platform.h"

namespace resident::flux {

enum RunArgument : u32 {
  kRunBytecode = 0,       // in u8[B]
  kRunOffsets = 1,        // in u32[P]: programs + 1 ascending byte offsets, or empty
  kRunIndex = 2,          // in u32[I]: count program numbers, or empty
  kRunInitial = 3,        // in i32[V]: count * initial_width values, or initial_width
                          // when initial_shared; empty when initial_width is 0
  kRunRegisters = 4,      // out i32[W]: count * wanted_count, run after run
  kRunErrors = 5,         // out u8[N]: flux::Error of each run; N = count
  kRunCycles = 6,         // out u32[N]: instructions each run executed
  kRunCount = 7,          // scalar i64
  kRunInitialWidth = 8,   // scalar i64: 0 to 16; the registers from here on start at 0
  kRunInitialShared = 9,  // scalar i64: 1 when all runs start with the same values
  kRunWanted = 10,        // scalar i64: register of output k in bits 4k to 4k + 3
  kRunWantedCount = 11,   // scalar i64: 0 to 16
  kRunMaxCycles = 12,     // scalar i64: 0 to 2^32 - 1
  kRunUnknownNop = 13,    // scalar i64: 1 when an unknown opcode is a no-op
  kRunArguments = 14,
};

}  // namespace resident::flux

#endif  // RESIDENT_KERNELS_FLUX_RUN_ARGUMENTS_H_
