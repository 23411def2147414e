// Block: an operator's interface to the threads that run it.
//
// An operator is called by every thread of one block (a *block task*), or, for a
// wide task, once for each of its chunks, by any block that claims the chunk. On a GPU
// a block has several warps of threads; on the CPU engine it has one thread, so loops
// written as
//
//   for (i64 i = block.thread(); i < n; i += block.threads()) ...
//
// work on both.
//
// Thread safety: each thread has its own Block; members marked (collective) must be
// called by all threads of the block, in the same order.
//
// Memory ordering: what any thread wrote before barrier() is visible to all threads
// of the block after it. There is no order between the chunks of a wide task; use atomics
// (atomic.h), or arrive(). What a task wrote is visible to tasks submitted after its completion.
#ifndef RESIDENT_KERNELS_SDK_BLOCK_H_
#define RESIDENT_KERNELS_SDK_BLOCK_H_

#include "kernels/layout/platform.h"
#include "kernels/layout/task.h"
#include "kernels/sdk/checks.h"
#include "kernels/sdk/tensor.h"

// Tests of the operators on the host define RESIDENT_EMULATED_THREADS, the number of threads of a
// block, which are then emulated.
#if defined(RESIDENT_EMULATED_THREADS)
#include "kernels/sdk/emulated_block.h"
#endif

#if !RESIDENT_GPU
// Of <sched.h>: operators include no system headers.
extern "C" int sched_yield() noexcept;
#endif

namespace resident {

// Threads of a GPU's block that run no operator: the last ones, which find the block's tasks.
inline constexpr u32 kControlThreads = 32;
// Bytes of fast memory (a GPU's shared memory) that an operator may use.
inline constexpr u32 kBlockMemoryBytes = 40 * 1024;
// Bytes of scratch memory of each block, in device memory. Its contents are not kept after
// the task.
inline constexpr u64 kScratchBytes = 512 * 1024;
// Bytes of memory that the chunks of a wide task share.
inline constexpr u32 kTaskMemoryBytes = 2048;

// A half-open range of work items.
struct Range {
  i64 begin;
  i64 end;
  RESIDENT_HOST_DEVICE i64 size() const { return end - begin; }
};

// Whether an operator may access the elements of its tensors: see Block::await_inputs().
enum class InputState : u32 {
  kReady = 0,
  kAwaited = 1,
  // They will not become ready.
  kCancelled = 2,
};

// What the chunks of a wide task share: see Block::task_memory().
struct alignas(64) TaskMemory {
  // Chunks that have arrived: see Block::arrive(). 0 between tasks.
  u32 arrived;
  alignas(64) unsigned char bytes[kTaskMemoryBytes];
};
static_assert(sizeof(TaskMemory) == 64 + kTaskMemoryBytes, "");

// The data that the threads of a block share while a task runs: filled in by the kernel (or
// a CPU worker) before it calls the operator. On a GPU it is in shared memory.
struct alignas(128) BlockState {
  TaskDescriptor descriptor;
  ArgumentBlock arguments;
  u64 chunk;
  u64 chunk_count;
  unsigned char* scratch;
  u32 status_and_detail;  // CompletionStatus | detail << 16; the first failure is kept.
  u32 barrier_arrivals;   // Checked build only: threads that have reached a barrier so far.
  u8 result[kResultBytes];
  u64 reduce[34];  // Scratch of the reductions: one word for each warp, and the result.
  InputState inputs;
  // Null: the chunks of the task share no memory.
  TaskMemory* task_memory;
  alignas(128) unsigned char memory[kBlockMemoryBytes];
};

RESIDENT_SDK_BEGIN

// REQUIRES: x >= 0, y > 0. A division of 64 bits is slow on a GPU. The checked build omits the case
// of 32 bits, because less code compiles faster.
RESIDENT_HOST_DEVICE i64 Quotient(i64 x, i64 y) {
#if !RESIDENT_CHECKED
  if (((x | y) >> 32) == 0) return static_cast<i64>(static_cast<u32>(x) / static_cast<u32>(y));
#endif
  return x / y;
}

#if RESIDENT_CHECKED
// Bytes of scratch memory that the operator's install allows.
#if defined(RESIDENT_SCRATCH_LIMIT)
inline constexpr u64 kScratchLimit = RESIDENT_SCRATCH_LIMIT;
#else
inline constexpr u64 kScratchLimit = kScratchBytes;
#endif
// Returns argument i: a tensor or, if `scalar_bytes` is not 0, a scalar of that size, with its bits
// as the address. If the signature has another argument there, refuses it and returns zeros.
RESIDENT_COLD CheckedArgument ReadArgument(BlockState* state, u32 i, u32 scalar_bytes);
#if defined(__CUDA_ARCH__)
static __device__ __noinline__ void CheckedBarrier(BlockState* state, u32 threads);
#endif
#endif

// Lets a GPU's compiler know that `state` points into shared memory, so that it uses the
// instructions for shared memory. The conversion to a shared address is an instruction that the
// compiler does not look into: it would otherwise remove the conversion to shared and back as
// having no effect. An assumption (`__builtin_assume(__isShared(state))`) made NVRTC 13.0 drop all
// code after the second one (runtime/compile/sdk_pairs_test.cc).
template <typename T>
RESIDENT_HOST_DEVICE T* InSharedMemory(T* state) {
#if defined(__CUDA_ARCH__)
  u64 address;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(state));
  return static_cast<T*>(__cvta_shared_to_generic(static_cast<u32>(address)));
#else
  return state;
#endif
}

class Block {
 public:
  // Maximum number of threads of a block, for sizes that must be known at compile time.
#if RESIDENT_GPU
  static constexpr u32 kMaxThreads = 256;
#elif defined(RESIDENT_EMULATED_THREADS)
  static constexpr u32 kMaxThreads = RESIDENT_EMULATED_THREADS;
#else
  static constexpr u32 kMaxThreads = 1;
#endif

  RESIDENT_HOST_DEVICE explicit Block(BlockState* state) : state_(state) {}

  // Index of the calling thread, and the number of threads: a multiple of 32 on a GPU, set
  // when the daemon is started (--threads_per_block).
  RESIDENT_HOST_DEVICE u32 thread() const {
#if defined(__CUDA_ARCH__)
    return threadIdx.x;
#elif defined(RESIDENT_EMULATED_THREADS)
    return emulated::CurrentThread();
#else
    return 0;
#endif
  }
  RESIDENT_HOST_DEVICE u32 threads() const {
#if defined(__CUDA_ARCH__)
    // A block with the most of them may have further ones, which copy weights (kLoaderThreads).
    const u32 threads = blockDim.x - kControlThreads;
    return threads < kMaxThreads ? threads : kMaxThreads;
#else
    return kMaxThreads;
#endif
  }

  // Index of this chunk of a wide task, and their number: 0 and 1 for a block task.
  RESIDENT_HOST_DEVICE i64 chunk() const { return static_cast<i64>(state()->chunk); }
  RESIDENT_HOST_DEVICE i64 chunk_count() const { return static_cast<i64>(state()->chunk_count); }

  // This chunk's share of n work items: all of them for a block task. Shares start
  // at multiples of `align` items.
  RESIDENT_HOST_DEVICE Range share(i64 n, i64 align = 1) const {
    if (chunk_count() == 1) return {0, n};  // Avoids the divisions for a lone small task.
    const i64 units = align == 1 ? n : (n + align - 1) / align;
    const i64 base = Quotient(units, chunk_count());
    const i64 more = units - base * chunk_count();
    const i64 c = chunk();
    const i64 begin = (c * base + (c < more ? c : more)) * align;
    const i64 end = begin + (base + (c < more ? 1 : 0)) * align;
    return {begin < n ? begin : n, end < n ? end : n};
  }

  // Calls f(i) for each i of the range, distributed over the block's threads.
  template <typename F>
  RESIDENT_HOST_DEVICE void for_each(Range range, F f) const {
    for (i64 i = range.begin + thread(); i < range.end; i += threads()) f(i);
  }

  // (collective) Waits for all threads of the block.
  RESIDENT_HOST_DEVICE void barrier() const {
#if defined(__CUDA_ARCH__) && RESIDENT_CHECKED
    CheckedBarrier(state_, threads());
#elif defined(__CUDA_ARCH__)
    asm volatile("barrier.sync 1, %0;" ::"r"(threads()) : "memory");
#elif defined(RESIDENT_EMULATED_THREADS)
    emulated::Barrier();
#endif
  }

  // Waits until the elements of all tensors may be read and written; shapes and scalars may be read
  // at any time. A graph may start an operator that calls this (kernels/ops/early_operators.h)
  // while the nodes before it still run, so that it reads its weights meanwhile. False: the task is
  // withdrawn, and the operator must return at once; what it has reported counts for nothing. All
  // threads get the same answer. Other operators need not call it: for them it returns true.
  RESIDENT_HOST_DEVICE bool await_inputs() const {
#if defined(__CUDA_ARCH__)
    u64 address;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(&state_->inputs));
    u32 inputs;
    for (u32 polls = 0;; ++polls) {
      asm volatile("ld.acquire.cta.shared.u32 %0, [%1];"
                   : "=r"(inputs)
                   : "r"(static_cast<u32>(address))
                   : "memory");
      if (inputs != static_cast<u32>(InputState::kAwaited)) break;
      // The other block of the SM needs the cycles, if the wait is long.
      if (polls > 64) asm volatile("nanosleep.u32 64;");
    }
    return inputs == static_cast<u32>(InputState::kReady);
#elif defined(RESIDENT_EMULATED_THREADS)
    return emulated::AwaitInputs();
#else
    return true;
#endif
  }

  // (collective) Combines one value of each thread; every thread gets the result. The
  // order is fixed: the same inputs on the same number of threads give the same bits.
  template <typename T>
  RESIDENT_HOST_DEVICE T reduce_sum(T value) const {
    return reduce(value, [](T a, T b) { return a + b; });
  }
  template <typename T>
  RESIDENT_HOST_DEVICE T reduce_max(T value) const {
    return reduce(value, [](T a, T b) { return a > b || a != a ? a : b; });
  }
  // (collective) The same with any associative, commutative function. sizeof(T) <= 8.
  template <typename T, typename F>
  RESIDENT_HOST_DEVICE T reduce(T value, [[maybe_unused]] F combine) const {
    static_assert(sizeof(T) <= 8, "reduce takes values of at most 8 bytes");
#if defined(__CUDA_ARCH__)
    for (int delta = 16; delta > 0; delta /= 2) {
      value = combine(value, __shfl_xor_sync(0xffffffffu, value, delta));
    }
    T* partial = reinterpret_cast<T*>(state()->reduce);
    const u32 warp = threadIdx.x / 32;
    barrier();  // The reads of the previous reduction have finished.
    if (threadIdx.x % 32 == 0) partial[warp] = value;
    barrier();
    T total = partial[0];
#pragma unroll
    for (u32 i = 1; i < kMaxThreads / 32; ++i) {
      if (32 * i < threads()) total = combine(total, partial[i]);
    }
    return total;
#elif defined(RESIDENT_EMULATED_THREADS)
    T* const partial = reinterpret_cast<T*>(emulated::ReduceMemory::words);
    barrier();  // The reads of the previous reduction have finished.
    partial[thread()] = value;
    barrier();
    T total = partial[0];
    for (u32 i = 1; i < kMaxThreads; ++i) total = combine(total, partial[i]);
    return total;
#else
    return value;
#endif
  }

  // Fast memory of the block, starting at byte offset `offset`. Not initialised. It ends at
  // kBlockMemoryBytes. `count`: number of elements that are used, for the checked build.
  template <typename T>
  RESIDENT_HOST_DEVICE T* memory(u32 offset = 0, [[maybe_unused]] u32 count = 1) const {
#if RESIDENT_CHECKED
    if (!Fits(ViolationKind::kBlockMemory, offset, count, sizeof(T), kBlockMemoryBytes)) offset = 0;
#endif
    return reinterpret_cast<T*>(state()->memory + offset);
  }

  // Device memory of the block, kScratchBytes. Not initialised. `count` as above.
  template <typename T>
  RESIDENT_HOST_DEVICE T* scratch(u64 offset = 0, [[maybe_unused]] u64 count = 1) const {
#if RESIDENT_CHECKED
    if (!Fits(ViolationKind::kScratch, offset, count, sizeof(T), kScratchLimit)) offset = 0;
#endif
    return reinterpret_cast<T*>(state()->scratch + offset);
  }

  // Memory that the chunks of a wide task share, kTaskMemoryBytes. Not initialised. Null if the
  // chunks of the task share none: the tasks of ranges and the nodes of graphs have none, nor has a
  // task of one chunk. All chunks of a task get the same answer. `count` as above.
  template <typename T>
  RESIDENT_HOST_DEVICE T* task_memory(u32 offset = 0, [[maybe_unused]] u32 count = 1) const {
    TaskMemory* const shared = state()->task_memory;
    if (chunk_count() == 1 || shared == nullptr) return nullptr;
#if RESIDENT_CHECKED
    if (!Fits(ViolationKind::kTaskMemory, offset, count, sizeof(T), kTaskMemoryBytes)) {
      return scratch<T>();  // The memory behind it is that of other tasks.
    }
#endif
    return reinterpret_cast<T*>(shared->bytes + offset);
  }

  // (collective) Counts the chunk among those that have written what they write for others. Returns
  // whether all chunks of the task have: exactly one of them gets true, in which what the others
  // wrote before is visible. If one chunk calls it, each one must, once; if one that fails does
  // not, none gets true. REQUIRES: task_memory() is not null.
  RESIDENT_HOST_DEVICE bool arrive() const {
    barrier();
    u32 before = 0;
    if (thread() == 0) before = CountArrival(&state()->task_memory->arrived);
    before = reduce(before, [](u32 a, u32 b) { return a > b ? a : b; });
    return before + 1 == static_cast<u32>(chunk_count());
  }

  // (collective) Waits until `chunks` chunks have arrived; what they wrote before is visible.
  // Chunks are started in the order of their numbers, so that one may wait for others with lower
  // numbers that do not wait themselves, and must arrive also if they fail: the wait has no other
  // end. A chunk that has waited has arrived, and does not call
  // arrive(). REQUIRES: task_memory() is not null.
  RESIDENT_HOST_DEVICE void await_arrivals(u32 chunks) const {
    if (thread() == 0) AwaitArrivals(&state()->task_memory->arrived, chunks);
    barrier();
  }

  // Sets a status other than OK for the task (the first one is kept). It does not return
  // from the operator. Any thread may call it.
  RESIDENT_HOST_DEVICE void fail(CompletionStatus status, u16 detail = 0) const {
    const u32 packed = static_cast<u32>(status) | static_cast<u32>(detail) << 16;
#if defined(__CUDA_ARCH__)
    atomicCAS(&state()->status_and_detail, 0u, packed);
#else
    u32 none = 0;
    __atomic_compare_exchange_n(&state()->status_and_detail, &none, packed, /*weak=*/false,
                                __ATOMIC_RELAXED, __ATOMIC_RELAXED);
#endif
  }

  // Returns up to kResultBytes by value with the completion, instead of an output that
  // would have to be copied. Only for block tasks; one thread calls it.
  template <typename T>
  RESIDENT_HOST_DEVICE void set_result(const T& value, u32 offset = 0) const {
    static_assert(sizeof(T) <= kResultBytes, "a result is at most 32 bytes");
#if RESIDENT_CHECKED
    if (!Fits(ViolationKind::kResult, offset, 1, sizeof(T), kResultBytes)) return;
#endif
    const unsigned char* bytes = reinterpret_cast<const unsigned char*>(&value);
    for (u32 i = 0; i < sizeof(T); ++i) state()->result[offset + i] = bytes[i];
  }

 private:
#if RESIDENT_CHECKED
  RESIDENT_HOST_DEVICE bool Fits(ViolationKind kind, u64 offset, u64 count, u64 element,
                                 u64 limit) const {
    if (offset <= limit && count <= (limit - offset) / element) return true;
    Refuse(state_, kind, 0, 0, static_cast<i64>(offset + count * element), static_cast<i64>(limit),
           0, 0);
    return false;
  }
#endif

  RESIDENT_HOST_DEVICE BlockState* state() const { return InSharedMemory(state_); }

  // Returns how many chunks have arrived before. The last one sets the counter to 0.
  RESIDENT_HOST_DEVICE u32 CountArrival(u32* arrived) const {
    const u32 chunks = static_cast<u32>(chunk_count());
#if defined(__CUDA_ARCH__)
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    const u32 before = atomicInc(arrived, chunks - 1);
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#else
    const u32 before = __atomic_fetch_add(arrived, 1u, __ATOMIC_ACQ_REL);
    if (before + 1 == chunks) __atomic_store_n(arrived, 0u, __ATOMIC_RELAXED);
#endif
    return before;
  }
  // Counts the chunk after the wait, so that the counter becomes 0 after all waits have ended.
  RESIDENT_HOST_DEVICE void AwaitArrivals(u32* arrived, u32 chunks) const {
#if defined(__CUDA_ARCH__)
    u32 now;
    while (true) {
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                   : "=r"(now)
                   : "l"(__cvta_generic_to_global(arrived))
                   : "memory");
      if (now >= chunks) break;
      asm volatile("nanosleep.u32 32;");
    }
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    atomicInc(arrived, static_cast<u32>(chunk_count()) - 1);
#elif !RESIDENT_GPU
    for (u32 polls = 1; __atomic_load_n(arrived, __ATOMIC_ACQUIRE) < chunks; ++polls) {
      // Another chunk may need the processor.
      if (polls % 64 == 0) sched_yield();
    }
    CountArrival(arrived);
#endif
  }

  BlockState* state_;
};

// The arguments of a task, in the order of the operator's signature.
class Args {
 public:
  RESIDENT_HOST_DEVICE explicit Args(const BlockState* state) : state_(state) {}

  RESIDENT_HOST_DEVICE bool compact() const { return state()->descriptor.flags & kTaskCompact; }

  // Argument i as a tensor. T is const for inputs.
  template <typename T>
  RESIDENT_HOST_DEVICE Tensor<T> tensor(u32 i) const {
#if RESIDENT_CHECKED
    BlockState* const state = const_cast<BlockState*>(state_);
    return Tensor<T>(ReadArgument(state, i, 0), state, i);
#else
    if (compact() && i < kCompactArguments) {
      return Tensor<T>(state()->descriptor.compact_argument(i),
                       static_cast<i64>(state()->descriptor.elements()));
    }
    return Tensor<T>(state()->arguments.arguments[i].tensor);
#endif
  }

  // Argument i, a tensor, as it was submitted, for operators that read few of its members.
  // REQUIRES: the task is not in compact form. The checked build does not check what is read here.
  RESIDENT_HOST_DEVICE const TensorArgument& described(u32 i) const {
    return state()->arguments.arguments[i].tensor;
  }

  // Argument i as a scalar of exactly the signature's type.
  template <typename T>
  RESIDENT_HOST_DEVICE T scalar(u32 i) const {
#if RESIDENT_CHECKED
    const u64 bits = ReadArgument(const_cast<BlockState*>(state_), i, sizeof(T)).address;
#else
    const u64 bits = compact() && i < kCompactArguments
                         ? state()->descriptor.compact_argument(i)
                         : state()->arguments.arguments[i].scalar_bits;
#endif
    T value;
    const unsigned char* from = reinterpret_cast<const unsigned char*>(&bits);
    unsigned char* to = reinterpret_cast<unsigned char*>(&value);
    for (u32 b = 0; b < sizeof(T); ++b) to[b] = from[b];
    return value;
  }

 private:
  RESIDENT_HOST_DEVICE const BlockState* state() const { return InSharedMemory(state_); }

  const BlockState* state_;
};

#if RESIDENT_CHECKED

RESIDENT_HOST_DEVICE CheckContext* FindContext(const BlockState* state) {
  if (state->descriptor.flags & kTaskCompact) return nullptr;
  return reinterpret_cast<CheckContext*>(state->descriptor.check_context());
}

RESIDENT_COLD void* Refuse(BlockState* state, ViolationKind kind, u32 argument, u32 dimension,
                           i64 index, i64 limit, u32 bytes, u32 element_bytes) {
  if (element_bytes != bytes) {
    kind = ViolationKind::kElementSize;
    index = bytes;
    limit = element_bytes;
  }
  const u32 packed = static_cast<u32>(CompletionStatus::kOutOfBounds) |
                     static_cast<u32>(kind) << 16 | argument << 24;
#if defined(__CUDA_ARCH__)
  const bool first = atomicCAS(&state->status_and_detail, 0u, packed) == 0;
#else
  const bool first = state->status_and_detail == 0;
  if (first) state->status_and_detail = packed;
#endif
  CheckContext* const context = FindContext(state);
  if (first && context != nullptr) {
    context->violations()[state->chunk] = {
        kind, static_cast<u8>(argument), static_cast<u8>(dimension), {}, index, limit};
  }
  // The task has failed, so the end of its scratch memory is no longer needed.
  unsigned char* const dummy = state->scratch + kScratchBytes - (bytes + 15) / 16 * 16;
  RESIDENT_UNROLL(1)
  for (u32 b = 0; b < bytes; ++b) dummy[b] = 0;
  return dummy;
}

RESIDENT_COLD CheckedArgument ReadArgument(BlockState* state, u32 i, u32 scalar_bytes) {
  const bool scalar = scalar_bytes != 0;
  if (const CheckContext* const context = FindContext(state); context != nullptr) {
    ViolationKind kind = ViolationKind::kNone;
    u32 index = 0;
    u32 limit = 0;
    if (i >= context->argument_count) {
      kind = ViolationKind::kArgument;
      index = i;
      limit = context->argument_count;
    } else if ((context->scalar[i] != 0) != scalar) {
      kind = ViolationKind::kArgumentKind;
      index = scalar;
    } else if (scalar && SizeOf(context->dtypes[i]) != scalar_bytes) {
      kind = ViolationKind::kScalarSize;
      index = scalar_bytes;
      limit = SizeOf(context->dtypes[i]);
    }
    if (kind != ViolationKind::kNone) {
      Refuse(state, kind, i, 0, index, limit, 0, 0);
      return {0, 0, nullptr, kAnyElementBytes};
    }
  }
  const TaskDescriptor& task = state->descriptor;
  if ((task.flags & kTaskCompact) && i < kCompactArguments) {
    return {task.compact_argument(i), static_cast<i64>(task.elements()), nullptr, kAnyElementBytes};
  }
  const Argument& argument = state->arguments.arguments[i];
  if (scalar) return {argument.scalar_bits, 0, nullptr, kAnyElementBytes};
  const Tensor<const u8> tensor(argument.tensor);
  return {argument.tensor.address, tensor.size(), &argument.tensor, SizeOf(tensor.dtype())};
}

#if defined(__CUDA_ARCH__)
// Block::barrier() that detects missing threads: without it, if a thread returned or took
// another branch, the others would wait forever.
static __device__ __noinline__ void CheckedBarrier(BlockState* state, u32 threads) {
  constexpr u64 kDefaultLimitNs = 1'000'000'000;
  constexpr u32 kBarrierGivenUp = static_cast<u32>(CompletionStatus::kOutOfBounds) |
                                  static_cast<u32>(ViolationKind::kBarrier) << 16;
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  const CheckContext* const context = FindContext(state);
  const u64 until = now + (context == nullptr ? kDefaultLimitNs : context->barrier_limit_ns);
  __threadfence();
  // Number of arrivals at which the round that includes this arrival is complete.
  const u32 round_end = (atomicAdd(&state->barrier_arrivals, 1u) / threads + 1) * threads;
  volatile u32* const arrivals = &state->barrier_arrivals;
  while (static_cast<i32>(*arrivals - round_end) < 0) {
    if ((*reinterpret_cast<volatile u32*>(&state->status_and_detail) & 0xffffff) ==
        kBarrierGivenUp) {
      break;
    }
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (now < until) continue;
    Refuse(state, ViolationKind::kBarrier, 0, 0, *arrivals % threads, threads, 0, 0);
    break;
  }
  __threadfence();
}
#endif

#endif  // RESIDENT_CHECKED

// On a GPU it is called, and declared, with RESIDENT_OPERATOR_ABI in front.
using OperatorFunction = void (*)(BlockState* state);

// A function normally keeps its caller's values of about 40 registers, which it must store to
// memory and load again; the kernel has almost none when it calls an operator. So operators are
// functions that keep none but their return address. The caller and the function must agree on
// this: the registers of parameters differ too.
#if RESIDENT_GPU
#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ < 13
#error "operators are compiled with CUDA 13 or later: older compilers do not know #pragma nv_abi"
#endif
#define RESIDENT_OPERATOR_ABI _Pragma("nv_abi preserve_n_data(2)")
#else
#define RESIDENT_OPERATOR_ABI
#endif

RESIDENT_SDK_END
}  // namespace resident

#endif  // RESIDENT_KERNELS_SDK_BLOCK_H_
