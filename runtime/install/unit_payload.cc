#include "runtime/install/unit_payload.h"

#include "absl/strings/str_cat.h"

namespace resident {

std::string TargetName(UnitTarget target) {
  return target == kCpuTarget ? "x86-64" : absl::StrCat("sm_", target);
}

}  // namespace resident
