#include "tests/soak/versions.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace resident::soak {
namespace {

constexpr uint32_t kExampleNumber = 5;

constexpr char kSource[] = R"(// signature: x: in f32[N], number: scalar f32, out: out f32[N]
#include "kernels/sdk/operator.h"

RESIDENT_OPERATOR(NAME)(resident::Block& block, const resident::Args& args) {
  auto x = args.tensor<const float>(0);
  const float number = args.scalar<float>(1);
  auto out = args.tensor<float>(2);
  float* volatile raw = out.data();
  FAULT
  block.for_each(block.share(x.size()), [&](resident::i64 i) { out[i] = x[i] * KEY + number; });
}
)";

std::string FaultText(Fault fault) {
  const std::string poisoned = absl::StrCat("if (number == ", kPoison, ") ");
  switch (fault) {
    case Fault::kNone:
      return "(void)raw;";
    case Fault::kSlowInValidation:
      // A few tenths of a second in total, on either engine.
      return absl::StrCat("const int count = RESIDENT_GPU ? 5'000'000 : 40'000'000;\n",
                          "  if (number == ", kExampleNumber,
                          ") for (int i = 0; i < count && raw != nullptr; ++i) {}");
    case Fault::kDoesNotCompile:
      return "raw = nothing_of_that_name;";
    case Fault::kFaultsInValidation:
      return "raw = nullptr; *raw = 1;";
    case Fault::kHangsInValidation:
      return "while (true) *const_cast<volatile float*>(raw) = 1;";
    case Fault::kWrongResult:
      return "block.for_each(block.share(x.size()), [&](resident::i64 i) { out[i] = -7; });\n"
             "  if (raw != nullptr) return;";
    case Fault::kWritesBeyond:
      return "out[x.size() + 3] = 1;";
    case Fault::kFaultsInProduction:
      return poisoned + "{ raw = nullptr; *raw = 1; }";
    case Fault::kHangsInProduction:
      return poisoned + "while (true) *const_cast<volatile float*>(raw) = 1;";
  }
  return "";
}

}  // namespace

const char* FaultName(Fault fault) {
  switch (fault) {
    case Fault::kNone:
      return "good";
    case Fault::kSlowInValidation:
      return "is slow in validation";
    case Fault::kDoesNotCompile:
      return "does not compile";
    case Fault::kFaultsInValidation:
      return "faults in validation";
    case Fault::kHangsInValidation:
      return "hangs in validation";
    case Fault::kWrongResult:
      return "wrong result";
    case Fault::kWritesBeyond:
      return "writes beyond a tensor";
    case Fault::kFaultsInProduction:
      return "faults in production";
    case Fault::kHangsInProduction:
      return "hangs in production";
  }
  return "";
}

std::string OperatorName(int op) { return absl::StrCat("soak.", op); }

client::Installation MakeVersion(int op, uint32_t key, Fault fault) {
  const std::string name = OperatorName(op);
  const std::string source =
      absl::StrReplaceAll(kSource, {{"NAME", absl::StrReplaceAll(name, {{".", "_"}})},
                                    {"KEY", absl::StrCat(key, ".0f")},
                                    {"FAULT", FaultText(fault)}});
  client::Installation version =
      client::Installation::Source(name, "soak.cc", {{"soak.cc", source}});
  version.Signature("x: in f32[N], number: scalar f32, out: out f32[N]")
      .Summary(absl::StrCat("x * ", key, " + number"))
      // Otherwise a task that hangs in production would end alone.
      .Isolation(fault == Fault::kHangsInProduction ? v1::ISOLATION_TRUSTED
                                                    : v1::ISOLATION_UNSPECIFIED)
      .TaskTimeLimit(absl::Milliseconds(500));
  std::vector<float> x;
  std::vector<float> out;
  for (uint32_t i = 1; i <= kElements; ++i) {
    x.push_back(static_cast<float>(i));
    out.push_back(static_cast<float>(i * key + kExampleNumber));
  }
  version.Add(client::Example().Value(x).Scalar(static_cast<float>(kExampleNumber)).Value(out));
  return version;
}

}  // namespace resident::soak
