#include "runtime/base/errors/example_errors.h"

#include "absl/strings/str_cat.h"

namespace resident::errors {
namespace {

using absl::StrCat;

std::string DescribeValue(size_t example, size_t value) {
  return StrCat("example ", example + 1, ", value ", value + 1);
}

}  // namespace

absl::Status ExampleTolerance(size_t example) {
  return absl::InvalidArgumentError(
      StrCat("example ", example + 1,
             ": a tolerance is negative or not a number. Fix: send 0 or more, such as 1e-5"));
}

absl::Status ExampleTooManyValues(size_t example, size_t values, size_t limit) {
  return absl::InvalidArgumentError(StrCat("example ", example + 1, " has ", values,
                                           " values, but an operator has at most ", limit,
                                           " parameters. Fix: send one for each parameter"));
}

absl::Status ExampleDType(size_t example, size_t value, int dtype) {
  return absl::InvalidArgumentError(StrCat(DescribeValue(example, value), ": dtype ", dtype,
                                           " is unknown. Fix: set a value of resident.v1.DType"));
}

absl::Status ExampleRank(size_t example, size_t value, size_t rank, size_t limit) {
  return absl::InvalidArgumentError(StrCat(DescribeValue(example, value), ": ", rank,
                                           " dimensions are over the limit of ", limit,
                                           ". Fix: give a shape that the signature takes"));
}

absl::Status ExampleTooLarge(size_t example, size_t value, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat(DescribeValue(example, value), " exceeds the limit of ",
                                           limit,
                                           " bytes for all examples of one install, including "
                                           "outputs. Fix: send smaller tensors"));
}

absl::Status ExampleSize(size_t example, size_t value, uint64_t got, uint64_t wanted) {
  return absl::InvalidArgumentError(StrCat(
      DescribeValue(example, value), ": data has ", got, " bytes, but dtype and shape require ",
      wanted,
      ". Fix: send dense elements; twice as many for an inout with expected values; none for an "
      "output that is compared with the active version's"));
}

absl::Status TooManyExamples(uint64_t count, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat(count, " examples are more than the limit of ", limit,
                                           " for one install. Fix: send at most ", limit,
                                           " examples"));
}

absl::Status InExample(size_t example, const absl::Status& why) {
  return absl::Status(why.code(), StrCat("example ", example + 1, ": ", why.message()));
}

absl::Status ExampleData(const ArgumentRef& place, uint64_t got, const std::string& takes) {
  return absl::InvalidArgumentError(StrCat(ArgumentText(place), ": the example has ", got,
                                           " bytes of data for it, but it takes ", takes,
                                           ". Fix: send dense elements of its dtype and shape"));
}

absl::Status ExampleScalarShape(const ArgumentRef& place, const std::string& shape) {
  return absl::InvalidArgumentError(StrCat(ArgumentText(place), ": a scalar has no shape, but ",
                                           shape,
                                           " was sent. Fix: leave the shape of scalars empty"));
}

absl::Status ExampleExpectations(const std::string& with, const std::string& without) {
  return absl::InvalidArgumentError(
      StrCat("output '", with, "' has expected data and output '", without,
             "' has none. Fix: send data for all outputs, or for none to compare with the active "
             "version"));
}

absl::Status ExampleTolerance(double relative, double absolute) {
  return absl::InvalidArgumentError(
      StrCat("tolerances ", relative, " (relative) and ", absolute,
             " (absolute): both must be finite and not negative. Fix: send 0 and 0 for the "
             "defaults of the dtypes"));
}

absl::Status ExampleTooLarge(uint64_t bytes, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("its tensors have ", bytes,
                                           " bytes, which is more than the limit of ", limit,
                                           ". Fix: send smaller tensors"));
}

}  // namespace resident::errors
