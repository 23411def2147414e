#include <cstdio>
#include <cstdlib>
#include <vector>

#include "runtime/engine/image/embedded.h"
#include "tests/units/versions.h"

#ifdef RESIDENT_HAVE_CUDA
#include "runtime/engine/image/link.h"
#endif

#define DECLARE(suffix)                                     \
  extern const char _binary_versions_##suffix##_gz_start[]; \
  extern const char _binary_versions_##suffix##_gz_end[];
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

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "versions: %s\n", why.c_str());
  std::exit(1);
}

#ifdef RESIDENT_HAVE_CUDA
std::shared_ptr<const std::string> Link(const Generation& generation, uint32_t architecture) {
  GenerationObjects objects = FirstGenerationObjects(static_cast<int>(architecture / 10),
                                                     static_cast<int>(architecture % 10));
  const std::string unit = VersionsUnit(architecture);
  if (unit.empty()) Die("no unit for sm_" + std::to_string(architecture));
  const std::string table = JumpTablePtx(generation.operators);
  objects.inputs.push_back({"table.ptx", table, /*is_ptx=*/true});
  objects.inputs.push_back({"versions.cubin", unit, /*is_ptx=*/false});
  auto image = LinkImage(objects.inputs, objects.architecture);
  if (!image.ok()) Die(image.status().ToString());
  return std::make_shared<const std::string>(*std::move(image));
}
#else
std::shared_ptr<const std::string> Link(const Generation&, uint32_t) {
  Die("a build without CUDA");
}
#endif

}  // namespace

std::string VersionSymbol(uint32_t k) {
  return "resident_op_version_" + std::to_string(static_cast<int>(VersionAnswer(k)));
}

float VersionAnswer(uint32_t k) { return static_cast<float>((k / 8 + 1) * 10 + k % 8); }

std::string VersionsUnit(uint32_t architecture) {
  switch (architecture) {
    case 0:
      return UnpackEmbedded(_binary_versions_so_gz_start, _binary_versions_so_gz_end);
#ifdef RESIDENT_HAVE_CUDA
    case 80:
      return UnpackEmbedded(_binary_versions_sm80_cubin_gz_start,
                            _binary_versions_sm80_cubin_gz_end);
    case 90:
      return UnpackEmbedded(_binary_versions_sm90_cubin_gz_start,
                            _binary_versions_sm90_cubin_gz_end);
    case 100:
      return UnpackEmbedded(_binary_versions_sm100_cubin_gz_start,
                            _binary_versions_sm100_cubin_gz_end);
#endif
    default:
      return "";
  }
}

std::shared_ptr<const Generation> VersionsGeneration(uint64_t number, uint32_t architecture,
                                                     const std::map<uint32_t, uint32_t>& versions) {
  static const auto* const shared_object =
      new std::shared_ptr<const std::string>(std::make_shared<std::string>(VersionsUnit(0)));
  auto generation = std::make_shared<Generation>();
  generation->number = number;
  for (const auto& [slot, k] : versions) {
    generation->operators.push_back(
        {slot, VersionSymbol(k), architecture == 0 ? *shared_object : nullptr});
  }
  if (architecture != 0) generation->image = Link(*generation, architecture);
  return generation;
}

}  // namespace resident::testing
