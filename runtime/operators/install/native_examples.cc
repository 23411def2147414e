#include "runtime/operators/install/native_examples.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <utility>

#include "kernels/flux/run_arguments.h"
#include "runtime/flux/host_operator.h"

namespace resident {
namespace {

using flux::RegisterValues;

constexpr size_t kGeneratedInputs = 256;
// The limit of the longest runs. It bounds the time that a validation takes.
constexpr uint64_t kMaxCycles = 65'536;

RegisterValues MakeInput(std::mt19937_64& random) {
  constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  constexpr int32_t kEdges[] = {0, 1, -1, 2, 31, 32, 255, 256, 65'535, kMin, kMin + 1, kMax};
  RegisterValues input;
  for (int32_t& value : input) {
    switch (random() % 4) {
      case 0:
        value = kEdges[random() % std::size(kEdges)];
        break;
      case 1:
        value = static_cast<int32_t>(random());
        break;
      default:
        value = static_cast<int32_t>(random() % 200) - 20;
        break;
    }
  }
  return input;
}

std::vector<RegisterValues> MakeInputs(const std::vector<Example>& installed,
                                       std::mt19937_64& random) {
  std::vector<RegisterValues> inputs = {RegisterValues{}};
  for (const Example& example : installed) {
    RegisterValues input = {};
    const std::string& data = example.values[0].data;
    std::memcpy(input.data(), data.data(), std::min(data.size(), sizeof(input)));
    inputs.push_back(input);
  }
  for (size_t i = 0; i < kGeneratedInputs; ++i) inputs.push_back(MakeInput(random));
  return inputs;
}

// Limits at which the first input and the longest of the first ones end, and others.
std::set<uint64_t> ChooseLimits(const std::string& program, bool unknown_nop,
                                const std::vector<RegisterValues>& inputs,
                                std::mt19937_64& random) {
  constexpr size_t kInputsThatAreRun = 16;
  const flux::Bytecode bytecode(program.begin(), program.end());
  uint64_t first = 0;
  uint64_t longest = 0;
  for (size_t i = 0; i < std::min(inputs.size(), kInputsThatAreRun); ++i) {
    const uint64_t cycles = flux::RunOnHost(bytecode, {inputs[i], kMaxCycles, unknown_nop}).cycles;
    if (i == 0) first = cycles;
    longest = std::max(longest, cycles);
  }
  std::set<uint64_t> limits = {0, 1, random() % (longest + 1), kMaxCycles};
  for (const uint64_t cycles : {first, longest}) {
    limits.insert(cycles);
    if (cycles != 0) limits.insert(cycles - 1);
  }
  return limits;
}

ExampleValue Tensor(DType dtype, size_t elements, std::string data = "") {
  return {dtype, Shape{static_cast<int64_t>(elements)}, std::move(data)};
}

ExampleValue Scalar(int64_t value) {
  return {DType::kI64, {}, std::string(reinterpret_cast<const char*>(&value), sizeof(value))};
}

Example MakeExample(const std::string& program, bool unknown_nop,
                    const std::vector<RegisterValues>& inputs, uint64_t max_cycles) {
  const size_t count = inputs.size();
  Example example;
  example.values.resize(flux::kRunArguments);
  const auto set = [&](flux::RunArgument argument, ExampleValue value) {
    example.values[argument] = std::move(value);
  };
  set(flux::kRunBytecode, Tensor(DType::kU8, program.size(), program));
  set(flux::kRunOffsets, Tensor(DType::kU32, 0));
  set(flux::kRunIndex, Tensor(DType::kU32, 0));
  set(flux::kRunInitial, Tensor(DType::kI32, count * 16,
                                std::string(reinterpret_cast<const char*>(inputs.data()),
                                            count * sizeof(RegisterValues))));
  set(flux::kRunRegisters, Tensor(DType::kI32, count * 16));
  set(flux::kRunErrors, Tensor(DType::kU8, count));
  set(flux::kRunCycles, Tensor(DType::kU32, count));
  set(flux::kRunCount, Scalar(static_cast<int64_t>(count)));
  set(flux::kRunInitialWidth, Scalar(16));
  set(flux::kRunInitialShared, Scalar(0));
  set(flux::kRunWanted, Scalar(static_cast<int64_t>(0xfedcba9876543210)));
  set(flux::kRunWantedCount, Scalar(16));
  set(flux::kRunMaxCycles, Scalar(static_cast<int64_t>(max_cycles)));
  set(flux::kRunUnknownNop, Scalar(unknown_nop ? 1 : 0));
  return example;
}

}  // namespace

std::vector<Example> MakeNativeExamples(const std::string& program, bool unknown_nop,
                                        const std::vector<Example>& installed, uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::vector<RegisterValues> inputs = MakeInputs(installed, random);
  std::vector<Example> examples;
  for (const uint64_t limit : ChooseLimits(program, unknown_nop, inputs, random)) {
    examples.push_back(MakeExample(program, unknown_nop, inputs, limit));
  }
  return examples;
}

}  // namespace resident
