#include "runtime/engine/image/cubin.h"

#include <elf.h>

#include <cstring>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"

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

absl::Status Damaged(const char* what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the image is not a cubin: its ", what, " is damaged"));
}

// Reads values and strings of an image, never past its end.
class Reader {
 public:
  explicit Reader(const std::string& image) : image_(image) {}

  template <typename T>
  std::optional<T> At(uint64_t offset) const {
    if (offset > image_.size() || image_.size() - offset < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, image_.data() + offset, sizeof(T));
    return value;
  }
  std::string Text(uint64_t offset) const {
    if (offset >= image_.size()) return "";
    return std::string(image_.c_str() + offset);  // A string ends with a zero.
  }

 private:
  const std::string& image_;
};

}  // namespace

absl::StatusOr<std::map<std::string, FunctionResources>> ReadCubin(const std::string& image) {
  const Reader reader(image);
  const auto header = reader.At<Elf64_Ehdr>(0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return Damaged("header");
  std::vector<Elf64_Shdr> sections;
  for (uint32_t i = 0; i < header->e_shnum; ++i) {
    const auto section = reader.At<Elf64_Shdr>(header->e_shoff + uint64_t{i} * sizeof(Elf64_Shdr));
    if (!section) return Damaged("section table");
    sections.push_back(*section);
  }
  if (header->e_shstrndx >= sections.size()) return Damaged("section names");
  const Elf64_Shdr* symbols = nullptr;
  const Elf64_Shdr* info = nullptr;
  for (const Elf64_Shdr& section : sections) {
    const std::string name = reader.Text(sections[header->e_shstrndx].sh_offset + section.sh_name);
    if (section.sh_type == SHT_SYMTAB) symbols = &section;
    if (name == ".nv.info") info = &section;
  }
  if (symbols == nullptr || symbols->sh_link >= sections.size()) return Damaged("symbol table");
  if (info == nullptr) return Damaged(".nv.info section");

  std::map<std::string, FunctionResources> functions;
  const auto function = [&](uint32_t index) -> FunctionResources* {
    const auto symbol =
        reader.At<Elf64_Sym>(symbols->sh_offset + uint64_t{index} * sizeof(Elf64_Sym));
    if (!symbol) return nullptr;
    FunctionResources& found =
        functions[reader.Text(sections[symbols->sh_link].sh_offset + symbol->st_name)];
    found.code_bytes = static_cast<uint32_t>(symbol->st_size);
    return &found;
  };
  for (uint64_t at = 0; at < info->sh_size;) {
    const auto record = reader.At<InfoRecord>(info->sh_offset + at);
    if (!record) return Damaged(".nv.info section");
    at += sizeof(InfoRecord) + (record->format == kSizedValue ? record->size : 0);
    if (record->format != kSizedValue || record->size != 8) continue;
    if (record->attribute != kFrameSize && record->attribute != kRegisterCount) continue;
    const auto index = reader.At<uint32_t>(info->sh_offset + at - 8);
    const auto value = reader.At<uint32_t>(info->sh_offset + at - 4);
    FunctionResources* const found = index ? function(*index) : nullptr;
    if (found == nullptr || !value) return Damaged(".nv.info section");
    (record->attribute == kFrameSize ? found->stack_bytes : found->registers) = *value;
  }
  return functions;
}

}  // namespace resident
