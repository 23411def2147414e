// RowStream: rows of dense tensors, which the threads of a block read with copies that are always
// on their way to the block's memory.
//
//   const RowPart part(block, rows, columns * sizeof(T));
//   RowStream<1, 1> stream(block, part, {AddressOf(x)});
//   for (u32 step = 0; step < part.steps; ++step) {
//     Bytes16 chunks[kThreadChunks];
//     stream.Take(chunks, part.FirstOfStep(step), none);
//     ...
//   }
//
// A team of warps, which RowPart chooses by the rows' size, has a row together; in each step each
// team has the next row. A row consists of segments of 64 bytes for each thread of the team: a warp
// copies four groups of adjacent 16-byte chunks, 2 KiB that are adjacent too (4 % faster on an H200
// than four groups at the distance of the team's threads). A thread reads only the chunks that it
// has copied itself, so that copies need no barrier. There are stages for two segments, 32 KiB with
// 256 threads; when a segment has been taken into registers, the copy of the next but one starts in
// its place.
//
// Segments are taken in this order: for each row, for each pass over the row, for each segment, for
// each source tensor. The second pass of two usually finds the row in the L2 cache; it does not
// take the last segment again.
//
// WarpResults: what the warps of a team know about a row, with one barrier.
//
// The CPU engine has neither (RESIDENT_WARPS, warp.h).
#ifndef RESIDENT_KERNELS_OPS_ROW_STREAM_H_
#define RESIDENT_KERNELS_OPS_ROW_STREAM_H_

#include "kernels/ops/rows.h"
#include "kernels/ops/tensor_cores.h"
#include "kernels/ops/warp.h"
#include "kernels/sdk/block.h"

#if RESIDENT_WARPS && !RESIDENT_GPU
#include <atomic>
#endif

namespace resident {

// Whether RowStream can read rows of x, and whole chunks of the others can be read and written: all
// have one dtype and begin at multiples of 16 bytes, and so do their rows. Rows that are short and
// many have smaller teams (rows.h).
template <typename... Tensors>
RESIDENT_DEVICE bool CanStreamRows([[maybe_unused]] const Block& block,
                                   [[maybe_unused]] const Tensor<const Any>& x,
                                   [[maybe_unused]] const Tensors&... others) {
#if RESIDENT_WARPS
  const i64 columns = x.shape(x.rank() - 1);
  if (x.size() == 0 || columns >> 28 != 0) return false;
  if (static_cast<u64>(columns) * SizeOf(x.dtype()) % kChunkBytes != 0) return false;
  if ((AddressOf(x) | ... | AddressOf(others)) % kChunkBytes != 0) return false;
  if (!((others.dtype() == x.dtype()) && ...)) return false;
  return Team(block, columns, Quotient(x.size(), columns)).size == block.threads();
#else
  return false;
#endif
}

#if RESIDENT_WARPS

inline constexpr u32 kThreadChunks = 4;  // Of a segment.
inline constexpr u32 kWarpGroupBytes = kWarpThreads * kChunkBytes;
inline constexpr u32 kWarpSegmentBytes = kThreadChunks * kWarpGroupBytes;
template <typename T>
inline constexpr u32 kThreadElements = kThreadChunks* kChunkBytes / sizeof(T);

// The block's memory: two stages, then WarpResults.
inline constexpr u32 kMaxBlockWarps = Block::kMaxThreads / kWarpThreads;
inline constexpr u32 kRowStageBytes = kMaxBlockWarps * kWarpSegmentBytes;
inline constexpr u32 kRowStages = 2;

#if !RESIDENT_GPU
namespace emulated {

// Streams that threads have made, for tests.
struct Streams {
  static inline std::atomic<u64> count = 0;
};

}  // namespace emulated
#endif

// The calling thread's part of a chunk's rows.
struct RowPart {
  // The offset of a thread's first chunk in a row that does not exist.
  static constexpr u32 kNoRow = 1u << 31;

  u32 row_bytes;
  u32 warps;  // Of a team.
  u32 own;    // Offset of the thread's first chunk of a row.
  // The team's first row, their number, and the bytes between them.
  i64 first_row;
  u32 rows;
  u32 step_bytes;
  u32 steps;  // The largest number of rows of a team.

  RESIDENT_DEVICE RowPart(const Block& block, i64 all_rows, u32 bytes) : row_bytes(bytes) {
    const u32 block_warps = block.threads() / kWarpThreads;
    const u32 segments_of_warp = (bytes + kWarpSegmentBytes - 1) / kWarpSegmentBytes;
    u32 shift = 0;
    RESIDENT_UNROLL(1)
    while ((1u << shift) < block_warps && (1u << shift) < segments_of_warp) ++shift;
    warps = 1u << shift;
    u32 teams = block_warps >> shift;
    u32 team = WarpOf(block) >> shift;
    u32 warp = WarpOf(block) & (warps - 1);
    if (teams <= 1) {
      warps = block_warps;
      teams = 1;
      team = 0;
      warp = WarpOf(block);
    }
    own = warp * kWarpSegmentBytes + LaneOf(block) * kChunkBytes;
    const Range range = block.share(all_rows);
    const u32 count = static_cast<u32>(range.size());
    steps = (count + teams - 1) / teams;
    first_row = range.begin + team;
    step_bytes = teams * row_bytes;
    // Not all teams have a row in the last step. The warps of an incomplete team have no rows.
    rows = steps;
    if (team >= teams || count == 0) {
      rows = 0;
    } else if ((steps - 1) * teams + team >= count) {
      rows = steps - 1;
    }
  }

  RESIDENT_DEVICE u32 SegmentBytes() const { return warps * kWarpSegmentBytes; }
  // The team's first row of a tensor.
  RESIDENT_DEVICE u64 FirstRow(u64 tensor) const {
    return tensor + static_cast<u64>(first_row) * row_bytes;
  }
  // The offset of the thread's first chunk of the row in a step.
  RESIDENT_DEVICE u32 FirstOfStep(u32 step) const { return step < rows ? own : kNoRow; }

  // Calls f(chunk, offset) for each of the thread's chunks of a segment that the row has; `first`
  // is the offset of the first one, as is `offset`, in bytes from the row's beginning.
  template <typename F>
  RESIDENT_DEVICE void ForEachChunk(u32 first, F f) const {
    for (u32 c = 0; c < kThreadChunks; ++c) {
      const u32 offset = first + c * kWarpGroupBytes;
      if (offset < row_bytes) f(c, offset);
    }
  }
};

// The opposite of LastUse(): the copied lines are read again soon.
RESIDENT_DEVICE u64 NotLastUse() {
  u64 policy = 0;
#if RESIDENT_GPU
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}
template <u32 kSources, u32 kPasses>
class RowStream {
 public:
  // REQUIRES: CanStreamRows. kPasses: 1 for rows of one segment, 2 for others.
  RESIDENT_DEVICE RowStream(const Block& block, const RowPart& of_thread,
                            const u64 (&sources)[kSources])
      : part(of_thread),
        from_(part.FirstRow(sources[0])),
        rows_left_(part.rows),
        offset_(part.own),
        stage_(
            AddressInMemory(block.memory<Bytes16>(0, kRowStages * kRowStageBytes / kChunkBytes)) +
            WarpOf(block) * kWarpSegmentBytes + LaneOf(block) * kChunkBytes) {
    static_assert((kPasses == 1 || kPasses == 2) && (kSources == 1 || kSources == 2), "");
    to_other_source_ = kSources == 2 ? sources[kSources - 1] - sources[0] : 0;
    for (u32 s = 0; s < kRowStages; ++s) CopyToStage();
#if !RESIDENT_GPU
    ++emulated::Streams::count;
#endif
  }

  // Takes the thread's chunks of the next segment, the first of which is at `first`, an offset in
  // its row. Chunks that do not exist have words `none`.
  RESIDENT_DEVICE void Take(Bytes16 (&chunks)[kThreadChunks], u32 first, u32 none) {
    WaitForCopies<kRowStages - 1>();
    for (Bytes16& chunk : chunks) chunk = {{none, none, none, none}};
    part.ForEachChunk(first,
                      [&](u32 c, u32) { chunks[c] = Load16(Stage() + c * kWarpGroupBytes); });
    CopyToStage();
  }

  const RowPart part;

 private:
  // The thread's chunks in the stage of the next segment to take.
  RESIDENT_DEVICE MemoryAddress Stage() const { return stage_ + turn_; }

  // Starts the copy of the next segment, if there is one, to this stage, and goes on to the next
  // stage.
  RESIDENT_DEVICE void CopyToStage() {
    if (rows_left_ > 0) {
      const u64 row = kSources == 2 && other_source_ ? from_ + to_other_source_ : from_;
      const MemoryAddress to = Stage();
      const u64 use = kPasses == 2 ? UseOfSegment() : 0;
      part.ForEachChunk(offset_, [&](u32 c, u32 offset) {
        if constexpr (kPasses == 2) {
          CopyAsyncFor(use, to + c * kWarpGroupBytes, row + offset);
        } else {
          CopyAsync(to + c * kWarpGroupBytes, row + offset);
        }
      });
      other_source_ = !other_source_;
      if (kSources == 1 || !other_source_) Advance();
    }
    CommitCopies();
    turn_ ^= kRowStageBytes;
  }
  // The second pass reads all segments but the last one again.
  RESIDENT_DEVICE u64 UseOfSegment() const {
    const u32 next = offset_ - part.own + part.SegmentBytes();
    return second_pass_ || next >= part.row_bytes ? LastUse() : NotLastUse();
  }
  RESIDENT_DEVICE void Advance() {
    if constexpr (kPasses == 2) {
      const u32 segment = part.SegmentBytes();
      offset_ += segment;
      const u32 next = offset_ - part.own;  // The segment's first byte.
      if (next + (second_pass_ ? segment : 0) < part.row_bytes) return;
      offset_ = part.own;
      second_pass_ = !second_pass_;
      if (second_pass_) return;
    }
    --rows_left_;
    from_ += part.step_bytes;
  }

  // The next segment to copy: of the row at from_, at offset_.
  u64 from_;
  u64 to_other_source_;
  u32 rows_left_;
  u32 offset_;
  bool second_pass_ = false;
  bool other_source_ = false;
  // The thread's chunks in the first stage; 0 or kRowStageBytes.
  const MemoryAddress stage_;
  u32 turn_ = 0;
};

// --- Values of a segment ------------------------------------------------------------------------

template <typename T>
RESIDENT_DEVICE void Unpack(const Bytes16 (&chunks)[kThreadChunks],
                            float (&v)[kThreadElements<T>]) {
  for (u32 i = 0; i < kThreadElements<T>; ++i) {
    if constexpr (sizeof(T) == 4) {
      v[i] = bit_cast<float>(chunks[i / 4].words[i % 4]);
    } else {
      const u32 word = chunks[i / 8].words[i % 8 / 2];
      v[i] = T::Widen(static_cast<u16>(i % 2 == 0 ? word : word >> 16));
    }
  }
}

// A word of elements that all have this value.
template <typename T>
RESIDENT_DEVICE u32 WordOf(float value) {
  if constexpr (sizeof(T) == 4) {
    return bit_cast<u32>(value);
  } else {
    return Pack<T>(value, value);
  }
}

// Writes 16 bytes that are not read soon. On a GPU they leave the L2 cache before other contents.
// On an H200, softmax of 256 MiB of float32 in rows of 4,096 takes 159 us with this and 211 us with
// ordinary stores.
RESIDENT_DEVICE void StoreOnce(u64 address, const Bytes16& bytes) {
#if RESIDENT_GPU
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(reinterpret_cast<const void*>(address))),
                 "r"(bytes.words[0]), "r"(bytes.words[1]), "r"(bytes.words[2]), "r"(bytes.words[3])
               : "memory");
#else
  *reinterpret_cast<Bytes16*>(address) = bytes;
#endif
}

// Chunk c of the values, rounded to T.
template <typename T>
RESIDENT_DEVICE Bytes16 PackChunk(const float (&v)[kThreadElements<T>], u32 c) {
  Bytes16 chunk;
  for (u32 i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      chunk.words[i] = bit_cast<u32>(v[4 * c + i]);
    } else {
      chunk.words[i] = Pack<T>(v[8 * c + 2 * i], v[8 * c + 2 * i + 1]);
    }
  }
  return chunk;
}

// Writes the values as rounded to T to the row at `row`.
template <typename T>
RESIDENT_DEVICE void StoreSegment(const RowPart& part, u64 row, u32 first,
                                  const float (&v)[kThreadElements<T>]) {
  part.ForEachChunk(first, [&](u32 c, u32 offset) { StoreOnce(row + offset, PackChunk<T>(v, c)); });
}

template <u32 kCount>
RESIDENT_DEVICE float SumOfValues(const float (&v)[kCount]) {
  float partial[4] = {v[0], v[1], v[2], v[3]};
  for (u32 i = 4; i < kCount; ++i) partial[i % 4] += v[i];
  return (partial[0] + partial[2]) + (partial[1] + partial[3]);
}
// NaN if a value is NaN.
template <u32 kCount>
RESIDENT_DEVICE float LargestOfValues(const float (&v)[kCount]) {
  float partial[4] = {v[0], v[1], v[2], v[3]};
  for (u32 i = 4; i < kCount; ++i) partial[i % 4] = LargerOf(partial[i % 4], v[i]);
  return LargerOf(LargerOf(partial[0], partial[2]), LargerOf(partial[1], partial[3]));
}

// --- Results of a row ---------------------------------------------------------------------------

// (warp) The same of `kLanes` adjacent lanes. The sum of equal values is exact.
template <u32 kLanes = kWarpThreads>
RESIDENT_DEVICE float SumOfLanes(float value) {
  for (u32 mask = kLanes / 2; mask > 0; mask /= 2) value += ShuffleXor(value, mask);
  return value;
}
template <u32 kLanes = kWarpThreads>
RESIDENT_DEVICE float LargestOfLanes(float value) {
  for (u32 mask = kLanes / 2; mask > 0; mask /= 2) value = LargerOf(value, ShuffleXor(value, mask));
  return value;
}

// Two places in turn: a thread that has passed the barrier of one exchange may write for the next
// one while others still read.
template <typename Result>
class WarpResults {
 public:
  // Groups of this many adjacent lanes have the results of all warps.
  static constexpr u32 kLanes = 8;
  static_assert(kMaxBlockWarps <= kLanes, "");
  static_assert(kRowStages * kRowStageBytes + 2 * kLanes * sizeof(Result) <= kBlockMemoryBytes, "");

  RESIDENT_DEVICE WarpResults(const Block& block, const RowPart& part)
      : results_(block.memory<Result>(kRowStages * kRowStageBytes, 2 * kLanes)) {
    const u32 warp = LaneOf(block) % kLanes;
    exists_ = warp < part.warps;
    other_ = WarpOf(block) / part.warps * part.warps + warp;
  }

  // (collective) Returns the result of warp `lane % kLanes` of the calling thread's team, or `none`
  // if there is no such warp. `mine`: of the calling thread's warp.
  RESIDENT_DEVICE Result Exchange(const Block& block, const Result& mine, const Result& none) {
    if (LaneOf(block) == 0) results_[place_ + WarpOf(block)] = mine;
    block.barrier();
    Result result = none;
    if (exists_) result = results_[place_ + other_];
    place_ ^= kLanes;
    return result;
  }

 private:
  Result* const results_;
  bool exists_;
  u32 other_;
  u32 place_ = 0;
};

#endif  // RESIDENT_WARPS

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_ROW_STREAM_H_
