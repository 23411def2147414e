#include "tests/units/link_units.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#ifdef RESIDENT_HAVE_CUDA
#include "runtime/engine/image/link.h"
#endif

namespace resident::testing {

void Die(const std::string& why) {
  std::fprintf(stderr, "tests/units: %s\n", why.c_str());
  std::exit(1);
}

#ifdef RESIDENT_HAVE_CUDA
std::shared_ptr<const std::string> LinkUnits(const Generation& generation, uint32_t architecture,
                                             const std::vector<LinkInput>& units) {
  GenerationObjects objects = FirstGenerationObjects(static_cast<int>(architecture / 10),
                                                     static_cast<int>(architecture % 10));
  const std::string table = JumpTablePtx(generation.operators);
  objects.inputs.push_back({"table.ptx", table, /*is_ptx=*/true});
  objects.inputs.insert(objects.inputs.end(), units.begin(), units.end());
  auto image = LinkImage(objects.inputs, objects.architecture);
  if (!image.ok()) Die(image.status().ToString());
  return std::make_shared<const std::string>(*std::move(image));
}
#else
std::shared_ptr<const std::string> LinkUnits(const Generation&, uint32_t,
                                             const std::vector<LinkInput>&) {
  Die("a build without CUDA");
}
#endif

}  // namespace resident::testing
