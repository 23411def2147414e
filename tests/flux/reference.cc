#include "tests/flux/reference.h"

#include <cstdint>
#include <limits>
#include <vector>

namespace resident::flux {
namespace {

enum class Step { kContinue, kHalted, kFailed };

class Machine {
 public:
  Machine(const Bytecode& bytecode, const RunOptions& options)
      : code_(bytecode), options_(options) {
    result_.registers = options.initial;
  }

  RunResult Run() {
    const int64_t length = static_cast<int64_t>(code_.size());
    while (true) {
      if (pc_ < 0 || pc_ > length) return Fail(6);
      if (pc_ == length) return result_;
      if (result_.cycles == options_.max_cycles) return Fail(5);
      const int size = InstructionLength(code_[pc_]);
      if (pc_ + size > length) return Fail(6);
      ++result_.cycles;
      next_ = pc_ + size;
      switch (Execute()) {
        case Step::kContinue:
          break;
        case Step::kHalted:
          return result_;
        case Step::kFailed:
          return Fail(failure_);
      }
      pc_ = next_;
    }
  }

 private:
  static int InstructionLength(uint8_t opcode) {
    if (opcode <= 0x07) return 1;
    if (opcode <= 0x17) return 2;
    if (opcode <= 0x1f) return 3;
    if (opcode <= 0x4f) return 4;
    return 1;
  }

  RunResult Fail(uint32_t error) {
    result_.error = error;
    return result_;
  }
  Step Stop(uint32_t error) {
    failure_ = error;
    return Step::kFailed;
  }

  uint8_t Byte(int i) const { return code_[pc_ + i]; }
  int64_t SignedByte(int i) const { return static_cast<int8_t>(Byte(i)); }
  int64_t Unsigned16() const { return Byte(2) + 256 * Byte(3); }
  int64_t Signed16() const {
    const int64_t value = Unsigned16();
    return value >= 32768 ? value - 65536 : value;
  }
  int32_t& Register(int i) { return result_.registers[Byte(i)]; }
  bool BadRegister(int first, int last) const {
    for (int i = first; i <= last; ++i) {
      if (Byte(i) >= 16) return true;
    }
    return false;
  }

  // The value modulo 2^32, as int32.
  static int32_t Wrap(int64_t value) {
    return static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint64_t>(value)));
  }

  Step Execute() {
    switch (Byte(0)) {
      case 0x00:  // HALT
        return Step::kHalted;
      case 0x01:  // NOP
        return Step::kContinue;
      case 0x02:  // RET
        if (stack_.empty()) return Stop(3);
        next_ = stack_.back();
        stack_.pop_back();
        return Step::kContinue;

      case 0x08:  // INC
      case 0x09:  // DEC
      case 0x0a:  // NOT
      case 0x0b:  // NEG
      case 0x0c:  // PUSH
      case 0x0d:  // POP
        if (BadRegister(1, 1)) return Stop(8);
        return OneRegister();

      case 0x17:  // STRIPCONF
        return Step::kContinue;

      case 0x18:  // MOVI
        if (BadRegister(1, 1)) return Stop(8);
        Register(1) = Wrap(SignedByte(2));
        return Step::kContinue;
      case 0x19:  // ADDI
        if (BadRegister(1, 1)) return Stop(8);
        Register(1) = Wrap(Register(1) + SignedByte(2));
        return Step::kContinue;
      case 0x1a:  // SUBI
        if (BadRegister(1, 1)) return Stop(8);
        Register(1) = Wrap(Register(1) - SignedByte(2));
        return Step::kContinue;

      case 0x20:
      case 0x21:
      case 0x22:
      case 0x23:
      case 0x24:
      case 0x25:
      case 0x26:
      case 0x27:
      case 0x28:
      case 0x29:
      case 0x2a:
      case 0x2b:
      case 0x2c:
      case 0x2d:
      case 0x2e:
      case 0x2f:
        if (BadRegister(1, 3)) return Stop(8);
        return ThreeRegisters(Register(2), Register(3));

      case 0x3a:  // MOV
        if (BadRegister(1, 2)) return Stop(8);
        Register(1) = Register(2);
        return Step::kContinue;

      case 0x3c:  // JZ
        if (BadRegister(1, 1)) return Stop(8);
        if (Register(1) == 0) next_ = pc_ + SignedByte(2);
        return Step::kContinue;
      case 0x3d:  // JNZ
        if (BadRegister(1, 1)) return Stop(8);
        if (Register(1) != 0) next_ = pc_ + SignedByte(2);
        return Step::kContinue;
      case 0x3e:  // JLT
        if (BadRegister(1, 1)) return Stop(8);
        if (Register(1) < 0) next_ = pc_ + SignedByte(2);
        return Step::kContinue;
      case 0x3f:  // JGT
        if (BadRegister(1, 1)) return Stop(8);
        if (Register(1) > 0) next_ = pc_ + SignedByte(2);
        return Step::kContinue;

      case 0x40:  // MOVI16
        if (BadRegister(1, 1)) return Stop(8);
        Register(1) = Wrap(Signed16());
        return Step::kContinue;
      case 0x43:  // JMP
        next_ = pc_ + Signed16();
        return Step::kContinue;
      case 0x46:  // LOOP
        if (BadRegister(1, 1)) return Stop(8);
        Register(1) = Wrap(int64_t{Register(1)} - 1);
        if (Register(1) > 0) next_ = pc_ - Unsigned16();
        return Step::kContinue;
      case 0x4a:  // CALL
        if (stack_.size() == 256) return Stop(2);
        stack_.push_back(Wrap(pc_ + 4));
        next_ = pc_ + Signed16();
        return Step::kContinue;

      case 0x50:  // TELL
      case 0x51:  // ASK
      case 0x52:  // BCAST
      case 0x53:  // RECV
        return Stop(7);

      default:
        return options_.unknown_nop ? Step::kContinue : Stop(4);
    }
  }

  Step OneRegister() {
    int32_t& d = Register(1);
    switch (Byte(0)) {
      case 0x08:
        d = Wrap(int64_t{d} + 1);
        break;
      case 0x09:
        d = Wrap(int64_t{d} - 1);
        break;
      case 0x0a:
        d = ~d;
        break;
      case 0x0b:
        d = Wrap(-int64_t{d});
        break;
      case 0x0c:
        if (stack_.size() == 256) return Stop(2);
        stack_.push_back(d);
        break;
      case 0x0d:
        if (stack_.empty()) return Stop(3);
        d = stack_.back();
        stack_.pop_back();
        break;
    }
    return Step::kContinue;
  }

  Step ThreeRegisters(int64_t s, int64_t t) {
    int64_t value = 0;
    switch (Byte(0)) {
      case 0x20:
        value = s + t;
        break;
      case 0x21:
        value = s - t;
        break;
      case 0x22:
        value = s * t;
        break;
      case 0x23:
        if (t == 0) return Stop(1);
        value = s / t;
        break;
      case 0x24:
        if (t == 0) return Stop(1);
        value = s % t;
        break;
      case 0x25:
        value = s & t;
        break;
      case 0x26:
        value = s | t;
        break;
      case 0x27:
        value = s ^ t;
        break;
      case 0x28:
        value = s << (t & 31);
        break;
      case 0x29:
        value = s >> (t & 31);
        break;
      case 0x2a:
        value = s < t ? s : t;
        break;
      case 0x2b:
        value = s > t ? s : t;
        break;
      case 0x2c:
        value = s == t;
        break;
      case 0x2d:
        value = s < t;
        break;
      case 0x2e:
        value = s > t;
        break;
      case 0x2f:
        value = s != t;
        break;
    }
    Register(1) = Wrap(value);
    return Step::kContinue;
  }

  const Bytecode& code_;
  const RunOptions& options_;
  std::vector<int32_t> stack_;
  int64_t pc_ = 0;
  int64_t next_ = 0;
  uint32_t failure_ = 0;
  RunResult result_;
};

}  // namespace

RunResult RunReference(const Bytecode& bytecode, const RunOptions& options) {
  return Machine(bytecode, options).Run();
}

}  // namespace resident::flux
