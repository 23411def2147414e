// Translate: turns a FLUX program into C++ that the host's compiler and NVRTC accept. The native
// code gives the interpreter's results exactly: all registers, the error and the cycles, at every
// limit of cycles.
//
//   ASSIGN_OR_RETURN(const Translation native, Translate(bytecode, /*unknown_nop=*/false));
//   std::string source = NativeOperatorSource("my_program", native);
//
// How the code is made (docs/flux.md describes the machine):
//
//   * Each block of n instructions checks the limit once: `if (left < n) goto slow; left -= n`. Its
//     slow copy checks before every instruction, and never reaches the last one.
//   * An instruction that fails at position k of its block gives back the n - 1 - k cycles of the
//     block that did not happen.
//   * If the stack is known at every instruction (flow_graph.h), its slots are variables, and CALL
//     and RET are jumps. Otherwise the stack is in memory, and a RET selects among the return
//     addresses. A RET that takes another address, which was pushed, leaves the run to the
//     interpreter there.
//
// The source contains addresses and constants of the program, as numbers, and no text of a client.
// The code has no undefined behaviour: arithmetic is unsigned, and every loop counts
// cycles.
//
// Thread safety: pure functions.
#ifndef RESIDENT_RUNTIME_FLUX_TRANSLATOR_H_
#define RESIDENT_RUNTIME_FLUX_TRANSLATOR_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/flux/flow_graph.h"

namespace resident::flux {

// Changes whenever the generated code of any program does. Part of the content hash of a native
// form.
inline constexpr uint32_t kTranslatorVersion = 1;

struct TranslationLimits {
  // max_nodes: instructions of the native code.
  FlowLimits flow;
  uint32_t max_blocks = 400;
  // Limits a program that may leave runs to the interpreter, which then needs it in fast memory.
  uint32_t max_leaving_bytes = 6000;
  uint32_t max_source_bytes = 256 << 10;
};

struct Translation {
  // `struct Program` (kernels/flux/native_program.h), for a namespace that uses resident and
  // resident::flux.
  std::string program;
  FlowGraph::Form form = FlowGraph::Form::kKnownStack;
  uint32_t instructions = 0;
  uint32_t blocks = 0;
  // Whether the code serves only batches with the `unknown_nop` that it was made for.
  bool one_mode = false;
};

// RESOURCE_EXHAUSTED: the program exceeds a limit, which the message names.
absl::StatusOr<Translation> Translate(std::string_view bytecode, bool unknown_nop,
                                      const TranslationLimits& limits = {});

// Source of the operator RESIDENT_OPERATOR(function) that runs the program.
std::string NativeOperatorSource(std::string_view function, const Translation& translation);

}  // namespace resident::flux

#endif  // RESIDENT_RUNTIME_FLUX_TRANSLATOR_H_
