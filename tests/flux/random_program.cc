#include "tests/flux/random_program.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "runtime/flux/instruction_table.h"

namespace resident::flux {
namespace {

// Registers that structured code uses for data; the others are loop counters.
constexpr uint32_t kWorkRegisters = 10;

}  // namespace

uint64_t RandomProgramGenerator::Bits() {
  // SplitMix64.
  state_ += 0x9e3779b97f4a7c15;
  uint64_t z = state_;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

void RandomProgramGenerator::Emit(Bytecode* code, std::initializer_list<uint32_t> bytes) {
  for (const uint32_t byte : bytes) code->push_back(static_cast<uint8_t>(byte));
}

int32_t RandomProgramGenerator::Value() {
  constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  constexpr int32_t kInteresting[] = {0, 0, 1, -1, 2, 31, 32, 33, 255, 256, kMin, kMin + 1, kMax};
  if (Below(2) == 0) return kInteresting[Below(std::size(kInteresting))];
  return Below(2) == 0 ? static_cast<int32_t>(Below(200)) - 100 : static_cast<int32_t>(Bits());
}

void RandomProgramGenerator::Arithmetic(Bytecode* code, uint32_t registers) {
  const uint32_t d = Below(registers);
  const uint32_t s = Below(registers);
  const uint32_t t = Below(registers);
  switch (Below(8)) {
    case 0:
      Emit(code, {0x08 + Below(4), d});
      break;
    case 1:
      Emit(code, {0x18 + Below(3), d, Below(256)});
      break;
    case 2:
      Emit(code, {0x40, d, Below(256), Below(256)});
      break;
    case 3:
      Emit(code, {0x3a, d, s, Below(4) == 0 ? Below(256) : 0});
      break;
    default: {
      // Division is rare: division by zero ends the program.
      uint32_t opcode = 0x20 + Below(16);
      if ((opcode == 0x23 || opcode == 0x24) && Below(4) != 0) opcode = 0x20;
      Emit(code, {opcode, d, s, t});
      break;
    }
  }
}

void RandomProgramGenerator::StructuredBody(Bytecode* code, int depth) {
  const uint32_t statements = 1 + Below(5);
  for (uint32_t i = 0; i < statements; ++i) {
    switch (Below(10)) {
      case 0:
        if (depth < 3) {
          // A loop with its own counter.
          const uint32_t counter = kWorkRegisters + static_cast<uint32_t>(depth);
          Emit(code, {0x18, counter, 1 + Below(5)});
          const size_t start = code->size();
          StructuredBody(code, depth + 1);
          const size_t back = code->size() - start;
          if (Below(2) == 0) {
            Emit(code, {0x46, counter, static_cast<uint32_t>(back & 255),
                        static_cast<uint32_t>(back >> 8)});
          } else if (back + 2 < 120) {
            Emit(code, {0x09, counter});
            Emit(code, {0x3d, counter, static_cast<uint32_t>(256 - back - 2), Below(256)});
          }
        }
        break;
      case 1: {
        // A forward branch over some arithmetic.
        const size_t at = code->size();
        Emit(code, {0x3c + Below(4), Below(kWorkRegisters), 0, 0});
        for (uint32_t n = 1 + Below(3); n > 0; --n) Arithmetic(code, kWorkRegisters);
        (*code)[at + 2] = static_cast<uint8_t>(code->size() - at);
        break;
      }
      case 2: {
        // A subroutine, called and skipped.
        Emit(code, {0x4a, Below(256), 8, 0});
        const size_t at = code->size();
        Emit(code, {0x43, Below(256), 0, 0});
        for (uint32_t n = 1 + Below(3); n > 0; --n) Arithmetic(code, kWorkRegisters);
        Emit(code, {0x02});
        (*code)[at + 2] = static_cast<uint8_t>(code->size() - at);
        break;
      }
      case 3:
        Emit(code, {0x0c, Below(kWorkRegisters)});
        Arithmetic(code, kWorkRegisters);
        Emit(code, {0x0d, Below(kWorkRegisters)});
        break;
      default:
        Arithmetic(code, kWorkRegisters);
        break;
    }
  }
}

void RandomProgramGenerator::Structured(Bytecode* code) {
  StructuredBody(code, 0);
  if (Below(8) != 0) Emit(code, {0x00});
}

void RandomProgramGenerator::AnyInstruction(Bytecode* code) {
  const auto instructions = Instructions();
  const Instruction& instruction = instructions[Below(static_cast<uint32_t>(instructions.size()))];
  const size_t at = code->size();
  code->push_back(instruction.opcode);
  for (uint32_t i = 1; i < InstructionLength(instruction.opcode); ++i) {
    code->push_back(static_cast<uint8_t>(Below(50) == 0 ? Below(256) : Below(16)));
  }
  uint8_t* bytes = code->data() + at;
  const int near = static_cast<int>(Below(48)) - 20;
  switch (instruction.operands) {
    case Operands::kBranch8:
      bytes[2] = static_cast<uint8_t>(near);
      break;
    case Operands::kBranch16:
      bytes[2] = static_cast<uint8_t>(near);
      bytes[3] = static_cast<uint8_t>(near >> 8);
      break;
    case Operands::kLoop:
      bytes[2] = static_cast<uint8_t>(Below(24));
      bytes[3] = 0;
      break;
    case Operands::kNone:
      // Instructions that end a program immediately are rare, so that most programs run
      // past them.
      if (instruction.opcode != 0x01 && Below(3) != 0) bytes[0] = 0x01;
      break;
    default:
      break;
  }
}

void RandomProgramGenerator::Damage(Bytecode* code) {
  for (uint32_t n = 1 + Below(4); n > 0 && !code->empty(); --n) {
    const size_t at = Below(static_cast<uint32_t>(code->size()));
    switch (Below(4)) {
      case 0:
        code->resize(at);
        break;
      case 1:
        code->erase(code->begin() + static_cast<std::ptrdiff_t>(at));
        break;
      default:
        (*code)[at] = static_cast<uint8_t>(Below(256));
        break;
    }
  }
}

RandomCase RandomProgramGenerator::Next() {
  RandomCase random;
  Bytecode& code = random.bytecode;
  const uint32_t kind = Below(16);
  if (kind < 6) {
    Structured(&code);
  } else if (kind < 12) {
    for (uint32_t n = Below(40); n > 0; --n) AnyInstruction(&code);
  } else if (kind < 15) {
    if (Below(2) == 0) {
      Structured(&code);
    } else {
      for (uint32_t n = Below(40); n > 0; --n) AnyInstruction(&code);
    }
    Damage(&code);
  } else {
    // Random bytes, mostly valid opcodes.
    for (uint32_t n = Below(64); n > 0; --n) {
      code.push_back(static_cast<uint8_t>(Below(Below(2) == 0 ? 256 : 0x54)));
    }
  }
  random.options = Options();
  return random;
}

RunOptions RandomProgramGenerator::Options() {
  RunOptions options;
  for (int32_t& value : options.initial) value = Below(3) == 0 ? 0 : Value();
  const uint32_t limit = Below(4);
  options.max_cycles = limit == 0 ? Below(20) : limit == 1 ? Below(400) : 2000;
  options.unknown_nop = Below(2) == 0;
  return options;
}

void RandomProgramGenerator::DividingLoop(Bytecode* code) {
  const uint32_t counter = Below(16);
  if (Below(2) == 0) Emit(code, {0x18, counter, Below(40)});
  const size_t start = code->size();
  for (uint32_t n = Below(3); n > 0; --n) Arithmetic(code, kWorkRegisters);
  // The divisor changes in each round, and may become 0 or -1.
  const uint32_t divisor = Below(16);
  if (Below(4) != 0) Emit(code, {0x08 + Below(2), divisor});
  Emit(code, {0x23 + Below(2), Below(16), Below(16), divisor});
  for (uint32_t n = Below(3); n > 0; --n) Arithmetic(code, kWorkRegisters);
  const size_t back = code->size() - start;
  if (Below(3) != 0) {
    Emit(code, {0x46, counter, static_cast<uint32_t>(back), 0});
  } else {
    Emit(code, {0x3c + Below(4), counter, static_cast<uint32_t>(256 - back), Below(256)});
  }
  if (Below(2) == 0) Arithmetic(code, kWorkRegisters);
  if (Below(4) != 0) Emit(code, {0x00});
}

void RandomProgramGenerator::Recursion(Bytecode* code) {
  const uint32_t n = Below(16);
  Emit(code, {0x18, n, Below(4) == 0 ? Below(256) : Below(20)});
  Emit(code, {0x4a, 0, 5 + Below(2), 0});  // CALL the subroutine, sometimes one byte too far.
  Emit(code, {0x00});
  // The subroutine: saves registers, calls itself for n - 1, restores them.
  const size_t start = code->size();
  const uint32_t saved = Below(3);
  const size_t skip = code->size();
  Emit(code, {0x3c + Below(4), n, 0, 0});
  for (uint32_t i = 0; i < saved; ++i) Emit(code, {0x0c, Below(16)});
  Emit(code, {0x09, n});
  for (uint32_t calls = 1 + Below(2); calls > 0; --calls) {
    const auto distance = static_cast<uint32_t>(start - code->size());
    Emit(code, {0x4a, Below(256), distance & 255, distance >> 8 & 255});
    Arithmetic(code, kWorkRegisters);
  }
  // Sometimes one too many or too few, so that RET takes a value.
  const uint32_t restored = saved + (Below(6) == 0 ? Below(3) : 0) - (saved > 0 && Below(6) == 0);
  for (uint32_t i = 0; i < restored; ++i) Emit(code, {0x0d, Below(16)});
  (*code)[skip + 2] = static_cast<uint8_t>(code->size() - skip);
  if (Below(5) == 0) {
    Emit(code, {0x18, n, Below(static_cast<uint32_t>(code->size()) + 8)});
    Emit(code, {0x0c, n});
  }
  Emit(code, {0x02});
}

void RandomProgramGenerator::OverlappingCode(Bytecode* code) {
  // Constants whose bytes are instructions, and branches to every kind of address.
  for (uint32_t count = 4 + Below(12); count > 0; --count) {
    switch (Below(5)) {
      case 0:
        Emit(code, {0x40, Below(16), 0x08 + Below(6), Below(16)});
        break;
      case 1:
        Emit(code, {0x18, Below(16), Below(0x54)});
        break;
      case 2:
        Emit(code, {0x3c + Below(4), Below(16), Below(24) - 8, Below(0x30)});
        break;
      case 3:
        Emit(code, {Below(2) == 0 ? 0x43u : 0x4au, Below(256), 1 + Below(14), 0});
        break;
      default:
        AnyInstruction(code);
        break;
    }
  }
}

RandomCase RandomProgramGenerator::NextForTranslation() {
  RandomCase random;
  switch (Below(6)) {
    case 0:
      DividingLoop(&random.bytecode);
      break;
    case 1:
      Recursion(&random.bytecode);
      break;
    case 2:
      OverlappingCode(&random.bytecode);
      break;
    default:
      return Next();
  }
  if (Below(8) == 0) Damage(&random.bytecode);
  random.options = Options();
  return random;
}

Bytecode Shrink(const Bytecode& code, const std::function<bool(const Bytecode&)>& fails,
                int max_tries) {
  Bytecode best = code;
  const auto keep_if_fails = [&](Bytecode candidate) {
    if (max_tries-- <= 0 || !fails(candidate)) return false;
    best = std::move(candidate);
    return true;
  };
  bool smaller = true;
  while (smaller && max_tries > 0) {
    smaller = false;
    // Large pieces first, then every length of an instruction.
    for (size_t piece = std::max<size_t>(best.size() / 2, 1); piece > 0;
         piece = piece > 4 ? std::max<size_t>(piece / 2, 4) : piece - 1) {
      for (size_t at = 0; at + piece <= best.size();) {
        Bytecode candidate = best;
        const auto first = candidate.begin() + static_cast<std::ptrdiff_t>(at);
        candidate.erase(first, first + static_cast<std::ptrdiff_t>(piece));
        if (keep_if_fails(std::move(candidate))) {
          smaller = true;
        } else {
          ++at;
        }
      }
    }
    // Then replaces each byte by 0 or NOP (0x01), which also simplifies operands.
    for (size_t at = 0; at < best.size(); ++at) {
      for (const uint8_t value : {uint8_t{0x00}, uint8_t{0x01}}) {
        if (best[at] <= value) break;
        Bytecode candidate = best;
        candidate[at] = value;
        if (keep_if_fails(std::move(candidate))) {
          smaller = true;
          break;
        }
      }
    }
  }
  return best;
}

}  // namespace resident::flux
