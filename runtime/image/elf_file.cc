#include "runtime/image/elf_file.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

// Reads the text at an offset of a string table. Returns false if it has no end there, or is too
// long.
bool ReadName(std::string_view table, uint64_t offset, std::string_view* name) {
  if (offset >= table.size()) return false;
  const std::string_view rest = table.substr(offset, ElfFile::kMaxNameBytes);
  const size_t end = rest.find('\0');
  if (end == std::string_view::npos) return false;
  *name = rest.substr(0, end);
  return true;
}

}  // namespace

absl::Status DamagedObject(const char* what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the object is damaged: its ", what, ". Fix: compile it again"));
}

absl::StatusOr<ElfFile> ElfFile::Parse(std::string_view bytes) {
  ElfFile elf;
  if (!Read(bytes, 0, &elf.header_) || std::memcmp(elf.header_.e_ident, ELFMAG, SELFMAG) != 0) {
    return absl::InvalidArgumentError(
        "the object is not an ELF file. Fix: send a relocatable cubin");
  }
  if (elf.header_.e_ident[EI_CLASS] != ELFCLASS64 || elf.header_.e_ident[EI_DATA] != ELFDATA2LSB) {
    return absl::InvalidArgumentError(
        "the object is not a 64-bit little-endian ELF file. Fix: compile for 64 bits");
  }
  for (uint32_t i = 0; i < elf.header_.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!Read(bytes, elf.header_.e_phoff + uint64_t{i} * sizeof(segment), &segment)) {
      return DamagedObject("segment table ends early");
    }
    elf.segments_.push_back(segment);
  }
  RETURN_IF_ERROR(elf.ReadSections(bytes));
  for (const ElfSection& section : elf.sections_) {
    const bool dynamic = section.type == SHT_DYNSYM;
    if (section.type != SHT_SYMTAB && !dynamic) continue;
    std::vector<ElfSymbol>* const symbols = dynamic ? &elf.dynamic_symbols_ : &elf.symbols_;
    if (!symbols->empty()) return DamagedObject("symbol table occurs twice");
    RETURN_IF_ERROR(elf.ReadSymbols(section, symbols));
  }
  return elf;
}

absl::Status ElfFile::ReadSections(std::string_view bytes) {
  std::vector<Elf64_Shdr> headers;
  for (uint32_t i = 0; i < header_.e_shnum; ++i) {
    Elf64_Shdr section;
    if (!Read(bytes, header_.e_shoff + uint64_t{i} * sizeof(section), &section)) {
      return DamagedObject("section table ends early");
    }
    headers.push_back(section);
  }
  for (const Elf64_Shdr& from : headers) {
    ElfSection section;
    section.type = from.sh_type;
    section.flags = from.sh_flags;
    section.size = from.sh_size;
    section.link = from.sh_link;
    section.info = from.sh_info;
    // CUDA has its own types for sections without contents: a section that is not inside the file
    // is treated as empty.
    const bool inside =
        from.sh_offset <= bytes.size() && from.sh_size <= bytes.size() - from.sh_offset;
    if (from.sh_type != SHT_NOBITS && inside) {
      section.bytes = bytes.substr(from.sh_offset, from.sh_size);
    }
    sections_.push_back(section);
  }
  if (sections_.empty()) return absl::OkStatus();
  if (header_.e_shstrndx >= sections_.size()) return DamagedObject("section names are missing");
  const std::string_view names = sections_[header_.e_shstrndx].bytes;
  for (size_t i = 0; i < sections_.size(); ++i) {
    if (!ReadName(names, headers[i].sh_name, &sections_[i].name)) {
      return DamagedObject("section names are cut off");
    }
  }
  return absl::OkStatus();
}

absl::Status ElfFile::ReadSymbols(const ElfSection& table, std::vector<ElfSymbol>* symbols) const {
  if (table.link >= sections_.size()) return DamagedObject("symbol names are missing");
  if (table.bytes.size() != table.size) return DamagedObject("symbol table ends early");
  const std::string_view names = sections_[table.link].bytes;
  symbols->reserve(table.bytes.size() / sizeof(Elf64_Sym));
  for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= table.bytes.size(); at += sizeof(Elf64_Sym)) {
    Elf64_Sym from;
    Read(table.bytes, at, &from);
    ElfSymbol symbol;
    if (!ReadName(names, from.st_name, &symbol.name)) {
      return DamagedObject("symbol names are cut off");
    }
    symbol.type = ELF64_ST_TYPE(from.st_info);
    symbol.bind = ELF64_ST_BIND(from.st_info);
    symbol.other = from.st_other;
    symbol.section = from.st_shndx;
    symbol.value = from.st_value;
    symbol.size = from.st_size;
    symbols->push_back(symbol);
  }
  return absl::OkStatus();
}

const ElfSection* ElfFile::FindSection(std::string_view name) const {
  for (const ElfSection& section : sections_) {
    if (section.name == name) return &section;
  }
  return nullptr;
}

}  // namespace resident
