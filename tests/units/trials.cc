// A unit of operators that a validation must accept or refuse. Each is named after its
// behaviour. The unit is compiled twice, like other units but at build time: as
// resident_op_NAME for serving, and as resident_opc_NAME with checks.
//
// Unless a comment gives another signature, it is
//
//   "x: in f32[*S], out: out f32[*S]"           out = 2 x
#include "kernels/sdk/operator.h"

#if !RESIDENT_GPU
#include <unistd.h>
#endif

#if RESIDENT_CHECKED
#define TRIAL_SYMBOL(name) resident_opc_##name
#else
#define TRIAL_SYMBOL(name) resident_op_##name
#endif
#if RESIDENT_GPU
#define TRIAL_EXPORT extern "C" __device__
#else
#define TRIAL_EXPORT extern "C"
#endif
// RESIDENT_OPERATOR with the symbol of a unit.
#define TRIAL(name)                                                                          \
  namespace {                                                                                \
  struct Trial_##name {                                                                      \
    static RESIDENT_DEVICE void Run(resident::Block& block, const resident::Args& args);     \
  };                                                                                         \
  }                                                                                          \
  RESIDENT_OPERATOR_ABI TRIAL_EXPORT void TRIAL_SYMBOL(name)(resident::BlockState * state) { \
    resident::Block block(state);                                                            \
    const resident::Args args(state);                                                        \
    if (state != nullptr) Trial_##name::Run(block, args);                                    \
  }                                                                                          \
  RESIDENT_DEVICE void Trial_##name::Run

using resident::Args;
using resident::Block;
using resident::CompletionStatus;
using resident::i64;
using resident::Range;
using resident::u64;

namespace {

struct alignas(16) Four {
  float values[4];
};

RESIDENT_DEVICE void Twice(Block& block, const Args& args, Range range) {
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  block.for_each(range, [&](i64 i) { out[i] = 2 * x[i]; });
}

RESIDENT_DEVICE void Twice(Block& block, const Args& args) {
  Twice(block, args, block.share(args.tensor<const float>(0).size()));
}

// A loop that compilers do not remove.
RESIDENT_DEVICE void NeverReturn() {
  while (true) {
#if RESIDENT_GPU
    asm volatile("nanosleep.u32 1000;");
#else
    asm volatile("");
#endif
  }
}

}  // namespace

TRIAL(twice)(Block& block, const Args& args) { Twice(block, args); }

// "x: in f32[*S], y: inout f32[*S], a: scalar f32 = 3"    y += a x
TRIAL(axpy)(Block& block, const Args& args) {
  auto x = args.tensor<const float>(0);
  auto y = args.tensor<float>(1);
  const float a = args.scalar<float>(2);
  block.for_each(block.share(x.size()), [&](i64 i) { y[i] += a * x[i]; });
}

// "x: in f32[R, C], out: out f32[R]"    out = sums of rows; uses at(), memory() and barriers
TRIAL(row_sums)(Block& block, const Args& args) {
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  float* const partial = block.memory<float>(0, Block::kMaxThreads);
  const Range rows = block.share(x.shape(0));
  for (i64 row = rows.begin; row < rows.end; ++row) {
    float sum = 0;
    for (i64 c = block.thread(); c < x.shape(1); c += block.threads()) sum += x.at(row, c);
    partial[block.thread()] = sum;
    block.barrier();
    if (block.thread() == 0) {
      float total = 0;
      for (resident::u32 t = 0; t < block.threads(); ++t) total += partial[t];
      out[row] = total;
    }
    block.barrier();
  }
}

TRIAL(element_past_the_end)(Block& block, const Args& args) {
  Twice(block, args);
  auto out = args.tensor<float>(1);
  if (block.chunk() == 0 && block.thread() == 0) out[out.size()] = 1;
}

TRIAL(raw_write_past_the_end)(Block& block, const Args& args) {
  Twice(block, args);
  auto out = args.tensor<float>(1);
  if (block.thread() == 0) out.data()[out.size()] = 1;
}

TRIAL(raw_write_before_the_start)(Block& block, const Args& args) {
  Twice(block, args);
  if (block.thread() == 0) args.tensor<float>(1).data()[-1] = 1;
}

TRIAL(store_to_null)(Block& block, const Args&) {
  volatile u64 nowhere = 0;  // Volatile, so that compilers cannot detect the null pointer.
  if (block.thread() == 0) *reinterpret_cast<volatile float*>(nowhere) = 1;
}

TRIAL(load_from_nowhere)(Block& block, const Args& args) {
  volatile u64 nowhere = u64{1} << 45;
  args.tensor<float>(1).data()[block.thread()] = *reinterpret_cast<volatile float*>(nowhere);
}

TRIAL(write_to_input)(Block& block, const Args& args) {
  Twice(block, args);
  auto x = args.tensor<float>(0);
  if (block.thread() == 0 && x.size() > 2) x[2] = -1;
}

TRIAL(element_unwritten)(Block& block, const Args& args) {
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  block.for_each(block.share(x.size()), [&](i64 i) {
    if (i != 2) out[i] = 2 * x[i];
  });
}

TRIAL(nothing_written)(Block&, const Args&) {}

// Writes values that equal one of the validation's poisons. These elements do not count as
// unwritten.
TRIAL(poison_written)(Block& block, const Args& args) {
  auto out = args.tensor<float>(1);
  auto* bits = reinterpret_cast<resident::u32*>(out.data());
  block.for_each(block.share(out.size()), [&](i64 i) { bits[i] = 0xffffffffu; });
}

TRIAL(wrong_result)(Block& block, const Args& args) {
  Twice(block, args);
  block.barrier();
  auto out = args.tensor<float>(1);
  if (block.thread() == 0 && out.size() > 1) out[1] = 77;
}

TRIAL(never_returns)(Block&, const Args&) { NeverReturn(); }

TRIAL(never_returns_for_13)(Block& block, const Args& args) {
  auto x = args.tensor<const float>(0);
  if (x.size() > 0 && x[0] == 13) NeverReturn();
  Twice(block, args);
}

TRIAL(fails)(Block& block, const Args&) { block.fail(CompletionStatus::kInternal, 7); }

// Accepts only four elements.
TRIAL(particular)(Block& block, const Args& args) {
  if (args.tensor<const float>(0).size() != 4) {
    block.fail(CompletionStatus::kInvalidArgument, 0);
    return;
  }
  Twice(block, args);
}

TRIAL(trap)(Block&, const Args&) {
#if !RESIDENT_GPU
  __builtin_trap();
#elif defined(__CUDA_ARCH__)
  asm volatile("trap;");
#endif
}

// Ends its thread, or on a CPU its process, and never returns.
TRIAL(leaves)(Block&, const Args&) {
#if !RESIDENT_GPU
  _exit(0);
#elif defined(__CUDA_ARCH__)
  asm volatile("exit;");
#endif
}

// Correct only for the split that it is installed with ("out 64").
TRIAL(fixed_split)(Block& block, const Args& args) {
  const i64 n = args.tensor<const float>(0).size(), begin = 64 * block.chunk();
  Twice(block, args, {begin < n ? begin : n, begin + 64 < n ? begin + 64 : n});
}

// Correct only if its tensors are aligned to 16 bytes.
TRIAL(aligned_only)(Block& block, const Args& args) {
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  auto* to = reinterpret_cast<Four*>(out.data());
#if !RESIDENT_GPU
  // Compilers may generate aligned accesses here. The trap makes the failure independent of
  // that.
  if (reinterpret_cast<u64>(to) % alignof(Four) != 0) __builtin_trap();
#endif
  block.for_each({0, x.size() / 4}, [&](i64 i) {
    const i64 e = 4 * i;
    to[i] = {{2 * x[e], 2 * x[e + 1], 2 * x[e + 2], 2 * x[e + 3]}};
  });
  block.for_each({x.size() / 4 * 4, x.size()}, [&](i64 i) { out[i] = 2 * x[i]; });
}

TRIAL(wrong_element_type)(Block& block, const Args& args) {
  auto x = args.tensor<const double>(0);
  auto out = args.tensor<float>(1);
  block.for_each(block.share(out.size()), [&](i64 i) { out[i] = static_cast<float>(x[i / 2]); });
}

TRIAL(missing_argument)(Block& block, const Args& args) {
  Twice(block, args);
  auto y = args.tensor<float>(2);
  if (block.thread() == 0) y[0] = 1;
}

// The results in several chunks differ slightly from those on one block.
TRIAL(order_matters)(Block& block, const Args& args) {
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  const float factor = block.chunk_count() > 1 ? 2.000001f : 2.0f;
  block.for_each(block.share(x.size()), [&](i64 i) { out[i] = factor * x[i]; });
}

TRIAL(divergent_barrier)(Block& block, const Args& args) {
  Twice(block, args);
  if (block.thread() % 2 == 0) block.barrier();
}

TRIAL(scratch_past_the_end)(Block& block, const Args& args) {
  Twice(block, args);
  if (block.thread() == 0) *block.scratch<float>(resident::kScratchBytes) = 1;
}
