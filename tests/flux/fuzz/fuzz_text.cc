// libFuzzer target: the assembler and the vector reader on any text, and the
// disassembler on any bytes.
//
// `make fuzz` builds and runs it. To run the binary that it leaves:
//
//   ./fuzz_text -max_total_time=60
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "runtime/flux/assembler.h"
#include "runtime/flux/vectors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace resident::flux;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)Assemble(text);
  (void)ParseVectors(text);
  const Bytecode code(data, data + size);
  const auto again = Assemble(Disassemble(code));
  if (!again.ok() || *again != code) std::abort();
  return 0;
}
