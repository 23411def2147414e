// copy_bytes: copies bytes between staging memory and device memory for uploads and
// downloads, so that neither needs a driver call while a kernel is resident.
#include "kernels/sdk/operator.h"

#if !RESIDENT_GPU
#include <cstring>
#endif

namespace resident {

RESIDENT_OPERATOR(copy_bytes)(Block& block, const Args& args) {
  auto x = args.tensor<const u8>(0);
  auto out = args.tensor<u8>(1);
  const Range range = block.share(x.size(), 4096);
#if RESIDENT_GPU
  const u8* const from = x.data();
  u8* const to = out.data();
  i64 done = range.begin;
  if (((reinterpret_cast<u64>(from) | reinterpret_cast<u64>(to)) & 15) == 0) {
    // Host memory has a high latency, so each thread has 8 loads in flight.
    constexpr int kInFlight = 8;
    // The loads of a warp are adjacent.
    constexpr i64 kWarpBytes = 32 * 16;
    const i64 tile = i64{16} * kInFlight * block.threads();
    const i64 mine = block.thread() / 32 * (kInFlight * kWarpBytes) + block.thread() % 32 * i64{16};
    for (; done + tile <= range.end; done += tile) {
      uint4 loaded[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        loaded[k] = *reinterpret_cast<const uint4*>(from + done + mine + k * kWarpBytes);
      }
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        *reinterpret_cast<uint4*>(to + done + mine + k * kWarpBytes) = loaded[k];
      }
    }
    const i64 rest = (range.end - done) / 16;
    block.for_each({0, rest}, [&](i64 i) {
      reinterpret_cast<uint4*>(to + done)[i] = reinterpret_cast<const uint4*>(from + done)[i];
    });
    done += rest * 16;
  }
  block.for_each({done, range.end}, [&](i64 i) { to[i] = from[i]; });
#else
  if (range.size() > 0) {
    std::memcpy(out.data() + range.begin, x.data() + range.begin,
                static_cast<size_t>(range.size()));
  }
#endif
}

}  // namespace resident
