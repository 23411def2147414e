// RunOperator with blocks of RESIDENT_EMULATED_THREADS threads of the host.
#include <cstdio>
#include <cstdlib>

#include "kernels/ops/builtin.h"
#include "kernels/ops/emulated_task.h"
#include "kernels/ops/jump_table.h"
#include "kernels/ops/tensor_cores.h"
#include "tests/conformance/operator_runner.h"

namespace resident::testing {

bool Emulated() { return true; }
uint64_t EmulatedTensorCoreProducts() { return emulated::Products::count; }

TensorMemory AllocateTensor(uint64_t bytes) {
  auto* const memory = static_cast<uint8_t*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  std::shared_ptr<uint8_t> host(memory, std::free);
  return {reinterpret_cast<uint64_t>(memory), host};
}

Outcome RunOperator(const std::string& name, const std::vector<TestArgument>& arguments,
                    uint32_t chunks) {
  const std::optional<unsigned> slot = FindBuiltinSlot(name);
  if (!slot) {
    std::fprintf(stderr, "no operator %s\n", name.c_str());
    std::abort();
  }
  const OperatorFunction function = FindBuiltinFunction(*slot, /*test_operators=*/true);
  std::vector<Argument> bits;
  for (const TestArgument& argument : arguments) bits.push_back(argument.argument);
  const u32 ended = RunEmulated(function, bits, chunks == 0 ? 1 : chunks);
  return {static_cast<CompletionStatus>(ended & 0xffff), static_cast<uint16_t>(ended >> 16)};
}

}  // namespace resident::testing
