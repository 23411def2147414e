// Reads the resources of the functions of a linked image (cubin).
#ifndef RESIDENT_RUNTIME_IMAGE_CUBIN_H_
#define RESIDENT_RUNTIME_IMAGE_CUBIN_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/image/elf_file.h"

namespace resident {

// Reads the .nv.info section of a cubin, an ELF file: the registers and the stack frame of each
// function. The driver reports these for kernels only, and operators are not kernels.
struct FunctionResources {
  uint32_t registers = 0;
  // The function's own frame, without what it calls.
  uint32_t stack_bytes = 0;
  uint32_t code_bytes = 0;
};

// Returns the resources by symbol. INVALID_ARGUMENT: there is no .nv.info section, or it is
// damaged.
absl::StatusOr<std::map<std::string, FunctionResources>> ReadNvInfo(const ElfFile& elf);

// Returns the resources by symbol. INVALID_ARGUMENT: not a cubin, or a damaged one; the message
// says which part is damaged.
absl::StatusOr<std::map<std::string, FunctionResources>> ReadCubin(const std::string& image);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_IMAGE_CUBIN_H_
