// pointwise: interprets a program (pointwise_program.h) for each element of its output.
//
// A thread runs an instruction for several elements at a time (Lanes), so that they share the time
// of its dispatch, which is the same for all threads. Registers of the program are in the block's
// memory: each thread accesses only its own ones, so that no barriers are needed between
// instructions. The program is copied there first and checked in this copy, because whoever has the
// tensor may change it meanwhile.
#include "kernels/ops/numbers.h"
#include "kernels/ops/pointwise_program.h"
#include "kernels/sdk/operator.h"

#if RESIDENT_GPU
#define RESIDENT_C_FUNCTION(name) ::name
#else
#define RESIDENT_C_FUNCTION(name) __builtin_##name
#endif

namespace resident {
namespace {

using pointwise::kImmediate;
using pointwise::kInputs;
using pointwise::kRegisters;
using pointwise::Op;

// Details of INVALID_ARGUMENT.
constexpr u16 kBadProgram = 1;
constexpr u16 kBadShape = 2;
constexpr u16 kBadType = 3;

constexpr i32 kOperands = kInputs + 1;
constexpr u32 kMaxRows = 1 + pointwise::kMaxInstructions;

// Bytes of a register of the program in all elements of one thread. A GPU accesses them at once;
// the host's compiler makes vector instructions of larger ones.
#if RESIDENT_GPU || defined(RESIDENT_EMULATED_THREADS)
constexpr i32 kLaneBytes = 16;
#else
constexpr i32 kLaneBytes = 256;
#endif
template <typename W>
inline constexpr i32 kLanes = kLaneBytes / static_cast<i32>(sizeof(W));

template <typename W>
struct alignas(16) Lanes {
  W v[kLanes<W>];
};
using FloatLanes = Lanes<float>;

// --- The task in the block's memory -------------------------------------------------------------

struct Task {
  IndexMap<kOperands> map;
  u64 addresses[kOperands];
  DType dtypes[kOperands];
  // Elements of the innermost dimension that is not 1, and the strides of operands along it.
  i64 inner;
  i64 inner_strides[kOperands];
  u32 inputs;   // Bit k: input k is present.
  u32 outside;  // Bit k: input k does not broadcast to the output.
  bool wide;    // An operand is i64 or u32.
  bool quads;   // All operands are float32 and aligned to 16 bytes.
  u32 rows;
  u64 program[2 * kMaxRows];

  RESIDENT_DEVICE void Read(const Args& args) {
    const Tensor<const Any> out = args.tensor<const Any>(kOperands);
    u32 last = out.rank();
    while (last > 0 && out.shape(last - 1) == 1) --last;
    inner = last == 0 ? 1 : out.shape(last - 1);
    inputs = outside = 0;
    wide = false;
    quads = true;
    map.Start(out);
    RESIDENT_UNROLL(1)
    for (i32 k = 0; k < kOperands; ++k) {
      const Tensor<const Any> tensor = args.tensor<const Any>(static_cast<u32>(k) + 1);
      const bool absent = k > 0 && k < i32{kInputs} && tensor.size() == 0 && out.size() != 0;
      const bool fits = absent || Broadcasts(tensor, out);
      if (!absent) inputs |= 1u << k;
      if (!fits) outside |= 1u << k;
      const Tensor<const Any>& view = absent || !fits ? out : tensor;
      map.Add(k, view);
      const u32 missing = out.rank() - view.rank();
      const bool moves = last > missing && view.shape(last - 1 - missing) != 1;
      inner_strides[k] = moves ? view.stride(last - 1 - missing) : 0;
      addresses[k] = AddressOf(view);
      dtypes[k] = view.dtype();
      wide = wide || dtypes[k] == DType::kI64 || dtypes[k] == DType::kU32;
      quads = quads && dtypes[k] == DType::kF32 && addresses[k] % 16 == 0;
    }
    inputs &= (1u << kInputs) - 1;
    map.Finish();
    quads = quads && map.dense();
  }

  static RESIDENT_DEVICE bool Broadcasts(const Tensor<const Any>& view,
                                         const Tensor<const Any>& out) {
    if (view.rank() > out.rank()) return false;
    const u32 missing = out.rank() - view.rank();
    bool fits = true;
    RESIDENT_UNROLL(1)
    for (u32 d = 0; d < view.rank(); ++d) {
      fits = fits && (view.shape(d) == 1 || view.shape(d) == out.shape(d + missing));
    }
    return fits;
  }

  RESIDENT_DEVICE u32 bits() const { return static_cast<u32>(program[0] >> 8 & 0xff); }
  RESIDENT_DEVICE u32 result() const { return static_cast<u32>(program[0] >> 16 & 0xff); }

  RESIDENT_DEVICE bool HeaderIsValid() const {
    const u32 width = bits();
    return (width == 32 || width == 64) && result() < kRegisters && program[1] == 0 &&
           program[0] == static_cast<u64>(pointwise::HeaderWord(width, result())) &&
           (WrittenBefore(rows) >> result() & 1) != 0;
  }

  // The registers that have a value in front of a row.
  RESIDENT_DEVICE u32 WrittenBefore(u32 row) const {
    u32 written = inputs;
    for (u32 r = 1; r < row; ++r) written |= 1u << (program[2 * r] >> 8 & 31);
    return written;
  }

  RESIDENT_DEVICE bool RowIsValid(u32 row) const {
    const u64 word = program[2 * row];
    const u32 operands = pointwise::CountOperands(static_cast<u32>(word & 0xff));
    const u32 written = WrittenBefore(row);
    bool valid = operands != 0 && (word >> 8 & 0xff) < kRegisters && word >> 40 == 0;
    bool immediate = false;
    for (u32 i = 0; i < 3; ++i) {
      const u32 operand = static_cast<u32>(word >> (16 + 8 * i) & 0xff);
      immediate = immediate || operand == kImmediate;
      const bool readable =
          operand == kImmediate || (operand < 32 && (written >> operand & 1) != 0);
      valid = valid && (i < operands ? readable : operand == 0);
    }
    return valid && (immediate || program[2 * row + 1] == 0);
  }
};

// Registers of the program begin here in the block's memory.
constexpr u32 kFileOffset = 2048;
static_assert(sizeof(Task) <= kFileOffset, "");
static_assert(kFileOffset + kRegisters * Block::kMaxThreads * kLaneBytes <= kBlockMemoryBytes, "");

// --- Elements -----------------------------------------------------------------------------------

// The value of a register, as a float or an integer.
template <typename W>
RESIDENT_DEVICE float AsFloat(W word) {
  return bit_cast<float>(static_cast<u32>(word));
}
template <typename W>
RESIDENT_DEVICE W FromFloat(float value) {
  return bit_cast<u32>(value);
}
RESIDENT_DEVICE i32 AsInteger(u32 word) { return static_cast<i32>(word); }
RESIDENT_DEVICE i64 AsInteger(u64 word) { return static_cast<i64>(word); }

// Whether elements of this type are floats in registers.
template <typename T>
inline constexpr bool kIsFloat = sizeof(T) == 2;  // There are no integers of 16 bits.
template <>
inline constexpr bool kIsFloat<float> = true;

template <typename F>
RESIDENT_DEVICE void VisitStored(DType dtype, F f) {
  switch (dtype) {
    case DType::kF16:
      return f(Half(0.0f));
    case DType::kBF16:
      return f(BFloat16(0.0f));
    case DType::kI32:
      return f(i32{});
    case DType::kI64:
      return f(i64{});
    case DType::kU8:
      return f(u8{});
    case DType::kI8:
      return f(i8{});
    case DType::kU32:
      return f(u32{});
    default:
      return f(float{});
  }
}

// Copies `count` elements of an operand to a register, beginning at `lanes`.
template <typename W>
RESIDENT_NOINLINE void LoadRun(W* lanes, u64 address, DType dtype, i64 offset, i64 stride,
                               i32 count) {
  VisitStored(dtype, [&](auto element) {
    using T = decltype(element);
    const T* const from = ElementAt<const T>(address, offset);
    for (i32 e = 0; e < count; ++e) {
      const T value = from[e * stride];
      if constexpr (kIsFloat<T>) {
        lanes[e] = FromFloat<W>(static_cast<float>(value));
      } else {
        lanes[e] = static_cast<W>(value);
      }
    }
  });
}

template <typename W>
RESIDENT_NOINLINE void StoreRun(const W* lanes, u64 address, DType dtype, i64 offset, i64 stride,
                                i32 count) {
  VisitStored(dtype, [&](auto element) {
    using T = decltype(element);
    T* const to = ElementAt<T>(address, offset);
    for (i32 e = 0; e < count; ++e) {
      if constexpr (kIsFloat<T>) {
        to[e * stride] = T(AsFloat(lanes[e]));
      } else {
        to[e * stride] = static_cast<T>(lanes[e]);
      }
    }
  });
}

// The offsets of element i in all operands. Returns how many of the elements from i on, at most
// `count`, have one stride in each operand.
RESIDENT_DEVICE i32 FindRun(const Task& task, i64 i, i32 count, i64 (&offsets)[kOperands]) {
  if (task.map.dense()) {
    for (i32 k = 0; k < kOperands; ++k) offsets[k] = i;
    return count;
  }
  task.map.Offsets(i, offsets);
  const i64 rest = task.inner - (i - Quotient(i, task.inner) * task.inner);
  return rest < count ? static_cast<i32>(rest) : count;
}

// --- Instructions -------------------------------------------------------------------------------

// The functions of one float. They have four copies of each function, so there is one of them.
RESIDENT_NOINLINE FloatLanes Apply(u32 op, FloatLanes x) {
  const auto each = [&](auto function) {
    for (i32 e = 0; e < kLanes<float>; ++e) x.v[e] = function(x.v[e]);
    return x;
  };
  switch (static_cast<Op>(op)) {
    case Op::kFloatNeg:
      return each([](float v) { return -v; });
    case Op::kFloatAbs:
      return each([](float v) { return math::abs(v); });
    case Op::kSqrt:
      return each([](float v) { return math::sqrt(v); });
    case Op::kRsqrt:
      return each([](float v) { return math::rsqrt(v); });
    case Op::kReciprocal:
      return each([](float v) { return 1.0f / v; });
    case Op::kExp:
      return each([](float v) { return math::exp(v); });
    case Op::kExpm1:
      return each([](float v) { return math::expm1(v); });
    case Op::kLog:
      return each([](float v) { return math::log(v); });
    case Op::kLog1p:
      return each([](float v) { return math::log1p(v); });
    case Op::kSin:
      return each([](float v) { return math::sin(v); });
    case Op::kCos:
      return each([](float v) { return math::cos(v); });
    case Op::kTan:
      return each([](float v) { return RESIDENT_C_FUNCTION(tanf)(v); });
    case Op::kAsin:
      return each([](float v) { return RESIDENT_C_FUNCTION(asinf)(v); });
    case Op::kAcos:
      return each([](float v) { return RESIDENT_C_FUNCTION(acosf)(v); });
    case Op::kAtan:
      return each([](float v) { return RESIDENT_C_FUNCTION(atanf)(v); });
    case Op::kSinh:
      return each([](float v) { return RESIDENT_C_FUNCTION(sinhf)(v); });
    case Op::kCosh:
      return each([](float v) { return RESIDENT_C_FUNCTION(coshf)(v); });
    case Op::kTanh:
      return each([](float v) { return math::tanh(v); });
    case Op::kAsinh:
      return each([](float v) { return RESIDENT_C_FUNCTION(asinhf)(v); });
    case Op::kAcosh:
      return each([](float v) { return RESIDENT_C_FUNCTION(acoshf)(v); });
    case Op::kAtanh:
      return each([](float v) { return RESIDENT_C_FUNCTION(atanhf)(v); });
    case Op::kErf:
      return each([](float v) { return math::erf(v); });
    case Op::kSigmoid:
      return each([](float v) { return math::sigmoid(v); });
    case Op::kFloor:
      return each([](float v) { return math::floor(v); });
    case Op::kCeil:
      return each([](float v) { return math::ceil(v); });
    case Op::kRound:
      return each([](float v) { return math::round(v); });
    case Op::kTrunc:
      return each([](float v) { return math::trunc(v); });
    default:  // kSign.
      return each([](float v) { return v > 0.0f ? 1.0f : v < 0.0f ? -1.0f : v; });
  }
}

RESIDENT_NOINLINE float Power(float x, float y) { return math::pow(x, y); }
RESIDENT_NOINLINE float Remainder(float x, float y) { return RESIDENT_C_FUNCTION(fmodf)(x, y); }

// Towards 0. The quotient of the lowest integer and -1 wraps.
template <typename W>
RESIDENT_NOINLINE W Divide(W x, W y) {
  if (y == 0) return 0;
  if (y == ~W{0}) return W{0} - x;
  return static_cast<W>(AsInteger(x) / AsInteger(y));
}
template <typename W>
RESIDENT_DEVICE W Rest(W x, W y) {
  return y == 0 ? 0 : x - Divide(x, y) * y;
}
template <typename W>
RESIDENT_DEVICE W Modulo(W x, W y) {
  const W rest = Rest(x, y);
  return rest != 0 && (AsInteger(rest) < 0) != (AsInteger(y) < 0) ? rest + y : rest;
}
template <typename W>
RESIDENT_NOINLINE W IntegerPower(W x, W y) {
  if (AsInteger(y) < 0) {
    const W inverse = x == ~W{0} && (y & 1) == 0 ? 1 : x;
    return x == 1 || x == ~W{0} ? inverse : 0;
  }
  W power = 1;
  RESIDENT_UNROLL(1)
  for (; y != 0; y >>= 1) {
    if (x == 0) return 0;
    if (x == 1) return power;
    if (y & 1) power *= x;
    x *= x;
  }
  return power;
}

// The registers of the calling thread.
template <typename W>
class File {
 public:
  RESIDENT_DEVICE explicit File(const Block& block)
      : lanes_(block.memory<Lanes<W>>(kFileOffset, kRegisters * Block::kMaxThreads) +
               block.thread()) {}

  RESIDENT_DEVICE Lanes<W>& operator[](u32 i) const { return lanes_[i * Block::kMaxThreads]; }

  // Runs the instructions for the elements whose inputs are in the registers.
  RESIDENT_DEVICE void Run(const Task& task) const {
    RESIDENT_UNROLL(1)
    for (u32 row = 1; row < task.rows; ++row) {
      RunInstruction(task.program[2 * row], static_cast<W>(task.program[2 * row + 1]));
    }
  }

 private:
  RESIDENT_DEVICE Lanes<W> Operand(u32 i, W immediate) const {
    if (i != kImmediate) return (*this)[i];
    Lanes<W> all;
    for (i32 e = 0; e < kLanes<W>; ++e) all.v[e] = immediate;
    return all;
  }

  RESIDENT_DEVICE void RunInstruction(u64 word, W immediate) const {
    const u32 op = static_cast<u32>(word & 0xff);
    const u32 to = static_cast<u32>(word >> 8 & 0xff);
    Lanes<W> x = Operand(static_cast<u32>(word >> 16 & 0xff), immediate);
    if (op < pointwise::kUnary) {
      (*this)[to] = Unary(op, x);
      return;
    }
    const Lanes<W> y = Operand(static_cast<u32>(word >> 24 & 0xff), immediate);
    if (op < pointwise::kUnary + pointwise::kBinary) {
      (*this)[to] = Binary(op, x, y);
      return;
    }
    const Lanes<W> z = Operand(static_cast<u32>(word >> 32 & 0xff), immediate);
    for (i32 e = 0; e < kLanes<W>; ++e) x.v[e] = x.v[e] != 0 ? y.v[e] : z.v[e];
    (*this)[to] = x;
  }

  RESIDENT_DEVICE static Lanes<W> Unary(u32 op, Lanes<W> x) {
    const auto each = [&](auto function) {
      for (i32 e = 0; e < kLanes<W>; ++e) x.v[e] = function(x.v[e]);
      return x;
    };
    switch (static_cast<Op>(op)) {
      case Op::kCopy:
        return x;
      case Op::kToInt:
        return each(
            [](W v) { return static_cast<W>(Convert<decltype(AsInteger(W{}))>(AsFloat(v))); });
      case Op::kToFloat:
        return each([](W v) { return FromFloat<W>(static_cast<float>(AsInteger(v))); });
      case Op::kToI8:
        return each([](W v) { return static_cast<W>(static_cast<i8>(v)); });
      case Op::kToU8:
        return each([](W v) { return static_cast<W>(static_cast<u8>(v)); });
      case Op::kToI32:
        return each([](W v) { return static_cast<W>(static_cast<i32>(v)); });
      case Op::kToU32:
        return each([](W v) { return static_cast<W>(static_cast<u32>(v)); });
      default: {
        FloatLanes floats;
        for (i32 e = 0; e < kLanes<float>; ++e) {
          floats.v[e] = e < kLanes<W> ? AsFloat(x.v[e < kLanes<W> ? e : 0]) : 0.0f;
        }
        floats = Apply(op, floats);
        for (i32 e = 0; e < kLanes<W>; ++e) x.v[e] = FromFloat<W>(floats.v[e]);
        return x;
      }
    }
  }

  RESIDENT_DEVICE static Lanes<W> Binary(u32 op, Lanes<W> x, const Lanes<W>& y) {
    const auto each = [&](auto function) {
      for (i32 e = 0; e < kLanes<W>; ++e) x.v[e] = function(x.v[e], y.v[e]);
      return x;
    };
    const auto floats = [&](auto function) {
      return each([&](W v, W w) { return FromFloat<W>(function(AsFloat(v), AsFloat(w))); });
    };
    const auto compare = [&](auto function) {
      return each([&](W v, W w) { return W{function(AsFloat(v), AsFloat(w)) ? 1u : 0u}; });
    };
    constexpr W kBits = 8 * sizeof(W);
    switch (static_cast<Op>(op)) {
      case Op::kFloatAdd:
        return floats([](float v, float w) { return v + w; });
      case Op::kFloatSub:
        return floats([](float v, float w) { return v - w; });
      case Op::kFloatMul:
        return floats([](float v, float w) { return v * w; });
      case Op::kFloatDiv:
        return floats([](float v, float w) { return v / w; });
      case Op::kFloatMax:
        return floats([](float v, float w) { return math::maximum(v, w); });
      case Op::kFloatMin:
        return floats([](float v, float w) { return math::minimum(v, w); });
      case Op::kFloatPow:
        return floats([](float v, float w) { return Power(v, w); });
      case Op::kFloatRemainder:
        return floats([](float v, float w) { return Remainder(v, w); });
      case Op::kFloatEqual:
        return compare([](float v, float w) { return v == w; });
      case Op::kFloatLess:
        return compare([](float v, float w) { return v < w; });
      case Op::kFloatLessOrEqual:
        return compare([](float v, float w) { return v <= w; });
      case Op::kAdd:
        return each([](W v, W w) { return v + w; });
      case Op::kSub:
        return each([](W v, W w) { return v - w; });
      case Op::kMul:
        return each([](W v, W w) { return v * w; });
      case Op::kDiv:
        return each([](W v, W w) { return Divide(v, w); });
      case Op::kRemainder:
        return each([](W v, W w) { return Rest(v, w); });
      case Op::kModulo:
        return each([](W v, W w) { return Modulo(v, w); });
      case Op::kMax:
        return each([](W v, W w) { return AsInteger(v) > AsInteger(w) ? v : w; });
      case Op::kMin:
        return each([](W v, W w) { return AsInteger(v) < AsInteger(w) ? v : w; });
      case Op::kPow:
        return each([](W v, W w) { return IntegerPower(v, w); });
      case Op::kEqual:
        return each([](W v, W w) { return W{v == w}; });
      case Op::kLess:
        return each([](W v, W w) { return W{AsInteger(v) < AsInteger(w)}; });
      case Op::kLessOrEqual:
        return each([](W v, W w) { return W{AsInteger(v) <= AsInteger(w)}; });
      case Op::kAnd:
        return each([](W v, W w) { return v & w; });
      case Op::kOr:
        return each([](W v, W w) { return v | w; });
      case Op::kXor:
        return each([](W v, W w) { return v ^ w; });
      case Op::kShiftLeft:
        return each([](W v, W w) { return w < kBits ? v << w : 0; });
      default:  // kShiftRight.
        return each([](W v, W w) { return w < kBits ? v >> w : 0; });
    }
  }

  Lanes<W>* lanes_;
};

// --- The operator -------------------------------------------------------------------------------

template <typename W>
RESIDENT_NOINLINE void MapProgram(Block block) {
  const Task& task = *block.memory<Task>();
  const File<W> file(block);
  const Range range = block.share(task.map.size(), kMapStep);
  const i64 step = i64{kLanes<W>} * block.threads();
#if RESIDENT_GPU
  // Dense float32: the loads for the next elements are issued before the program runs.
  Lanes<u32> next[kInputs];
  const auto request = [&](i64 i) {
    if constexpr (sizeof(W) == 4) {
      if (!task.quads || i + kLanes < W >> range.end) return;
#pragma unroll
      for (u32 k = 0; k < kInputs; ++k) {
        if (task.inputs >> k & 1) {
          const uint4 q =
              *reinterpret_cast<const uint4*>(ElementAt<const float>(task.addresses[k], i));
          next[k].v[0] = q.x, next[k].v[1] = q.y, next[k].v[2] = q.z, next[k].v[3] = q.w;
        }
      }
    }
  };
  request(range.begin + i64{kLanes<W>} * block.thread());
#endif
  RESIDENT_UNROLL(1)
  for (i64 i = range.begin + i64{kLanes<W>} * block.thread(); i < range.end; i += step) {
    const i32 count = range.end - i < kLanes<W> ? static_cast<i32>(range.end - i) : kLanes<W>;
#if RESIDENT_GPU
    if constexpr (sizeof(W) == 4) {
      if (task.quads && count == kLanes<W>) {
#pragma unroll
        for (u32 k = 0; k < kInputs; ++k) {
          if (task.inputs >> k & 1) file[k] = next[k];
        }
        request(i + step);
        file.Run(task);
        const Lanes<u32> r = file[task.result()];
        *reinterpret_cast<uint4*>(ElementAt<float>(task.addresses[kInputs], i)) =
            make_uint4(r.v[0], r.v[1], r.v[2], r.v[3]);
        continue;
      }
    }
#endif
    i64 offsets[kOperands] = {};
    i32 run = 0;
    RESIDENT_UNROLL(1)
    for (i32 lane = 0; lane < count; lane += run) {
      run = FindRun(task, i + lane, count - lane, offsets);
      RESIDENT_UNROLL(1)
      for (u32 k = 0; k < kInputs; ++k) {
        if ((task.inputs >> k & 1) == 0) continue;
        LoadRun(file[k].v + lane, task.addresses[k], task.dtypes[k], offsets[k],
                task.inner_strides[k], run);
      }
    }
    file.Run(task);
    // The offsets are those of the first element unless there were several runs.
    const bool several = run != count;
    RESIDENT_UNROLL(1)
    for (i32 lane = 0; lane < count; lane += run) {
      if (several) run = FindRun(task, i + lane, count - lane, offsets);
      StoreRun(file[task.result()].v + lane, task.addresses[kInputs], task.dtypes[kInputs],
               offsets[kInputs], task.inner_strides[kInputs], run);
    }
  }
}

}  // namespace

RESIDENT_OPERATOR(pointwise)(Block& block, const Args& args) {
  Task& task = *block.memory<Task>();
  const Tensor<const i64> program = args.tensor<const i64>(0);
  const i64 rows = program.shape(0);
  if (rows < 2 || rows > i64{kMaxRows}) {
    block.fail(CompletionStatus::kInvalidArgument, kBadProgram);
    return;
  }
  if (block.thread() == 0) {
    task.Read(args);
    task.rows = static_cast<u32>(rows);
  }
  block.for_each({0, 2 * rows}, [&](i64 i) { task.program[i] = static_cast<u64>(program[i]); });
  block.barrier();
  u32 invalid = 0;
  block.for_each({0, rows}, [&](i64 row) {
    const u32 r = static_cast<u32>(row);
    invalid |= (r == 0 ? task.HeaderIsValid() : task.RowIsValid(r)) ? 0 : 1;
  });
  invalid = block.reduce(invalid, [](u32 a, u32 b) { return a | b; });
  if (invalid != 0) {
    block.fail(CompletionStatus::kInvalidArgument, kBadProgram);
  } else if (task.outside != 0) {
    block.fail(CompletionStatus::kInvalidArgument, kBadShape);
  } else if (task.bits() == 64) {
    MapProgram<u64>(block);
  } else if (task.wide) {
    block.fail(CompletionStatus::kInvalidArgument, kBadType);
  } else {
    MapProgram<u32>(block);
  }
}

#undef RESIDENT_C_FUNCTION

}  // namespace resident
