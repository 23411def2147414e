// Groups: adjacent values that the threads of a team read in groups of 16 bytes, eight of which a
// thread has requested before it uses the first one.
//
//   float v[kThreadElements<T>];   // Of four groups.
//   ForEachValue<T>(team, data, count, /*none=*/0.0f, [&](const auto& v) { sum += SumOfValues(v);
//   });
//
// Which thread has which values, and in which order, depends only on their number and on that of
// threads: a result has the same bits wherever the values begin.
//
// REQUIRES: RESIDENT_WARPS (warp.h).
#ifndef RESIDENT_KERNELS_OPS_GROUPS_H_
#define RESIDENT_KERNELS_OPS_GROUPS_H_

#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/row_stream.h"
#include "kernels/ops/rows.h"
#include "kernels/sdk/block.h"

namespace resident {

#if RESIDENT_WARPS

template <typename T>
inline constexpr i64 kGroupElements = kChunkBytes / sizeof(T);

// Group `at` of the values from `data` on. kAligned: data is at a multiple of 16 bytes.
template <bool kAligned, typename T>
RESIDENT_DEVICE Bytes16 LoadGroup(const T* data, i64 at) {
  if constexpr (kAligned) {
    return LoadOnce(reinterpret_cast<const Bytes16*>(data) + at);
  } else {
    Bytes16 group;
    T values[kGroupElements<T>];
    for (i64 i = 0; i < kGroupElements<T>; ++i) values[i] = data[at * kGroupElements<T> + i];
    __builtin_memcpy(&group, values, sizeof(group));
    return group;
  }
}

// Calls f(v, at) with the values of the whole groups among data[0] to data[count - 1], of which the
// calling thread has every team.size'th: those of groups `at`, at + team.size and so on, as many as
// v has space for. Values of groups that do not exist are `none`.
template <bool kAligned, typename T, typename F>
RESIDENT_DEVICE void ForEachGroup(const Team& team, const T* data, i64 count, float none, F f) {
  constexpr u32 kTurns = 2;  // Calls of f whose values are requested at the same time.
  const i64 groups = count / kGroupElements<T>;
  const u32 word = WordOf<T>(none);
  const i64 turn = i64{kThreadChunks} * team.size;
  RESIDENT_UNROLL(1)
  for (i64 first = team.rank; first < groups; first += kTurns * turn) {
    Bytes16 loaded[kTurns][kThreadChunks];
    RESIDENT_UNROLL(2)
    for (u32 t = 0; t < kTurns; ++t) {
      RESIDENT_UNROLL(4)
      for (u32 c = 0; c < kThreadChunks; ++c) {
        const i64 at = first + t * turn + c * team.size;
        loaded[t][c] = {{word, word, word, word}};
        if (at < groups) loaded[t][c] = LoadGroup<kAligned>(data, at);
      }
    }
    RESIDENT_UNROLL(2)
    for (u32 t = 0; t < kTurns; ++t) {
      const i64 at = first + t * turn;
      if (t > 0 && at >= groups) break;
      float v[kThreadElements<T>];
      Unpack<T>(loaded[t], v);
      f(v, at);
    }
  }
}

// Calls f(v) with all values data[0] to data[count - 1]; those that do not exist are `none`.
template <typename T, typename F>
RESIDENT_DEVICE void ForEachValue(const Team& team, const T* data, i64 count, float none, F f) {
  const auto call = [&](auto& v, i64) { f(v); };
  if (reinterpret_cast<u64>(data) % kChunkBytes == 0) {
    ForEachGroup</*kAligned=*/true>(team, data, count, none, call);
  } else {
    ForEachGroup</*kAligned=*/false>(team, data, count, none, call);
  }
  const i64 whole = count / kGroupElements<T> * kGroupElements<T>;
  RESIDENT_UNROLL(1)
  for (i64 i = whole + team.rank; i < count; i += team.size) {
    float v[kThreadElements<T>];
    for (float& value : v) value = none;
    v[0] = static_cast<float>(data[i]);
    f(v);
  }
}

#endif  // RESIDENT_WARPS

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_GROUPS_H_
