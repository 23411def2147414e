// The project's own test vectors, and the reader of such files.
#include "runtime/flux/vectors.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/flux/isa.h"
#include "runtime/flux/host_operator.h"
#include "runtime/flux/instruction_table.h"
#include "tests/flux/reference.h"

namespace resident::flux {
namespace {

constexpr char kPath[] = "tests/flux/vectors.jsonl";

TEST(FluxVectors, ReferenceAndOperatorPassThemAll) {
  const auto vectors = ReadVectors(kPath);
  ASSERT_TRUE(vectors.ok()) << vectors.status();
  for (const Vector& vector : *vectors) {
    EXPECT_EQ(Difference(vector, RunReference(vector.bytecode, vector.options)), "")
        << "reference, line " << vector.line << ": " << vector.name;
    EXPECT_EQ(Difference(vector, RunOnHost(vector.bytecode, vector.options)), "")
        << "operator, line " << vector.line << ": " << vector.name;
  }
}

TEST(FluxVectors, CoverEveryOpcodeAndEveryError) {
  const auto vectors = ReadVectors(kPath);
  ASSERT_TRUE(vectors.ok()) << vectors.status();
  EXPECT_GE(vectors->size(), 60u);
  std::set<uint32_t> opcodes;
  std::set<uint32_t> errors;
  for (const Vector& vector : *vectors) {
    for (const uint8_t byte : vector.bytecode) opcodes.insert(byte);
    errors.insert(vector.error);
  }
  for (const Instruction& instruction : Instructions()) {
    EXPECT_EQ(opcodes.count(instruction.opcode), 1u) << instruction.mnemonic;
  }
  EXPECT_EQ(errors.size(), kErrors);
}

TEST(FluxVectors, InstructionTableMatchesTheInterpreters) {
  for (uint32_t opcode = 0; opcode < 256; ++opcode) {
    EXPECT_EQ(FindInstruction(static_cast<uint8_t>(opcode)) != nullptr, IsValid(opcode)) << opcode;
  }
}

std::string MessageFor(const std::string& text) {
  const auto vectors = ParseVectors(text);
  return vectors.ok() ? "" : std::string(vectors.status().message());
}

TEST(FluxVectors, ErrorsNameTheLineAndTheFix) {
  const std::string good =
      R"({"name": "a", "bytecode": "00", "registers": [0], "error": 0, "cycles": 1})";
  EXPECT_EQ(MessageFor(good + "\n\n" + good + "\n"), "");
  const auto expect = [&](const std::string& line, const std::string& part) {
    const std::string message = MessageFor(good + "\n" + line);
    EXPECT_NE(message.find("line 2: "), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find("Fix: "), std::string::npos) << message;
  };
  expect("{", "not JSON");
  expect(R"({"name": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}",
         "nested too deeply");
  expect("[1]", "not a JSON object");
  expect(R"({"name": "a"})", "no \"bytecode\"");
  expect(R"({"name": 1, "bytecode": ""})", "not a string");
  expect(R"({"name": "a", "bytecode": "0"})", "1 digits");
  expect(R"({"name": "a", "bytecode": "0g"})", "character 2");
  expect(R"({"name": "a", "bytecode": "00", "cicles": 1})", "unknown field \"cicles\"");
  expect(R"({"name": "a", "bytecode": "00", "registers": [0], "error": 9, "cycles": 1})",
         "\"error\": 9");
  expect(R"({"name": "a", "bytecode": "00", "registers": [], "error": 0, "cycles": 1})",
         "no value in \"registers\"");
  expect(R"({"name": "a", "bytecode": "00", "registers": [2147483648], "error": 0, "cycles": 1})",
         "2147483648");
  expect(R"({"name": "a", "bytecode": "00", "registers": [0], "error": 0, "cycles": 1e400})",
         "Fix");
  expect(R"({"name": "a", "bytecode": "00", "max_cycles": 18446744073709551615})", "max_cycles");
  expect(R"({"name": "a", "bytecode": "00", "unknown_opcode": "SKIP"})", "unknown_opcode");
}

TEST(FluxVectors, DifferenceNamesEachValue) {
  Vector vector;
  vector.registers = {1};
  vector.cycles = 2;
  EXPECT_EQ(Difference(vector, RunResult{.error = 5, .cycles = 3}),
            "R0 is 0, expected 1; error is 5 (cycle limit), expected 0 (none); cycles are 3, "
            "expected 2");
}

}  // namespace
}  // namespace resident::flux
