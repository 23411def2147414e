#include "runtime/model/operator_details.h"

#include "absl/strings/str_cat.h"

namespace resident::errors {
namespace {

struct Detail {
  std::string_view operator_name;
  uint32_t detail;
  std::string_view what;
  std::string_view fix;
};

// Sorted by operator. tools/operator_reference --check compares it with the operators' notes.
constexpr Detail kDetails[] = {
    {"adamw", 1, "step is below 1", "count steps from 1"},
    {"add", 1, "for i32 the scalar is not a whole number in the range of i32",
     "give a whole number, or tensors of f32"},
    {"argmax", 1, "`axes` has the bit of an axis that x does not have",
     "bit d stands for axis d: give 2 for axis 1"},
    {"argmax", 2, "`out` has the wrong shape for these axes",
     "give out the axes that remain, or size 1 for the reduced ones: out:2= or out:2x1= for x:2x3= "
     "and axes=2"},
    {"argmax", 3, "there are no elements to reduce", "give x elements along the axes"},
    {"attention", 1, "D or E is above 256", "use heads of at most 256 elements"},
    {"attention", 2, "the query heads are not a multiple of the key heads",
     "give N as a multiple of M"},
    {"attention", 3, "kv_len is below -1 or above L", "give a number of keys, or -1 for all"},
    {"attention", 4, "causal is neither 0 nor 1", "give 0 or 1"},
    {"attention", 5, "the mask's shape does not broadcast to [B, N, S, L]",
     "give such a shape, or no elements"},
    {"attention_decode", 1, "D is above 256", "use heads of at most 256 elements"},
    {"attention_decode", 2, "N is 0 or no multiple of M",
     "give query heads as a multiple of the key heads"},
    {"attention_decode", 3, "pos is not a position of the cache", "give pos from 0 to L - 1"},
    {"attention_decode", 4, "layout is neither 0 nor 1", "give 0 or 1"},
    {"attention_decode", 5, "`angles` has neither 0 nor D / 2 elements",
     "give one of these numbers"},
    {"attention_decode", 6, "P is 0 or above 2^31 - 1", "give at least one part"},
    {"attention_decode", 7, "N / M * D is above 65,536", "use fewer query heads for each key head"},
    {"attention_decode", 8, "a count in `arrived` was not 0 before the task",
     "set the counts to 0, and use others for tasks that run at the same time"},
    {"attention_partial", 1, "D or E is above 256", "use heads of at most 256 elements"},
    {"attention_partial", 2, "the query heads are not a multiple of the key heads",
     "give N as a multiple of M"},
    {"attention_partial", 3, "kv_len is below -1 or above L",
     "give a number of keys, or -1 for all"},
    {"attention_partial", 4, "causal is neither 0 nor 1", "give 0 or 1"},
    {"attention_partial", 5, "the mask's shape does not broadcast to [B, N, S, L]",
     "give such a shape, or no elements"},
    {"aux_loss", 1, "an index is not an expert", "give indices from 0 to E - 1"},
    {"choose_token", 1, "there are no logits, or 2^31 or more", "give fewer logits"},
    {"choose_token", 2, "`parts` has no elements", "give it at least one"},
    {"choose_token", 3, "the count in `arrived` was not 0 before the task",
     "set it to 0, and use another one for a task that runs at the same time"},
    {"cross_entropy", 1, "a target is not a class", "give targets from 0 to C - 1"},
    {"cross_entropy_backward", 1, "a target is not a class", "give targets from 0 to C - 1"},
    {"dequant", 1, "q has neither a byte for each weight nor one for two",
     "give P = K, or P = K / 2 rounded up"},
    {"dequant", 2, "`group` is below 1", "give the number of columns that share a scale"},
    {"dequant", 3, "the scales of a row are not K / group, rounded up",
     "give one scale for each group of columns"},
    {"dequant", 4, "`zeros` has another shape than [N, G]",
     "give the shape of the scales, or no elements"},
    {"embedding", 1, "an index of `ids` is outside of the table",
     "give ids from 0 to V - 1, where V is the number of rows"},
    {"fill", 1, "for i32 the scalar is not a whole number in the range of i32",
     "give a whole number, or tensors of f32"},
    {"gather", 1, "an index is not one of x",
     "give indices from -V to V - 1, where V is the size of x along the axis"},
    {"gather", 2, "`x` and `out` have different element types", "give both the same"},
    {"gather", 3, "x has no such axis, or another shape than out besides it",
     "give x the shape of out except along the axis"},
    {"gelu", 1, "tanh is neither 0 nor 1", "give 0 or 1"},
    {"gemv", 1, "`bias` has another shape than [N] and out",
     "give one of these shapes, or no elements"},
    {"gemv_quant", 1, "q has neither a byte for each weight nor one for two",
     "give P = K, or P = K / 2 rounded up"},
    {"gemv_quant", 2, "`group` is below 1", "give the number of columns that share a scale"},
    {"gemv_quant", 3, "the scales of a row are not K / group, rounded up",
     "give one scale for each group of columns"},
    {"gemv_quant", 4, "`zeros` has another shape than [N, G]",
     "give the shape of the scales, or no elements"},
    {"gemv_quant_bias", 1, "q has neither a byte for each weight nor one for two",
     "give P = K, or P = K / 2 rounded up"},
    {"gemv_quant_bias", 2, "`group` is below 1", "give the number of columns that share a scale"},
    {"gemv_quant_bias", 3, "the scales of a row are not K / group, rounded up",
     "give one scale for each group of columns"},
    {"gemv_quant_bias", 4, "`zeros` has another shape than [N, G]",
     "give the shape of the scales, or no elements"},
    {"gemv_quant_bias", 5, "`bias` has another shape than [N]", "give this shape, or no elements"},
    {"gemv_silu_mul", 1, "`gate` and `up` have different element types", "give both the same"},
    {"grad_norm_partial", 1, "the partial sums are outside of `partial`",
     "give first and a `partial` with room for them"},
    {"kv_append", 1, "the new positions are outside of the cache", "give pos from 0 to L - S"},
    {"layernorm", 1, "`b` has another number of elements than the rows",
     "give one for each column, or none"},
    {"linear", 1, "`bias` has another shape than [N] and out",
     "give one of these shapes, or no elements"},
    {"linear", 2, "`residual` has another shape than out", "give the shape of out, or no elements"},
    {"linear", 3, "the vectors of x have not one distance, or their elements are not adjacent",
     "copy x into a dense tensor"},
    {"linear", 4, "there is no such activation", "give a number from 0 to 6"},
    {"max", 1, "`axes` has the bit of an axis that x does not have",
     "bit d stands for axis d: give 2 for axis 1"},
    {"max", 2, "`out` has the wrong shape for these axes",
     "give out the axes that remain, or size 1 for the reduced ones: out:2= or out:2x1= for x:2x3= "
     "and axes=2"},
    {"max", 3, "there are no elements to reduce", "give x elements along the axes"},
    {"mean", 1, "`axes` has the bit of an axis that x does not have",
     "bit d stands for axis d: give 2 for axis 1"},
    {"mean", 2, "`out` has the wrong shape for these axes",
     "give out the axes that remain, or size 1 for the reduced ones: out:2= or out:2x1= for x:2x3= "
     "and axes=2"},
    {"min", 1, "`axes` has the bit of an axis that x does not have",
     "bit d stands for axis d: give 2 for axis 1"},
    {"min", 2, "`out` has the wrong shape for these axes",
     "give out the axes that remain, or size 1 for the reduced ones: out:2= or out:2x1= for x:2x3= "
     "and axes=2"},
    {"min", 3, "there are no elements to reduce", "give x elements along the axes"},
    {"pointwise", 1, "the program is malformed",
     "see kernels/ops/pointwise_program.h for the form of a program"},
    {"pointwise", 2, "the shape of an input does not broadcast to that of `out`",
     "give such a shape, or no elements"},
    {"pointwise", 3, "a program of 32 bits has an operand of i64 or u32",
     "give a program of 64 bits"},
    {"rmsnorm_gemv", 1, "`bias` has another shape than [N] and out",
     "give one of these shapes, or no elements"},
    {"rmsnorm_gemv", 2, "K is above 65,536", "use rmsnorm and gemv as two operators"},
    {"rmsnorm_gemv_qkv", 1, "a bias has another shape than [N], [M] or [L], or its result",
     "give one of these shapes, or no elements"},
    {"rmsnorm_gemv_qkv", 2, "K is above 65,536", "use rmsnorm and gemv as several operators"},
    {"rmsnorm_gemv_quant", 1, "q has neither a byte for each weight nor one for two",
     "give P = K, or P = K / 2 rounded up"},
    {"rmsnorm_gemv_quant", 2, "`group` is below 1",
     "give the number of columns that share a scale"},
    {"rmsnorm_gemv_quant", 3, "the scales of a row are not K / group, rounded up",
     "give one scale for each group of columns"},
    {"rmsnorm_gemv_quant", 4, "`zeros` has another shape than [N, G]",
     "give the shape of the scales, or no elements"},
    {"rmsnorm_gemv_quant", 5, "`bias` has another shape than [N]",
     "give this shape, or no elements"},
    {"rmsnorm_gemv_quant", 6, "K is above 65,536", "use rmsnorm and the other operator as two"},
    {"rmsnorm_gemv_quant_silu_mul", 1, "q has neither a byte for each weight nor one for two",
     "give P = K, or P = K / 2 rounded up"},
    {"rmsnorm_gemv_quant_silu_mul", 2, "`group` is below 1",
     "give the number of columns that share a scale"},
    {"rmsnorm_gemv_quant_silu_mul", 3, "the scales of a row are not K / group, rounded up",
     "give one scale for each group of columns"},
    {"rmsnorm_gemv_quant_silu_mul", 4, "`zeros` has another shape than [N, G]",
     "give the shape of the scales, or no elements"},
    {"rmsnorm_gemv_quant_silu_mul", 6, "K is above 65,536",
     "use rmsnorm and the other operator as two"},
    {"rmsnorm_gemv_silu_mul", 1, "`gate` and `up` have different element types",
     "give both the same"},
    {"rmsnorm_gemv_silu_mul", 2, "K is above 65,536",
     "use rmsnorm and gemv_silu_mul as two operators"},
    {"rope", 1, "D is not 2 H", "give freqs half of the elements of a head"},
    {"rope", 2, "the positions are outside of freqs", "give offset from 0 to L - S"},
    {"rope", 3, "layout is neither 0 nor 1", "give 0 or 1"},
    {"rope_freqs", 1, "H is 1", "use a head_dim of at least 4"},
    {"rope_freqs", 2, "base or alpha is not positive and finite", "give positive numbers"},
    {"sample", 1, "temperature is negative or NaN", "give 0 or a positive number"},
    {"sample", 3, "a row has no columns, NaN, infinity, or only -infinity", "give finite logits"},
    {"sample_topk", 1, "temperature is negative or NaN", "give 0 or a positive number"},
    {"sample_topk", 2, "k is below 1 or above the number of columns", "give 1 to C"},
    {"sample_topk", 3, "a row has no columns, NaN, infinity, or only -infinity",
     "give finite logits"},
    {"sample_topp", 1, "temperature is negative or NaN", "give 0 or a positive number"},
    {"sample_topp", 2, "p is not above 0 and at most 1", "give a probability"},
    {"sample_topp", 3, "a row has no columns, NaN, infinity, or only -infinity",
     "give finite logits"},
    {"scatter_add", 1, "an index is not a row of dst", "give indices from 0 to V - 1"},
    {"softmax_topk", 1, "there are more results than columns",
     "give at most as many as x has columns"},
    {"sub", 1, "for i32 the scalar is not a whole number in the range of i32",
     "give a whole number, or tensors of f32"},
    {"sum", 1, "`axes` has the bit of an axis that x does not have",
     "bit d stands for axis d: give 2 for axis 1"},
    {"sum", 2, "`out` has the wrong shape for these axes",
     "give out the axes that remain, or size 1 for the reduced ones: out:2= or out:2x1= for x:2x3= "
     "and axes=2"},
    {"take_token", 1, "pos is negative, or prompt_len is above the elements of `prompt`",
     "give pos from 0 on, and at most that length"},
    {"take_token", 2, "the token is outside of the table",
     "give tokens from 0 to V - 1, where V is the number of rows"},
};

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

std::string DetailText(std::string_view operator_name, uint32_t detail) {
  bool builtin = false;
  for (const Detail& each : kDetails) {
    if (each.operator_name != operator_name) continue;
    if (each.detail == detail) {
      return absl::StrCat(View(each.what), " (detail ", detail, "). Fix: ", View(each.fix));
    }
    builtin = true;
  }
  if (builtin) {
    return absl::StrCat("it refused a value (detail ", detail, "). Fix: see ", View(operator_name),
                        " in docs/operator_reference.md");
  }
  return absl::StrCat("it refused a value (detail ", detail,
                      ", whose meaning its source defines). Fix: see its summary and notes, or the "
                      "call of block.fail() in its source");
}

}  // namespace resident::errors
