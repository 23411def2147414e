

#include "tests/units/link_units.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "runtime/compile/compile_job.h"

#ifdef RESIDENT_HAVE_CUDA
#include "runtime/image/link.h"
#endif

namespace resident::testing {

void ExitWithError(const std::string& why) {
  std::fprintf(stderr, "tests/units: %s\n", why.c_str());
  std::exit(1);
}

uint32_t FindArchitecture(const std::string& compile_target) {
  const auto target = CompileTarget::Find(compile_target);
  if (!target.ok()) ExitWithError(target.status().ToString());
  return static_cast<uint32_t>(target->architecture);
}

#ifdef RESIDENT_HAVE_CUDA
std::shared_ptr<const std::string> LinkUnit(const std::vector<std::string>& symbols,
                                            const std::string& unit, uint32_t architecture) {
  auto module = LinkOperatorModule(symbols, unit, static_cast<int>(architecture));
  if (!module.ok()) ExitWithError(module.status().ToString());
  return std::make_shared<const std::string>(*std::move(module));
}
#else
std::shared_ptr<const std::string> LinkUnit(const std::vector<std::string>&, const std::string&,
                                            uint32_t) {
  ExitWithError("a build without CUDA");
}
#endif

}  // namespace resident::testing
