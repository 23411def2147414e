#include "tests/support/host_unit.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/support/temp_folder.h"

namespace resident::testing {

std::unique_ptr<HostUnit> HostUnit::Compile(const std::string& source, bool checked) {
  const TempFolder temp("host_unit");
  const std::string& folder = temp.path();
  std::ofstream(folder + "/unit.cc") << source;
  const std::string command =
      "c++ -shared -fPIC -O3 -std=c++20 -nostdinc -nostdinc++ -fno-exceptions -fno-rtti "
      "-fno-math-errno -Wall -Wextra -Werror -Wno-unused-parameter -Wno-unknown-pragmas "
      "-DRESIDENT_CHECKED=" +
      std::to_string(checked ? 1 : 0) + " -I. '" + folder + "/unit.cc' -o '" + folder +
      "/unit.so' -lm";
  void* library = nullptr;
  if (std::system(command.c_str()) == 0) {
    library = dlopen((folder + "/unit.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  }
  if (library == nullptr) return nullptr;
  return std::unique_ptr<HostUnit>(new HostUnit(library));
}

HostUnit::~HostUnit() { dlclose(library_); }

OperatorFunction HostUnit::Find(const std::string& name) const {
  return reinterpret_cast<OperatorFunction>(dlsym(library_, ("resident_operator_" + name).c_str()));
}

HostCall::HostCall(uint32_t arguments)
    : state_(std::make_unique<BlockState>()), scratch_(kScratchBytes) {
  std::memset(static_cast<void*>(state_.get()), 0, sizeof(BlockState));
  state_->descriptor.set_argument_count(arguments);
  state_->scratch = scratch_.data();
}

void HostCall::Tensor(uint32_t argument, const void* data, DType dtype,
                      const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  TensorArgument& tensor = state_->arguments.arguments[argument].tensor;
  tensor.address = reinterpret_cast<uint64_t>(data);
  tensor.dtype = dtype;
  tensor.rank = static_cast<u8>(shape.size());
  int64_t dense = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    tensor.shape[d] = shape[d];
    tensor.strides[d] = strides.empty() ? dense : strides[d];
    dense *= shape[d];
  }
}

void HostCall::Compact(int64_t n, const std::vector<uint64_t>& words) {
  state_->descriptor.flags = kTaskCompact;
  state_->descriptor.set_elements(static_cast<u64>(n));
  for (u32 i = 0; i < words.size(); ++i) state_->descriptor.set_compact_argument(i, words[i]);
}

bool HostCall::Run(OperatorFunction function, int64_t chunks, bool share_memory) {
  state_->status_and_detail = 0;
  state_->task_memory = share_memory ? &task_memory_ : nullptr;
  task_memory_.arrived = 0;
  state_->chunk_count = static_cast<u64>(chunks);
  for (int64_t chunk = chunks; chunk-- > 0;) {
    state_->chunk = static_cast<u64>(chunk);
    // Simulate memory that an earlier task has used.
    std::memset(state_->memory, 0xa5, sizeof(state_->memory));
    function(state_.get());
  }
  return state_->status_and_detail == 0;
}

}  // namespace resident::testing
