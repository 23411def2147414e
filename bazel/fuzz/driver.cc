// Runs a fuzz target with random inputs for $FUZZ_SECONDS (default 3): a bounded replacement
// of libFuzzer in ordinary test runs. The inputs differ in every run. To repeat them, set
// $FUZZ_SEED to the seed that the run printed:
//
//   bazel test --test_env=FUZZ_SEED=1234 //tests/fuzz:fuzz_batch
//
// `make fuzz` finds more, and saves the input that ended a program.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Input = std::vector<uint8_t>;

constexpr size_t kMaxBytes = 4096;
constexpr size_t kPool = 64;

// Generates inputs: bytes, text, and mutations of earlier inputs.
class Inputs {
 public:
  explicit Inputs(uint32_t seed) : random_(seed) {}

  Input Next() {
    Input input = Below(3) == 0 || pool_.empty() ? Generate() : Mutate(pool_[Below(pool_.size())]);
    if (pool_.size() < kPool) {
      pool_.push_back(input);
    } else {
      pool_[Below(kPool)] = input;
    }
    return input;
  }

 private:
  size_t Below(size_t n) { return random_() % n; }

  Input Generate() {
    // Short inputs are more frequent, because most limits are small.
    Input input(Below(size_t{1} << Below(13)));
    const bool text = Below(2) == 0;
    for (uint8_t& byte : input) {
      byte = static_cast<uint8_t>(text ? ' ' + Below(95) : random_());
    }
    return input;
  }

  Input Mutate(Input input) {
    for (size_t changes = 1 + Below(4); changes > 0; --changes) {
      const size_t at = Below(input.size() + 1);
      switch (Below(4)) {
        case 0:  // Truncate.
          input.resize(at);
          break;
        case 1:  // Repeat a part.
          input.insert(input.end(), input.begin(), input.begin() + static_cast<ptrdiff_t>(at));
          if (input.size() > kMaxBytes) input.resize(kMaxBytes);
          break;
        case 2:  // Insert one byte.
          input.insert(input.begin() + static_cast<ptrdiff_t>(at), Interesting());
          break;
        default:
          if (at < input.size()) input[at] = Interesting();
      }
    }
    return input;
  }

  uint8_t Interesting() {
    constexpr uint8_t kEdges[] = {0, 1, 0x7f, 0x80, 0xff, '\n', ' ', '0'};
    return Below(2) == 0 ? kEdges[Below(sizeof kEdges)] : static_cast<uint8_t>(random_());
  }

  std::mt19937 random_;
  std::vector<Input> pool_;
};

uint32_t Seed() {
  const char* seed = std::getenv("FUZZ_SEED");
  return seed != nullptr ? static_cast<uint32_t>(std::strtoul(seed, nullptr, 10))
                         : std::random_device()();
}

}  // namespace

int main() {
  const char* seconds = std::getenv("FUZZ_SECONDS");
  const auto until = std::chrono::steady_clock::now() +
                     std::chrono::seconds(seconds != nullptr ? std::atoi(seconds) : 3);
  const uint32_t seed = Seed();
  // Print the seed first, because an input may end the program.
  std::printf("FUZZ_SEED=%u\n", seed);
  std::fflush(stdout);
  Inputs inputs(seed);
  size_t runs = 0;
  do {
    const Input input = inputs.Next();
    LLVMFuzzerTestOneInput(input.data(), input.size());
    ++runs;
  } while (std::chrono::steady_clock::now() < until);
  std::printf("%zu inputs\n", runs);
  return 0;
}
