// The built-in operators: name, symbol, signature, and how a wide task is split.
//
// The CPU engine's jump table (jump_table.cc), the GPU's jump table
// (kernels/resident/builtin_jump_table.cu) and the registry are generated from this list.
// A new built-in operator is one line here and its function in a file of this folder.
//
// The first version of operator i has slot 2 * i (each operator has two slots: active and
// standby).
//
//   X(symbol, "name", "summary", "signature", "split")
//
// Signature: see runtime/model/signature.h. Split: "" for an operator that always
// runs on one block, else "parameter[/dims] grain": a task has one chunk for every
// `grain` elements of that parameter, or with "/1" for every `grain` indices of its
// first dimension.
#ifndef RESIDENT_KERNELS_OPS_BUILTIN_H_
#define RESIDENT_KERNELS_OPS_BUILTIN_H_

// clang-format off
#define RESIDENT_BUILTIN_OPERATORS(X)                                                            \
  X(copy, "copy", "out = x",                                                                     \
    "x: in f32[*S], out: out f32[*S]", "out 32768")                                              \
  X(fill, "fill", "out = value",                                                                 \
    "out: out f32[*S], value: scalar f32", "out 32768")                                          \
  X(add, "add", "out = x + alpha * y",                                                           \
    "x: in f32[*S], y: in f32[*S], out: out f32[*S], alpha: scalar f32 = 1", "out 32768")        \
  X(sub, "sub", "out = x - alpha * y",                                                           \
    "x: in f32[*S], y: in f32[*S], out: out f32[*S], alpha: scalar f32 = 1", "out 32768")        \
  X(mul, "mul", "out = x * y",                                                                   \
    "x: in f32[*S], y: in f32[*S], out: out f32[*S]", "out 32768")                               \
  X(div, "div", "out = x / y; division by zero gives infinity or NaN",                           \
    "x: in f32[*S], y: in f32[*S], out: out f32[*S]", "out 32768")                               \
  X(scale, "scale", "out = s * x",                                                               \
    "x: in f32[*S], out: out f32[*S], s: scalar f32", "out 32768")                               \
  X(relu, "relu", "out = max(x, 0); NaN stays NaN",                                              \
    "x: in f32[*S], out: out f32[*S]", "out 32768")                                              \
  X(silu, "silu", "out = x / (1 + exp(-x))",                                                     \
    "x: in f32[*S], out: out f32[*S]", "out 32768")                                              \
  X(sum_rows, "sum_rows", "out[r] = sum of x[r, :], accumulated in float32",                     \
    "x: in f32[R, C], out: out f32[R]", "x 65536")                                               \
  X(copy_bytes, "copy_bytes", "out = x, byte by byte; uploads and downloads",                    \
    "x: in u8[N], out: out u8[N]", "out 131072")                                                 \
  X(compare, "compare", "counts elements that differ; for versions on trial",                    \
    "x: in f32|f16|bf16|f64|i32|i64|u8|i8|u32[*S], "                                             \
    "y: in f32|f16|bf16|f64|i32|i64|u8|i8|u32[*S]", "")                                          \
  X(flux_run, "flux.run", "runs FLUX programs; see kernels/flux/run_arguments.h",                \
    "bytecode: in u8[B], offsets: in u32[P], index: in u32[I], initial: in i32[V], "             \
    "registers: out i32[W], errors: out u8[N], cycles: out u32[N], count: scalar i64, "          \
    "initial_width: scalar i64, initial_shared: scalar i64, wanted: scalar i64, "                \
    "wanted_count: scalar i64, max_cycles: scalar i64, unknown_nop: scalar i64", "errors 256")

// Operators for tests, which fail in different ways or count runs; loaded only with
// --test_operators.
#define RESIDENT_TEST_OPERATORS(X)                                                               \
  X(test_bad_store, "test.bad_store", "stores to an address that is not mapped",                 \
    "out: out f32[*S]", "")                                                                      \
  X(test_never_returns, "test.never_returns", "loops for ever",                                  \
    "out: out f32[*S]", "")                                                                      \
  X(test_spin, "test.spin", "busy for a number of nanoseconds, then out = 1",                    \
    "out: out f32[*S], ns: scalar i64", "")                                                      \
  X(test_refuse, "test.refuse", "reports its argument as invalid, with a detail",                \
    "out: out f32[*S], detail: scalar i64", "")                                                  \
  X(test_count, "test.count", "adds 1 to out[0], atomically: counts the runs of a task",         \
    "out: inout f32[*S]", "")                                                                      \
  X(test_axpy, "test.axpy", "out = a * x + y for all types, strides, and shapes that broadcast",   \
    "x: in strided f32|f16|bf16[*S~], y: in strided f32|f16|bf16[*S~], "                           \
    "out: out strided f32|f16|bf16[*S], a: scalar f32 = 1", "out 32768")
// clang-format on

namespace resident {

// The first slot of installed operators, after the slots of the built-in and the test operators.
#define RESIDENT_COUNT(symbol, name, summary, signature, split) +2
inline constexpr unsigned kFirstInstalledSlot =
    0 RESIDENT_BUILTIN_OPERATORS(RESIDENT_COUNT) RESIDENT_TEST_OPERATORS(RESIDENT_COUNT);
#undef RESIDENT_COUNT

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_BUILTIN_H_
