// The family "decoding": tokens drawn from logits, and the choice at the end of a decoding step.
//
// A token is the same on every engine, for any number of threads and chunks: probabilities are
// integers, computed with integer operations and with single operations of float32 that round
// exactly, so that no compiler can contract or reorder them. Sums of integers do not depend on the
// order.
#include "kernels/ops/largest_index.h"
#include "kernels/ops/philox.h"
#include "kernels/ops/rows.h"
#include "kernels/ops/selection.h"
#include "kernels/sdk/atomic.h"

namespace resident {
namespace {

// Details of INVALID_ARGUMENT.
constexpr u16 kBadTemperature = 1;
constexpr u16 kBadLimit = 2;
constexpr u16 kBadRow = 3;

// --- Integer arithmetic -------------------------------------------------------------------------

// The upper 64 bits of the product.
RESIDENT_DEVICE u64 MultiplyHigh(u64 a, u64 b) {
  const u64 a_low = a & 0xffffffffu;
  const u64 b_low = b & 0xffffffffu;
  const u64 a_high = a >> 32;
  const u64 b_high = b >> 32;
  const u64 middle = a_high * b_low + (a_low * b_low >> 32);
  const u64 other = a_low * b_high + (middle & 0xffffffffu);
  return a_high * b_high + (middle >> 32) + (other >> 32);
}

// 2^31 * 2^(g / 2^32): a polynomial with a relative error below 2^-29. All coefficients are
// positive, so it increases with g; it stays below 2^32.
RESIDENT_DEVICE u32 PowerOfTwo(u32 g) {
  u64 sum = 46477;
  sum = 307145 + (sum * g >> 32);
  sum = 2883937 + (sum * g >> 32);
  sum = 20644974 + (sum * g >> 32);
  sum = 119196685 + (sum * g >> 32);
  sum = 515882179 + (sum * g >> 32);
  sum = 1488522251 + (sum * g >> 32);
  sum = 2147483648u + (sum * g >> 32);
  return static_cast<u32>(sum);
}

// --- Probabilities ------------------------------------------------------------------------------

// A row of logits, with integer weights that are proportional to the probabilities.
struct Row {
  Elements<false> logits;
  i64 at;
  i64 columns;
  float largest;
  float temperature;
  u32 bits;  // The weight of the largest logit is 2^bits.

  RESIDENT_DEVICE u32 Key(i64 c) const { return OrderedKey(logits.Load(at + c)); }

  // exp((x - largest) / temperature) * 2^bits, rounded down. The relative error is about 2^-25, as
  // for float32. The weight does not decrease with x.
  RESIDENT_DEVICE u64 Weight(i64 c) const {
    const float distance = (largest - logits.Load(at + c)) / temperature;
    if (!(distance < 64.0f)) return 0;  // Also for infinity / infinity.
    // The exponent of 2: 57 bits of fraction, from 26 and 31 bits.
    const u64 exponent =
        u64{static_cast<u32>(distance * 67108864.0f)} * 3098164009u;  // log2(e) * 2^31.
    const u64 whole = (exponent + (u64{1} << 57) - 1) >> 57;          // Rounded up.
    const u32 fraction = static_cast<u32>(((whole << 57) - exponent) >> 25);
    return whole > 63 ? 0 : u64{PowerOfTwo(fraction)} << 21 >> whole >> (52 - bits);
  }
};

// The weights of a row of `columns` add up to less than 2^63.
RESIDENT_DEVICE u32 WeightBits(i64 columns) {
  u32 bits = 62;
  RESIDENT_UNROLL(1)
  while (bits > 0 && columns > i64{1} << (62 - bits)) --bits;
  return bits < 52 ? bits : 52;
}

// A random integer in [0, total): the total times 64 random bits, divided by 2^64. The key is the
// seed; the counter is offset + row, in words 0 and 1. Words 0 (lower) and 1 of the result are
// used.
RESIDENT_DEVICE u64 Draw(i64 seed, i64 offset, i64 row, u64 total) {
  const u64 key = static_cast<u64>(seed);
  const u64 counter = static_cast<u64>(offset) + static_cast<u64>(row);
  const PhiloxWords random =
      Philox({{static_cast<u32>(counter), static_cast<u32>(counter >> 32), 0, 0}},
             static_cast<u32>(key), static_cast<u32>(key >> 32));
  return MultiplyHigh(random.words[0] | u64{random.words[1]} << 32, total);
}

// The smallest integer that is at least p * total, for 0 < p <= 1.
RESIDENT_DEVICE u64 Part(float p, u64 total) {
  const u64 scaled = static_cast<u64>(static_cast<double>(p) * 9223372036854775808.0);
  const u64 high = MultiplyHigh(scaled, total);
  const u64 low = scaled * total;
  const u64 part = (high << 1 | low >> 63) + (low << 1 != 0 ? 1 : 0);
  return part > 0 ? part : 1;
}

// --- Sampling -----------------------------------------------------------------------------------

// Which tokens can be drawn.
enum class Limit { kNone, kCount, kProbability };

// (collective) The first index of the largest logit.
RESIDENT_DEVICE i64 FirstLargest(const Block& block, const Team& team, const Row& row, u32 key) {
  i64 index = team.rank;
  RESIDENT_UNROLL(1)
  while (index < row.columns && row.Key(index) != key) index += team.size;
  return Combine(block, team, index, [](i64 a, i64 b) { return a < b ? a : b; });
}

// Draws a token for each row. `k` or `p`: the limit.
RESIDENT_NOINLINE void Sample(Block block, Args args, Limit limit, i64 k, float p) {
  const auto logits = args.tensor<const Any>(0);
  const auto tokens = args.tensor<i64>(1);
  const float temperature = args.scalar<float>(2);
  const i64 seed = args.scalar<i64>(3);
  const i64 offset = args.scalar<i64>(4);
  const i64 columns = logits.shape(1);
  if (!(temperature >= 0.0f)) {
    block.fail(CompletionStatus::kInvalidArgument, kBadTemperature);
    return;
  }
  if ((limit == Limit::kCount && (k < 1 || (k > columns && columns > 0))) ||
      (limit == Limit::kProbability && !(p > 0.0f && p <= 1.0f))) {
    block.fail(CompletionStatus::kInvalidArgument, kBadLimit);
    return;
  }
  if (tokens.size() == 0) return;
  if (columns == 0) {
    block.fail(CompletionStatus::kInvalidArgument, kBadRow);
    return;
  }
  const Team all(block, columns, 1);
  const Range range = block.share(tokens.size());
  Row row = {Elements<false>(logits), 0, columns, 0, temperature, WeightBits(columns)};
  RESIDENT_UNROLL(1)
  for (i64 r = range.begin; r < range.end; ++r) {
    row.at = r * columns;
    row.largest = Largest(block, all, columns, [&](i64 c) { return row.logits.Load(row.at + c); });
    i64 token = 0;
    if (temperature == 0.0f) {
      token = FirstLargest(block, all, row, OrderedKey(row.largest));
    } else if (row.largest - row.largest != 0.0f) {
      block.fail(CompletionStatus::kInvalidArgument, kBadRow);
      continue;
    } else {
      const auto key = [&](i64 c) { return row.Key(c); };
      const auto weight = [&](i64 c) { return row.Weight(c); };
      Selection selection = {0, columns};  // All columns: no key is 0.
      if (limit == Limit::kCount) {
        const auto one = [](i64) { return u64{1}; };
        selection = Select(block, columns, key, one, static_cast<u64>(k));
      } else if (limit == Limit::kProbability) {
        u64 sum = 0;
        for (i64 c = block.thread(); c < columns; c += block.threads()) sum += weight(c);
        sum = block.reduce_sum(sum);
        selection = Select(block, columns, key, weight, Part(p, sum));
      }
      token = FindWeight(
          block, columns, [&](i64 c) { return selection.Has(key(c), c) ? weight(c) : u64{0}; },
          [&](u64 total) { return Draw(seed, offset, r, total); });
    }
    if (block.thread() == 0) tokens.data()[r] = token;
  }
}

}  // namespace

// --- The end of a decoding step -----------------------------------------------------------------

namespace {

// The arguments of choose_token, in their order.
enum ChooseArgument : u32 {
  kChooseLogits,
  kChooseParts,
  kChooseArrived,
  kChooseToken,
  kChooseReported,
  kChooseRecord,
  kChoosePos,
  kChoosePromptLen,
};

// Details of INVALID_ARGUMENT.
constexpr u16 kBadLogits = 1;
constexpr u16 kNoParts = 2;
constexpr u16 kBadArrivals = 3;

// The part of the calling thread's logits among [begin, end), where begin is a multiple of 4.
RESIDENT_DEVICE u64 LargestLogit(const Block& block, const Tensor<const Any>& logits, u32 begin,
                                 u32 end) {
  const u64 address = AddressOf(logits);
  if (logits.dtype() == DType::kF32 && address % sizeof(Quad<float>) == 0) {
    return LargestOfThread(block, address, begin, end);
  }
  u64 part = 0;
  RESIDENT_UNROLL(4)
  for (u64 c = u64{begin} + block.thread(); c < end; c += block.threads()) {
    const float logit = LoadFloat(address, logits.dtype(), static_cast<i64>(c));
    part = LargerPart(part, MakePart(OrderedKey(logit), static_cast<u32>(c)));
  }
  return part;
}

// (collective) The part of all logits, in the chunk that is the last to have arrived; 0 in the
// others. `own`: the part of this chunk's logits, `share`: its elements of `parts`.
RESIDENT_DEVICE u64 CombineChunks(const Block& block, const Args& args, Range share, u64 own) {
  i64* const parts = args.tensor<i64>(kChooseParts).data();
  block.for_each(share, [&](i64 i) { parts[i] = i == share.begin ? static_cast<i64>(own) : 0; });
  if (block.chunk_count() == 1) return own;
  block.barrier();
  u32 last = 0;
  if (block.thread() == 0) {
    i32* const arrived = args.tensor<i32>(kChooseArrived).data();
    const i32 before = atomic_arrive(arrived);
    if (before < 0 || before >= block.chunk_count()) {
      block.fail(CompletionStatus::kInvalidArgument, kBadArrivals);
    }
    last = i64{before} + 1 == block.chunk_count() ? 1 : 0;
    if (last != 0) *arrived = 0;
  }
  last = block.reduce(last, [](u32 a, u32 b) { return a | b; });
  if (last == 0) return 0;
  u64 part = 0;
  block.for_each({0, args.tensor<i64>(kChooseParts).size()},
                 [&](i64 i) { part = LargerPart(part, static_cast<u64>(parts[i])); });
  return block.reduce(part, LargerPart);
}

}  // namespace

RESIDENT_OPERATOR(choose_token)(Block& block, const Args& args) {
  const auto logits = args.tensor<const Any>(kChooseLogits);
  const i64 columns = logits.size();
  const i64 parts = args.tensor<i64>(kChooseParts).size();
  const Range share = block.share(parts);
  if (!block.await_inputs()) return;
  if (columns == 0 || columns >> 31 != 0) {
    block.fail(CompletionStatus::kInvalidArgument, kBadLogits);
    return;
  }
  if (parts == 0) {
    block.fail(CompletionStatus::kInvalidArgument, kNoParts);
    return;
  }
  // Of an element of `parts`: whole quads.
  const i64 width = Quotient(Quotient(columns + parts - 1, parts) + 3, 4) * 4;
  const i64 begin = Smallest(share.begin * width, columns);
  const i64 end = Smallest(share.end * width, columns);
  u64 own = 0;
  if (begin < end) {
    own = LargestLogit(block, logits, static_cast<u32>(begin), static_cast<u32>(end));
  }
  own = block.reduce(own, LargerPart);
  const u64 part = CombineChunks(block, args, share, own);
  if (part == 0 || block.thread() != 0) return;
  const i64 token = IndexOfPart(part);
  // While the prompt has a token for the next position, nobody sees this one.
  const i64 length = args.scalar<i64>(kChoosePromptLen);
  const bool hidden = length > 0 && args.scalar<i64>(kChoosePos) < length - 1;
  args.tensor<i64>(kChooseToken).data()[0] = token;
  args.tensor<i64>(kChooseReported).data()[0] = hidden ? -1 : token;
  args.tensor<i64>(kChooseRecord).data()[0] = hidden ? -1 : token;
}

RESIDENT_OPERATOR(sample)(Block& block, const Args& args) {
  Sample(block, args, Limit::kNone, 0, 0);
}
RESIDENT_OPERATOR(sample_topk)(Block& block, const Args& args) {
  Sample(block, args, Limit::kCount, args.scalar<i64>(5), 0);
}
RESIDENT_OPERATOR(sample_topp)(Block& block, const Args& args) {
  Sample(block, args, Limit::kProbability, 0, args.scalar<float>(5));
}

}  // namespace resident
