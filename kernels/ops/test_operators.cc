// Operators for tests, which fail in different ways or count runs. Loaded only with
// --test_operators.
#include "kernels/layout/confine.h"
#include "kernels/sdk/operator.h"

#if !RESIDENT_GPU
#include <atomic>
#include <chrono>
#endif

namespace resident {
namespace {

RESIDENT_DEVICE u64 NowNs() {
#if RESIDENT_GPU
  u64 ns = 0;
#if defined(__CUDA_ARCH__)
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
#endif
  return ns;
#else
  return static_cast<u64>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

}  // namespace

RESIDENT_OPERATOR(test_bad_store)(Block& block, const Args& args) {
  volatile u64 nowhere = 64;  // Volatile, so that compilers cannot detect the bad address.
  if (block.thread() == 0) *reinterpret_cast<volatile float*>(nowhere) = 1.0f;
}

RESIDENT_OPERATOR(test_never_returns)(Block& block, const Args& args) {
  volatile float* out = args.tensor<float>(0).data();
  while (true) out[0] = out[0] + 1.0f;
}

RESIDENT_OPERATOR(test_until_stopped)(Block& block, const Args& args) {
  volatile float* out = args.tensor<float>(0).data();
  u32 stop = 0;
  while (stop == 0) {
    out[0] = out[0] + 1.0f;
#if defined(__CUDA_ARCH__)
    constexpr u32 kStopWord =
        ConfineAddress(__CUDA_ARCH__ / 10) + static_cast<u32>(__builtin_offsetof(Confine, stop));
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(stop) : "r"(kStopWord) : "memory");
#endif
  }
}

RESIDENT_OPERATOR(test_stray_stores)(Block& block, const Args& args) {
  constexpr u32 kBytes = static_cast<u32>(sizeof(BlockState));
  volatile unsigned char* const state =
      block.memory<unsigned char>() - __builtin_offsetof(BlockState, memory);
  block.barrier();  // The others have read what they need.
  for (u32 i = block.thread(); i < kBytes; i += block.threads()) state[i] = 0xa5;
}

RESIDENT_OPERATOR(test_spin)(Block& block, const Args& args) {
  auto out = args.tensor<float>(0);
  const u64 until = NowNs() + static_cast<u64>(args.scalar<i64>(1));
  while (NowNs() < until) {
  }
  block.for_each(block.share(out.size()), [&](i64 i) { out[i] = 1.0f; });
}

RESIDENT_OPERATOR(test_refuse)(Block& block, const Args& args) {
  block.fail(CompletionStatus::kInvalidArgument, static_cast<u16>(args.scalar<i64>(1)));
}

RESIDENT_OPERATOR(test_count)(Block& block, const Args& args) {
  if (block.thread() != 0) return;
  float* counter = args.tensor<float>(0).data();
#if RESIDENT_GPU
#if defined(__CUDA_ARCH__)
  atomicAdd(counter, 1.0f);
#endif
#else
  std::atomic_ref<float>(*counter).fetch_add(1.0f);
#endif
}

RESIDENT_OPERATOR(test_axpy)(Block& block, const Args& args) {
  const float a = args.scalar<float>(3);
  elementwise<2>(block, args, [=](const float* v) { return a * v[0] + v[1]; });
}

RESIDENT_OPERATOR(test_arrivals)(Block& block, const Args& args) {
  const i64 chunks = block.chunk_count();
  float* const numbers = block.task_memory<float>(0, static_cast<u32>(chunks));
  const bool fits = chunks * i64{sizeof(float)} <= i64{kTaskMemoryBytes};
  if (numbers == nullptr || !fits || block.chunk() == args.scalar<i64>(1)) {
    block.fail(CompletionStatus::kInvalidArgument, 1);
    return;
  }
  if (block.thread() == 0) numbers[block.chunk()] = static_cast<float>(block.chunk() + 1);
  if (!block.arrive() || block.thread() != 0) return;
  float sum = 0;
  RESIDENT_UNROLL(1)
  for (i64 c = 0; c < chunks; ++c) sum += numbers[c];
  args.tensor<float>(0)[0] = sum;
}

}  // namespace resident
