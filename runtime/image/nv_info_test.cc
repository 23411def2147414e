// Reads files that this test makes byte by byte; first_generation_test reads real cubins.
#include <elf.h>

#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/base/status_macros.h"
#include "runtime/image/cubin.h"

namespace resident {
namespace {

constexpr char kNames[] = "\0.nv.info\0.symtab\0.strtab\0";
constexpr char kSymbolNames[] = "\0scale\0add\0";
constexpr uint32_t kInfoName = 1, kSymbolsName = 10, kStringsName = 18;
constexpr uint32_t kScale = 1, kAdd = 2;  // Symbols.
constexpr uint8_t kFrame = 0x11, kRegisters = 0x2f;

template <typename T>
std::string Bytes(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string Record(uint8_t attribute, uint32_t symbol, uint32_t value) {
  return std::string({4, static_cast<char>(attribute), 8, 0}) + Bytes(symbol) + Bytes(value);
}

std::string File(const std::string& info, uint32_t info_name = kInfoName) {
  const auto symbol = [](uint32_t name, uint64_t size) {
    Elf64_Sym symbol = {};
    symbol.st_name = name;
    symbol.st_size = size;
    return Bytes(symbol);
  };
  const std::string contents[] = {"", info, symbol(0, 0) + symbol(1, 640) + symbol(7, 128),
                                  std::string(kSymbolNames, sizeof(kSymbolNames)),
                                  std::string(kNames, sizeof(kNames))};
  const uint32_t names[] = {0, info_name, kSymbolsName, kStringsName, kStringsName};
  const uint32_t types[] = {SHT_NULL, SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_STRTAB};
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_shnum = 5;
  header.e_shstrndx = 4;
  std::string sections, body;
  for (int i = 0; i < 5; ++i) {
    Elf64_Shdr section = {};
    section.sh_name = names[i];
    section.sh_type = types[i];
    section.sh_offset = sizeof(header) + body.size();
    section.sh_size = contents[i].size();
    section.sh_link = 3;
    sections += Bytes(section);
    body += contents[i];
  }
  header.e_shoff = sizeof(header) + body.size();
  return Bytes(header) + body + sections;
}

absl::StatusOr<std::map<std::string, FunctionResources>> Read(const std::string& file) {
  ASSIGN_OR_RETURN(const ElfFile elf, ElfFile::Parse(file));
  return ReadNvInfo(elf);
}

TEST(NvInfoTest, RecordsAreJoinedByFunction) {
  // Between them are a record without a value and one with another attribute.
  const auto functions =
      Read(File(Record(kRegisters, kScale, 24) + std::string({1, 2, 0, 0}) +
                Record(0x12, kScale, 99) + Record(kFrame, kAdd, 48) + Record(kFrame, kScale, 16)));
  ASSERT_TRUE(functions.ok()) << functions.status();
  ASSERT_EQ(functions->size(), 2u);
  EXPECT_EQ(functions->at("scale").registers, 24u);
  EXPECT_EQ(functions->at("scale").stack_bytes, 16u);
  EXPECT_EQ(functions->at("scale").code_bytes, 640u);
  EXPECT_EQ(functions->at("add").registers, 0u);
  EXPECT_EQ(functions->at("add").stack_bytes, 48u);
  EXPECT_EQ(functions->at("add").code_bytes, 128u);
}

TEST(NvInfoTest, ASectionThatEndsInTheMiddleOfARecordIsDamaged) {
  const std::string whole = Record(kRegisters, kScale, 24);
  for (size_t size = 1; size < whole.size(); ++size) {
    EXPECT_EQ(Read(File(whole.substr(0, size))).status().code(), absl::StatusCode::kInvalidArgument)
        << size;
  }
}

TEST(NvInfoTest, AnUnknownSymbolIsDamage) {
  EXPECT_EQ(Read(File(Record(kFrame, 3, 16))).status().message(),
            "the object is damaged: its .nv.info section names no symbol. Fix: compile it again");
}

TEST(NvInfoTest, AFileWithoutTheSectionIsNotACubin) {
  EXPECT_EQ(Read(File("", kStringsName)).status().message(),
            "the object is damaged: its .nv.info section is missing. Fix: compile it again");
}

}  // namespace
}  // namespace resident
