// Which calls need which role: the one table of them.
//
// A call that is not in the table is refused to everybody; a test compares the table
// with the services' descriptors, so that a new call cannot be forgotten.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_AUTH_METHOD_ROLES_H_
#define RESIDENT_SERVER_AUTH_METHOD_ROLES_H_

#include <string_view>
#include <vector>

#include "server/auth/role.h"

namespace resident {

struct MethodRule {
  // Needs no credential at all.
  bool open_to_all = false;
  // Any of these will do. Empty, and not open: nobody may.
  RoleSet roles;
};

// `method`: "/package.Service/Method".
MethodRule RuleOf(std::string_view method);

// Every method in the table, by name.
std::vector<std::string_view> ListedMethods();

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_METHOD_ROLES_H_
