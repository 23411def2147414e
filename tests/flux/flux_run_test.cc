// The operator flux_run: forms of a batch, staging of programs, and arguments that the host
// should have refused.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/flux/run_arguments.h"
#include "runtime/flux/assembler.h"
#include "runtime/flux/host_operator.h"
#include "tests/flux/random_program.h"
#include "tests/flux/reference.h"

namespace resident::flux {
namespace {

Bytecode Code(const char* text) { return *Assemble(text); }

TEST(FluxRun, OneProgramOverManyInputs) {
  HostBatch batch;
  batch.bytecode = Code("MUL R2, R0, R1\nHALT");
  batch.initial_width = 2;
  batch.count = 1000;
  batch.chunks = 7;
  batch.wanted = {2, 0};
  for (int32_t i = 0; i < 1000; ++i) batch.initial.insert(batch.initial.end(), {i, 3});
  const HostResults results = RunOnHost(batch);
  ASSERT_EQ(results.status, CompletionStatus::kOk);
  for (int32_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(results.registers[2 * i], 3 * i);
    EXPECT_EQ(results.registers[2 * i + 1], i);
    EXPECT_EQ(results.cycles[i], 2u);
  }
}

TEST(FluxRun, SharedInitialRegisters) {
  HostBatch batch;
  batch.bytecode = Code("ADDI R0, 1");
  batch.initial = {41};
  batch.initial_width = 1;
  batch.initial_shared = true;
  batch.count = 3;
  EXPECT_EQ(RunOnHost(batch).registers, (std::vector<int32_t>{42, 42, 42}));
}

TEST(FluxRun, NoRunsAndNoWantedRegisters) {
  HostBatch batch;
  EXPECT_EQ(RunOnHost(batch).status, CompletionStatus::kOk);
  batch.bytecode = Code("HALT");
  batch.count = 2;
  batch.wanted = {};
  const HostResults results = RunOnHost(batch);
  EXPECT_EQ(results.status, CompletionStatus::kOk);
  EXPECT_EQ(results.cycles, (std::vector<uint32_t>{1, 1}));
}

TEST(FluxRun, MoreChunksThanRuns) {
  HostBatch batch;
  batch.bytecode = Code("HALT");
  batch.count = 3;
  batch.chunks = 64;
  EXPECT_EQ(RunOnHost(batch).cycles, (std::vector<uint32_t>{1, 1, 1}));
}

// Batches below and above every limit of the staging areas: by the number of programs, and
// by their bytes.
TEST(FluxRun, GrowsByProgramsAndByBytes) {
  RandomProgramGenerator generator(5);
  for (const size_t program_bytes :
       {0u, 1u, 5u, 1000u, 6000u, 24'000u, 104'000u, 105'000u, 400'000u}) {
    for (const uint32_t programs : {1u, 2u, 5u, 40u}) {
      HostBatch batch;
      batch.offsets = {0};
      for (uint32_t p = 0; p < programs; ++p) {
        // NOPs, then MOVI R0, p at the very end.
        Bytecode program(program_bytes, 0x01);
        program.insert(program.end(), {0x18, 0, static_cast<uint8_t>(p)});
        batch.bytecode.insert(batch.bytecode.end(), program.begin(), program.end());
        batch.offsets.push_back(static_cast<uint32_t>(batch.bytecode.size()));
      }
      const bool indexed = generator.Below(2) == 0;
      batch.count = programs;
      if (indexed) {
        batch.index.resize(programs);
        std::iota(batch.index.rbegin(), batch.index.rend(), 0);
      }
      batch.chunks = 1 + generator.Below(3);
      const HostResults results = RunOnHost(batch);
      ASSERT_EQ(results.status, CompletionStatus::kOk);
      for (uint32_t i = 0; i < programs; ++i) {
        EXPECT_EQ(results.registers[i], static_cast<int32_t>(indexed ? programs - 1 - i : i));
        EXPECT_EQ(results.cycles[i], program_bytes + 1);
        EXPECT_EQ(results.errors[i], 0);
      }
    }
  }
}

// Staging copies aligned words: test programs at every alignment, of every small length.
TEST(FluxRun, ProgramsAtAnyAlignment) {
  for (size_t skew = 0; skew < 8; ++skew) {
    for (size_t length = 0; length < 12; ++length) {
      HostBatch batch;
      batch.bytecode.assign(skew, 0xff);
      Bytecode program;
      for (size_t i = 0; i + 2 <= length; i += 2) program.insert(program.end(), {0x08, 0x00});
      if (length % 2 == 1) program.push_back(0x01);
      batch.bytecode.insert(batch.bytecode.end(), program.begin(), program.end());
      batch.offsets = {static_cast<uint32_t>(skew), static_cast<uint32_t>(skew + length)};
      batch.bytecode.push_back(0x08);  // Not part of the program.
      batch.count = 1;
      const HostResults results = RunOnHost(batch);
      EXPECT_EQ(results.registers[0], static_cast<int32_t>(length / 2));
      EXPECT_EQ(results.errors[0], 0);
    }
  }
}

HostBatch TwoPrograms() {
  HostBatch batch;
  batch.bytecode = {0x08, 0x00, 0x09, 0x00};
  batch.offsets = {0, 2, 4};
  batch.count = 2;
  return batch;
}

void ExpectRefused(const HostBatch& batch, RunArgument argument) {
  const HostResults results = RunOnHost(batch);
  EXPECT_EQ(results.status, CompletionStatus::kInvalidArgument);
  EXPECT_EQ(results.detail, argument);
}

TEST(FluxRun, OffsetsBeyondTheBytesAreRefused) {
  HostBatch batch = TwoPrograms();
  batch.offsets = {0, 2, 5};
  ExpectRefused(batch, kRunOffsets);
  batch.offsets = {0, 0xffffffff, 4};
  ExpectRefused(batch, kRunOffsets);
  batch.offsets = {3, 1, 4};
  ExpectRefused(batch, kRunOffsets);
  batch.offsets = {0, 4, 2};
  ExpectRefused(batch, kRunOffsets);
  batch.offsets = {0};  // No program, also for runs that select one by index.
  ExpectRefused(batch, kRunOffsets);
  batch.index = {0, 0};
  ExpectRefused(batch, kRunOffsets);
  batch.index.clear();
  batch.offsets = {0, 2, 4};
  batch.count = 3;
  ExpectRefused(batch, kRunOffsets);
}

TEST(FluxRun, OffsetsOfSelectedProgramsBeyondTheBytesAreRefused) {
  // With more programs than runs, each run stages its own.
  HostBatch batch;
  batch.bytecode = {0x08, 0x00};
  for (uint32_t p = 0; p < 50; ++p) batch.offsets.push_back(p < 25 ? 0 : 1000 + p);
  batch.index = {3, 30};
  batch.count = 2;
  ExpectRefused(batch, kRunOffsets);
  // Otherwise all are staged that lie between those selected.
  batch.offsets = {0, 2, 5, 2};
  batch.index = {0, 2, 0, 2};
  batch.count = 4;
  ExpectRefused(batch, kRunOffsets);
}

TEST(FluxRun, IndexBeyondTheProgramsIsRefused) {
  HostBatch batch = TwoPrograms();
  batch.index = {0, 2};
  ExpectRefused(batch, kRunIndex);
  batch.index = {0};
  ExpectRefused(batch, kRunIndex);
}

TEST(FluxRun, ScalarsOutOfRangeAreRefused) {
  HostBatch batch = TwoPrograms();
  batch.initial_width = 17;
  ExpectRefused(batch, kRunInitialWidth);
  batch = TwoPrograms();
  batch.initial_width = 1;
  ExpectRefused(batch, kRunInitial);
  batch = TwoPrograms();
  batch.max_cycles = uint64_t{1} << 32;
  ExpectRefused(batch, kRunMaxCycles);
  batch = TwoPrograms();
  batch.wanted.resize(17);
  ExpectRefused(batch, kRunWantedCount);
}

// Random offsets and indices are refused or run, without reads outside the bytes (the
// sanitizer builds of this test would report them).
TEST(FluxRun, RandomOffsetsNeverReadOutsideTheBytes) {
  RandomProgramGenerator generator(17);
  for (int i = 0; i < 5'000; ++i) {
    HostBatch batch;
    for (uint32_t n = generator.Below(64); n > 0; --n) {
      batch.bytecode.push_back(static_cast<uint8_t>(generator.Below(0x54)));
    }
    for (uint32_t n = generator.Below(6); n > 0; --n) {
      batch.offsets.push_back(generator.Below(8) == 0 ? static_cast<uint32_t>(generator.Bits())
                                                      : generator.Below(70));
    }
    batch.count = generator.Below(6);
    if (generator.Below(2) == 0) {
      for (int64_t n = 0; n < batch.count; ++n) batch.index.push_back(generator.Below(6));
    }
    batch.max_cycles = 100;
    const HostResults results = RunOnHost(batch);
    EXPECT_TRUE(results.status == CompletionStatus::kOk ||
                results.status == CompletionStatus::kInvalidArgument);
  }
}

}  // namespace
}  // namespace resident::flux
