// The table of methods: the roles that each call needs, and the limits of its messages.
//
// A call that is not in the table is refused to all callers; a test compares the table with
// the services' descriptors, so that every new call must be added.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_AUTH_METHOD_ROLES_H_
#define RESIDENT_SERVER_AUTH_METHOD_ROLES_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "server/auth/role.h"

namespace resident {

struct MethodRule {
  // Needs no credential.
  bool open_to_all = false;
  // One of these is enough. Empty, and not open: the method is not served.
  RoleSet roles;
  // Sub-messages, texts and unknown fields in one message (server/rpc/message_bytes.h).
  uint32_t max_objects = 0;
  // Its handler charges its answers to the client's memory; otherwise CallMemory does.
  bool charges_answers = false;
};

// `method`: "/package.Service/Method".
MethodRule FindMethodRule(std::string_view method);

// Every method in the table, by name.
std::vector<std::string_view> ListedMethods();

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_METHOD_ROLES_H_
