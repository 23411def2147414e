#include <map>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "runtime/image/embedded.h"
#include "tests/units/link_units.h"
#include "tests/units/versions.h"

#define DECLARE(suffix)                                      \
  extern const char _binary_versions_##suffix##_zst_start[]; \
  extern const char _binary_versions_##suffix##_zst_end[];
extern "C" {
DECLARE(so)
#ifdef RESIDENT_HAVE_CUDA
DECLARE(sm80_cubin)
DECLARE(sm90_cubin)
DECLARE(sm100_cubin)
#endif
}
#undef DECLARE

namespace resident::testing {
namespace {

// Each object is created once.
std::shared_ptr<const std::string> Object(uint32_t k, uint32_t architecture) {
  static absl::Mutex mu;
  static auto* const made =
      new std::map<std::pair<uint32_t, uint32_t>, std::shared_ptr<const std::string>>;
  absl::MutexLock lock(&mu);
  // The shared object contains all versions.
  auto& object = (*made)[{architecture == 0 ? 0 : k, architecture}];
  if (object == nullptr) {
    const std::string unit = VersionsUnit(architecture);
    if (unit.empty()) ExitWithError("no versions for sm_" + std::to_string(architecture));
    object = architecture == 0 ? std::make_shared<const std::string>(unit)
                               : LinkUnit({VersionSymbol(k)}, unit, architecture);
  }
  return object;
}

}  // namespace

std::string VersionSymbol(uint32_t k) {
  return "resident_op_version_" + std::to_string(static_cast<int>(VersionAnswer(k)));
}

float VersionAnswer(uint32_t k) { return static_cast<float>((k / 8 + 1) * 10 + k % 8); }

std::string VersionsUnit(uint32_t architecture) {
  switch (architecture) {
    case 0:
      return UnpackEmbedded(_binary_versions_so_zst_start, _binary_versions_so_zst_end);
#ifdef RESIDENT_HAVE_CUDA
    case 80:
      return UnpackEmbedded(_binary_versions_sm80_cubin_zst_start,
                            _binary_versions_sm80_cubin_zst_end);
    case 90:
      return UnpackEmbedded(_binary_versions_sm90_cubin_zst_start,
                            _binary_versions_sm90_cubin_zst_end);
    case 100:
      return UnpackEmbedded(_binary_versions_sm100_cubin_zst_start,
                            _binary_versions_sm100_cubin_zst_end);
#endif
    default:
      return "";
  }
}

std::shared_ptr<const Generation> VersionsGeneration(uint64_t number,
                                                     const std::string& compile_target,
                                                     const std::map<uint32_t, uint32_t>& versions) {
  const uint32_t architecture = FindArchitecture(compile_target);
  auto generation = std::make_shared<Generation>();
  generation->number = number;
  for (const auto& [slot, k] : versions) {
    generation->operators.push_back({slot, VersionSymbol(k), Object(k, architecture)});
  }
  return generation;
}

}  // namespace resident::testing
