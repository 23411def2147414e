// ElfFile: a 64-bit little-endian ELF file, read without trusting it. Every offset, size
// and index in it may be wrong; everything that this class returns is inside the file.
//
// Thread safety: immutable. It points into the bytes, which must outlive it.
//
//   ASSIGN_OR_RETURN(ElfFile elf, ElfFile::Parse(bytes));
//   for (const ElfSymbol& symbol : elf.symbols()) ...
#ifndef RESIDENT_RUNTIME_IMAGE_ELF_FILE_H_
#define RESIDENT_RUNTIME_IMAGE_ELF_FILE_H_

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace resident {

// Returns INVALID_ARGUMENT for a file with an invalid part: "section table ends early".
absl::Status DamagedObject(const char* what);

struct ElfSection {
  std::string_view name;
  uint32_t type = 0;
  uint64_t flags = 0;
  uint64_t size = 0;
  uint32_t link = 0;
  uint32_t info = 0;
  // Empty for a section without contents (SHT_NOBITS).
  std::string_view bytes;
};

struct ElfSymbol {
  std::string_view name;
  uint8_t type = 0;   // STT_*
  uint8_t bind = 0;   // STB_*
  uint8_t other = 0;  // Visibility and more.
  uint16_t section = 0;
  uint64_t value = 0;
  uint64_t size = 0;

  bool defined() const { return section != SHN_UNDEF; }
  bool external() const { return bind != STB_LOCAL; }
};

class ElfFile {
 public:
  static constexpr size_t kMaxNameBytes = 16u << 10;

  // INVALID_ARGUMENT: it is not such a file, or a damaged one; the message says which part.
  static absl::StatusOr<ElfFile> Parse(std::string_view bytes);

  const Elf64_Ehdr& header() const { return header_; }
  const std::vector<Elf64_Phdr>& segments() const { return segments_; }
  const std::vector<ElfSection>& sections() const { return sections_; }
  // Symbols of .symtab and .dynsym, from index 0; empty if there are none.
  const std::vector<ElfSymbol>& symbols() const { return symbols_; }
  const std::vector<ElfSymbol>& dynamic_symbols() const { return dynamic_symbols_; }

  // Returns null if there is no section with that name.
  const ElfSection* FindSection(std::string_view name) const;

  // Reads the T at an offset of some bytes of the file. Returns false if it would not be inside.
  template <typename T>
  static bool Read(std::string_view bytes, uint64_t offset, T* value) {
    if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return false;
    std::memcpy(value, bytes.data() + offset, sizeof(T));
    return true;
  }

 private:
  absl::Status ReadSections(std::string_view bytes);
  absl::Status ReadSymbols(const ElfSection& table, std::vector<ElfSymbol>* symbols) const;

  Elf64_Ehdr header_ = {};
  std::vector<Elf64_Phdr> segments_;
  std::vector<ElfSection> sections_;
  std::vector<ElfSymbol> symbols_;
  std::vector<ElfSymbol> dynamic_symbols_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_IMAGE_ELF_FILE_H_
