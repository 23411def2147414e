#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/limits.h"
#include "runtime/operators/validation/example.h"

namespace resident {
namespace {

// Maximum number of elements of a tensor: errors in memory accesses show with few.
constexpr int64_t kMaxElements = 1 << 20;
constexpr int64_t kPrimes[] = {7, 5, 3, 11, 2, 13};

// Generates the same values every time.
class Random {
 public:
  uint32_t Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }

 private:
  uint64_t state_ = 1;
};

// Floats are from -4 to 4; integers are small, since they may be used as indices.
void AppendElement(DType dtype, Random& random, std::string& data) {
  const uint32_t r = random.Next();
  uint64_t bits = 0;
  if (dtype == DType::kF16) {  // Sign, an exponent for 0.25 to 4, any mantissa.
    bits = (r & 0x83ff) | (13 + (r >> 16) % 4) << 10;
  } else if (IsFloat(dtype)) {
    bits = ScalarBits(dtype, static_cast<double>(r % 8001) / 1000 - 4);
  } else {
    bits = ScalarBits(dtype, static_cast<int64_t>(r % 3));
  }
  data.append(reinterpret_cast<const char*>(&bits), SizeOf(dtype));
}

// The shape that each variable of the signature is bound to.
using Sizes = std::vector<Shape>;

// `broadcast`: use a shape that broadcasts to the variable's shape, where the parameter
// allows it.
Shape MakeShape(const Parameter& parameter, const Sizes& sizes, bool broadcast) {
  Shape shape;
  for (const DimPattern& dim : parameter.dims) {
    if (dim.kind == DimPattern::Kind::kFixed) {
      shape.push_back(dim.size);
    } else {
      Shape bound = sizes[dim.variable];
      if (broadcast && dim.kind == DimPattern::Kind::kBroadcast) {
        bound.back() = 1;
        if (bound.size() > 1) bound.erase(bound.begin());
      }
      shape.insert(shape.end(), bound.begin(), bound.end());
    }
  }
  return shape;
}

uint64_t DefaultScalar(const Parameter& parameter) {
  if (parameter.default_bits) return *parameter.default_bits;
  return IsFloat(parameter.dtypes[0]) ? ScalarBits(parameter.dtypes[0], 1.0)
                                      : ScalarBits(parameter.dtypes[0], int64_t{1});
}

// nullopt if these sizes are too large, or no tensor can have them.
std::optional<Example> MakeExample(const Signature& signature, const Sizes& sizes, size_t variant) {
  Example example;
  Random random;
  uint64_t total = 0;
  for (size_t p = 0; p < signature.parameters().size(); ++p) {
    const Parameter& parameter = signature.parameters()[p];
    ExampleValue value;
    value.dtype = parameter.dtypes[variant % parameter.dtypes.size()];
    if (parameter.scalar()) {
      const uint64_t bits = DefaultScalar(parameter);
      value.data.assign(reinterpret_cast<const char*>(&bits), SizeOf(value.dtype));
      example.values.push_back(std::move(value));
      continue;
    }
    value.shape = MakeShape(parameter, sizes, /*broadcast=*/(p + variant) % 2 == 1);
    if (value.shape.size() > parameter.max_rank) return std::nullopt;
    const std::optional<int64_t> elements = ElementCount(value.shape);
    if (!elements || *elements > kMaxElements) return std::nullopt;
    total += static_cast<uint64_t>(*elements) * SizeOf(value.dtype);
    if (total > kMaxExampleBytes) return std::nullopt;
    if (parameter.kind != ParameterKind::kOutput) {
      for (int64_t i = 0; i < *elements; ++i) AppendElement(value.dtype, random, value.data);
    }
    example.values.push_back(std::move(value));
  }
  return example;
}

// The first size at which a task has at least three chunks, in the first variable of the
// parameter that determines the split; nullopt if no variable does.
std::optional<Sizes> FindSizesWithThreeChunks(const Signature& signature, const SplitRule& split,
                                              const Sizes& one) {
  if (split.parameter < 0) return std::nullopt;
  const Parameter& decides = signature.parameters()[static_cast<size_t>(split.parameter)];
  const auto dim = std::find_if(decides.dims.begin(), decides.dims.end(), [](const DimPattern& d) {
    return d.kind != DimPattern::Kind::kFixed;
  });
  if (dim == decides.dims.end()) return std::nullopt;
  Sizes sizes = one;
  for (int64_t n = 1; n <= kMaxElements; n *= 2) {
    sizes[dim->variable].assign(1, n + 1);
    if (split.Chunks(MakeShape(decides, sizes, /*broadcast=*/false)) >= 3) return sizes;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Example> GenerateExamples(const Signature& signature, const SplitRule& split) {
  const size_t variables = signature.variables().size();
  const Sizes one(variables, Shape{1});
  std::vector<Sizes> all = {one};
  Sizes primes = one;
  for (size_t v = 0; v < variables; ++v) {
    primes[v] = Shape{kPrimes[v % std::size(kPrimes)]};
    // A variable for several dimensions gets more than one, if the ranks allow it.
    if (signature.variables()[v][0] == '*') primes[v].push_back(5);
  }
  all.push_back(primes);
  if (variables > 0) {
    Sizes many = primes, none = primes, inner_none = primes;
    many.front() = Shape{1000};
    none.front() = Shape{0};
    inner_none.back() = Shape{0};
    all.push_back(many);
    all.push_back(none);
    if (variables > 1) all.push_back(inner_none);
    if (auto chunks = FindSizesWithThreeChunks(signature, split, one))
      all.push_back(*std::move(chunks));
  }
  std::vector<Example> examples;
  for (size_t i = 0; i < all.size(); ++i) {
    if (auto example = MakeExample(signature, all[i], i)) examples.push_back(*std::move(example));
  }
  return examples;
}

}  // namespace resident
