// Random FLUX programs for differential tests, and a shrinker that reduces a program with a
// difference.
//
//   RandomProgramGenerator generator(/*seed=*/1);
//   RandomCase c = generator.Next();
//   if (Differs(c.bytecode)) {
//     Bytecode small = Shrink(c.bytecode, Differs);
//     std::cerr << Disassemble(small);
//   }
//
// The same seed gives the same programs on every machine.
//
// Thread safety: a generator belongs to one thread.
#ifndef RESIDENT_TESTS_FLUX_RANDOM_PROGRAM_H_
#define RESIDENT_TESTS_FLUX_RANDOM_PROGRAM_H_

#include <cstdint>
#include <functional>
#include <initializer_list>

#include "runtime/flux/run.h"

namespace resident::flux {

struct RandomCase {
  Bytecode bytecode;
  RunOptions options;
};

class RandomProgramGenerator {
 public:
  explicit RandomProgramGenerator(uint64_t seed) : state_(seed) {}

  // Returns a mix of: structured programs (loops, subroutines, forward branches) that
  // terminate; sequences of arbitrary instructions with short branches; either of them with
  // bytes changed or removed; and random bytes. Up to a few hundred bytes. Initial
  // registers are often at the ends of the range of int32; cycle limits are often small.
  RandomCase Next();

  // Returns a program that is difficult to translate to native code: a loop of one block that
  // divides, so that it may fail in any round; a recursive subroutine that saves registers on the
  // stack; branches into the middle of instructions; or what Next returns.
  RandomCase NextForTranslation();

  // The next 64 random bits, and a number below `bound`.
  uint64_t Bits();
  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>((Bits() >> 32) * bound >> 32); }

 private:
  void Structured(Bytecode* code);
  void StructuredBody(Bytecode* code, int depth);
  void AnyInstruction(Bytecode* code);
  void Arithmetic(Bytecode* code, uint32_t registers);
  void Damage(Bytecode* code);
  void DividingLoop(Bytecode* code);
  void Recursion(Bytecode* code);
  void OverlappingCode(Bytecode* code);
  RunOptions Options();
  int32_t Value();
  static void Emit(Bytecode* code, std::initializer_list<uint32_t> bytes);

  uint64_t state_;
};

// Returns the smallest program found that still `fails`, by removing and zeroing bytes.
// REQUIRES: fails(code). Calls `fails` up to `max_tries` times.
Bytecode Shrink(const Bytecode& code, const std::function<bool(const Bytecode&)>& fails,
                int max_tries = 20'000);

}  // namespace resident::flux

#endif  // RESIDENT_TESTS_FLUX_RANDOM_PROGRAM_H_
