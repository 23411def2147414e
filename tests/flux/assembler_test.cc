// Assembler and disassembler: syntax, error messages, and round trips of text and bytes.
#include "runtime/flux/assembler.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/flux/random_program.h"

namespace resident::flux {
namespace {

Bytecode MustAssemble(const std::string& text) {
  const auto code = Assemble(text);
  EXPECT_TRUE(code.ok()) << code.status() << "\n" << text;
  return code.ok() ? *code : Bytecode{};
}

TEST(FluxAssembler, InstructionsAndOperands) {
  EXPECT_EQ(MustAssemble(""), Bytecode{});
  EXPECT_EQ(MustAssemble("  movi r1, -2 ; minus two\nHALT"), (Bytecode{0x18, 1, 0xfe, 0x00}));
  EXPECT_EQ(MustAssemble("MOVI R0, 0xff"), (Bytecode{0x18, 0, 0xff}));
  EXPECT_EQ(MustAssemble("MOVI16 R2, -32768"), (Bytecode{0x40, 2, 0x00, 0x80}));
  EXPECT_EQ(MustAssemble("ADD R1,R2,R15\r\n"), (Bytecode{0x20, 1, 2, 15}));
  EXPECT_EQ(MustAssemble("STRIPCONF 200"), (Bytecode{0x17, 200}));
  EXPECT_EQ(MustAssemble(".byte 1, 0x02, -1"), (Bytecode{1, 2, 255}));
}

TEST(FluxAssembler, LabelsForwardAndBackward) {
  EXPECT_EQ(MustAssemble("a: b: NOP\n JMP a\n JNZ R1, end\n LOOP R2, b\nend:"),
            (Bytecode{0x01, 0x43, 0, 0xff, 0xff, 0x3d, 1, 8, 0, 0x46, 2, 9, 0}));
}

void ExpectError(const std::string& text, const std::string& place, const std::string& part) {
  const auto code = Assemble(text);
  ASSERT_FALSE(code.ok()) << text;
  const std::string message(code.status().message());
  EXPECT_EQ(message.find(place + ": "), 0u) << message;
  EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_NE(message.find("Fix: "), std::string::npos) << message;
}

TEST(FluxAssembler, ErrorsGiveLineAndColumn) {
  ExpectError("NOP\n  FOO R1", "line 2, column 3", "unknown instruction 'FOO'");
  ExpectError("INC R16", "line 1, column 5", "'R16' does not exist");
  ExpectError("INC 3", "line 1, column 5", "expected a register");
  ExpectError("MOVI R0, 128", "line 1, column 10", "-128 to 127");
  ExpectError("MOVI R0, 0x100", "line 1, column 10", "out of range");
  ExpectError("MOVI R0, many", "line 1, column 10", "expected a number");
  ExpectError("MOVI R0 1", "line 1, column 9", "expected ','");
  ExpectError("MOVI R0,,1", "line 1, column 9", "unexpected ','");
  ExpectError("MOVI R0,", "line 1, column 8", "missing");
  ExpectError("ADD R0, R1", "line 1, column 1", "2 operands");
  ExpectError("a: NOP\na: NOP", "line 2, column 1", "already defined in line 1");
  ExpectError("r1: NOP", "line 1, column 1", "not a valid label");
  ExpectError(": NOP", "line 1, column 1", "':'");
  ExpectError("JMP nowhere", "line 1, column 5", "not defined");
  ExpectError("LOOP R0, ahead\nahead:", "line 1, column 10", "4 bytes away");
  ExpectError(".byte 256", "line 1, column 7", "out of range");
  ExpectError(".byte", "line 1, column 1", "no value");
  std::string far = "JZ R0, end\n";
  for (int i = 0; i < 130; ++i) far += "NOP\n";
  ExpectError(far + "end:", "line 1, column 8", "134 bytes away");
}

TEST(FluxDisassembler, LabelsAndBytes) {
  DisassemblerOptions plain;
  plain.addresses = false;
  EXPECT_EQ(Disassemble({0x18, 0, 42, 0x43, 0, 0xfd, 0xff, 0xff}, plain),
            "L0000:\n"
            "  MOVI      R0, 42\n"
            "  JMP       L0000\n"
            "  .byte 0xff                  ; unknown opcode\n");
}

// Holds for arbitrary bytes.
TEST(FluxDisassembler, AssemblesToTheSameBytes) {
  RandomProgramGenerator generator(7);
  for (int i = 0; i < 20'000; ++i) {
    Bytecode code = generator.Next().bytecode;
    if (i % 4 == 0) {
      for (uint8_t& byte : code) byte = static_cast<uint8_t>(generator.Below(256));
    }
    DisassemblerOptions options;
    options.addresses = i % 2 == 0;
    const std::string text = Disassemble(code, options);
    const auto again = Assemble(text);
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << text;
    ASSERT_EQ(*again, code) << text;
  }
}

// Any text results in bytes or an error message.
TEST(FluxAssembler, AnyTextIsAssembledOrRefused) {
  RandomProgramGenerator generator(11);
  static const std::string kCharacters = "R01xADJMPLO:;,.-+ \n\t_byteINC\0\xff";
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (uint32_t n = generator.Below(40); n > 0; --n) {
      text += kCharacters[generator.Below(static_cast<uint32_t>(kCharacters.size()))];
    }
    const auto code = Assemble(text);
    if (!code.ok()) {
      EXPECT_EQ(code.status().message().find("line "), 0u) << text;
    }
  }
}

}  // namespace
}  // namespace resident::flux
