// RunOperator with blocks of RESIDENT_EMULATED_THREADS threads of the host.
#include <cstdio>
#include <cstdlib>

#include "kernels/ops/builtin.h"
#include "kernels/ops/jump_table.h"
#include "kernels/ops/tensor_cores.h"
#include "kernels/sdk/block.h"
#include "kernels/sdk/emulated_block.h"
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
  static auto state = std::make_unique<BlockState>();
  const std::unique_ptr<unsigned char[]> scratch(new unsigned char[kScratchBytes]);
  state->scratch = scratch.get();
  state->descriptor = {};
  state->descriptor.set_argument_count(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    state->arguments.arguments[i] = arguments[i].argument;
  }
  const uint32_t count = chunks == 0 ? 1 : chunks;
  state->chunk_count = count;
  state->status_and_detail = 0;
  for (uint32_t chunk = 0; chunk < count; ++chunk) {
    state->chunk = chunk;
    emulated::RunBlock(Block::kMaxThreads, [&] {
      Block block(state.get());
      const Args args(state.get());
      function(block, args);
    });
  }
  return {static_cast<CompletionStatus>(state->status_and_detail & 0xffff),
          static_cast<uint16_t>(state->status_and_detail >> 16)};
}

}  // namespace resident::testing
