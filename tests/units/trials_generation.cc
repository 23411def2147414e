#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/units/trials.h"

#ifdef RESIDENT_HAVE_CUDA
#include "runtime/engine/image/link.h"
#endif

#define DECLARE(suffix)                                \
  extern const char _binary_trials_##suffix##_start[]; \
  extern const char _binary_trials_##suffix##_end[];
extern "C" {
DECLARE(so)
DECLARE(checked_so)
#ifdef RESIDENT_HAVE_CUDA
DECLARE(ptx)
DECLARE(checked_ptx)
#endif
}
#undef DECLARE

namespace resident::testing {
namespace {

std::string_view Between(const char* begin, const char* end) {
  return {begin, static_cast<size_t>(end - begin)};
}

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "trials: %s\n", why.c_str());
  std::exit(1);
}

#ifdef RESIDENT_HAVE_CUDA
std::shared_ptr<const std::string> Link(const Generation& generation, uint32_t architecture) {
  GenerationObjects objects = FirstGenerationObjects(static_cast<int>(architecture / 10),
                                                     static_cast<int>(architecture % 10));
  const std::string table = JumpTablePtx(generation.operators);
  objects.inputs.push_back({"table.ptx", table, /*is_ptx=*/true});
  // Each text ends with a zero byte, which is not part of it.
  for (std::string_view ptx :
       {Between(_binary_trials_ptx_start, _binary_trials_ptx_end),
        Between(_binary_trials_checked_ptx_start, _binary_trials_checked_ptx_end)}) {
    ptx.remove_suffix(1);
    objects.inputs.push_back({"trials.ptx", ptx, /*is_ptx=*/true});
  }
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

std::shared_ptr<const Generation> TrialsGeneration(uint32_t architecture,
                                                   const std::map<uint32_t, std::string>& serving,
                                                   const std::map<uint32_t, std::string>& checked) {
  std::shared_ptr<const std::string> objects[2];
  if (architecture == 0) {
    objects[0] =
        std::make_shared<std::string>(Between(_binary_trials_so_start, _binary_trials_so_end));
    objects[1] = std::make_shared<std::string>(
        Between(_binary_trials_checked_so_start, _binary_trials_checked_so_end));
  }
  auto generation = std::make_shared<Generation>();
  generation->number = 2;
  for (const auto& [slot, name] : serving) {
    generation->operators.push_back({slot, "resident_op_" + name, objects[0]});
  }
  for (const auto& [slot, name] : checked) {
    generation->operators.push_back({slot, "resident_opc_" + name, objects[1]});
  }
  if (architecture != 0) generation->image = Link(*generation, architecture);
  return generation;
}

}  // namespace resident::testing
