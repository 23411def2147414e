#include "runtime/image/cubin.h"

#include "absl/strings/str_cat.h"
#include "runtime/image/elf_file.h"

namespace resident {
namespace {

// Records of .nv.info: format, attribute, size, then (format 4) `size` bytes; here a
// symbol's index and a value.
constexpr uint8_t kSizedValue = 4;
constexpr uint8_t kFrameSize = 0x11;
constexpr uint8_t kRegisterCount = 0x2f;

struct InfoRecord {
  uint8_t format;
  uint8_t attribute;
  uint16_t size;
};

}  // namespace

absl::StatusOr<std::map<std::string, FunctionResources>> ReadNvInfo(const ElfFile& elf) {
  const ElfSection* const info = elf.FindSection(".nv.info");
  if (info == nullptr) return DamagedObject(".nv.info section is missing");
  std::map<std::string, FunctionResources> functions;
  for (uint64_t at = 0; at < info->bytes.size();) {
    InfoRecord record;
    if (!ElfFile::Read(info->bytes, at, &record)) {
      return DamagedObject(".nv.info section is cut off");
    }
    at += sizeof(record) + (record.format == kSizedValue ? record.size : 0);
    if (record.format != kSizedValue || record.size != 8) continue;
    if (record.attribute != kFrameSize && record.attribute != kRegisterCount) continue;
    uint32_t index, value;
    if (!ElfFile::Read(info->bytes, at - 8, &index) ||
        !ElfFile::Read(info->bytes, at - 4, &value) || index >= elf.symbols().size()) {
      return DamagedObject(".nv.info section names no symbol");
    }
    const ElfSymbol& symbol = elf.symbols()[index];
    FunctionResources& function = functions[std::string(symbol.name)];
    function.code_bytes = static_cast<uint32_t>(symbol.size);
    (record.attribute == kFrameSize ? function.stack_bytes : function.registers) = value;
  }
  return functions;
}

namespace {

absl::Status NotCubin(const absl::Status& why) {
  return absl::InvalidArgumentError(absl::StrCat("the image is not a cubin: ", why.message()));
}

}  // namespace

absl::StatusOr<std::map<std::string, FunctionResources>> ReadCubin(const std::string& image) {
  const absl::StatusOr<ElfFile> elf = ElfFile::Parse(image);
  if (!elf.ok()) return NotCubin(elf.status());
  auto functions = ReadNvInfo(*elf);
  if (!functions.ok()) return NotCubin(functions.status());
  return functions;
}

}  // namespace resident
