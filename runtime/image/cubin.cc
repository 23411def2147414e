#include "runtime/image/cubin.h"

#include "absl/strings/str_cat.h"
#include "runtime/image/elf_file.h"

namespace resident {
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
