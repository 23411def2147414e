// Decides what callers may see of others: one rule for Status, List, Describe, Watch, Audit and the
// console.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_CORE_VIEWER_H_
#define RESIDENT_SERVER_CORE_VIEWER_H_

#include <optional>
#include <string>

#include "server/auth/account.h"

namespace resident {

// Whether the caller may see information about others: who installed a version, the hash of its
// content, why it is quarantined (the reason may contain the arguments of another client's task),
// and other identities' clients. Requires the role admin, which every caller has without a policy.
inline bool MaySeeOthers(const Identity& caller) {
  return caller.Has(Role::kAdmin, "resident.v1.Operators/Audit").ok();
}

// Who reads a listing.
struct Viewer {
  bool sees_others = false;
  // Its clients and its holds of graphs are its own; nullopt: it has no identity and owns nothing.
  std::optional<std::string> name = {};

  static Viewer Of(const Identity& caller) {
    return {.sees_others = MaySeeOthers(caller), .name = caller.name()};
  }
  bool Sees(const std::string& owner) const { return sees_others || name == owner; }
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CORE_VIEWER_H_
