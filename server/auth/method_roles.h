// The table of methods: the roles that each call needs, and the protections of the daemon against
// its calls. SECURITY.md shows it (tools/method_table), and tests/auth/methods_test.py attacks each
// method in the way that each value names.
//
// A call that is not in the table is refused to all callers. A method of the services' protos
// without a row is an error of the build.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_AUTH_METHOD_ROLES_H_
#define RESIDENT_SERVER_AUTH_METHOD_ROLES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/auth/role.h"

namespace resident {

// What bounds a message that is never finished, in addition to the limits of a connection
// (server/connections/connection_table.h), which hold for all methods.
enum class Unfinished : uint8_t {
  kHeld,    // Nothing more.
  kTimed,   // AdmittedService::kOpenMessage, because anybody may call the method.
  kUpload,  // --max_install_header_ms and --max_install_upload_ms.
};

// What bounds the answers that a client does not read.
enum class Unread : uint8_t {
  kTiny,     // None needed: an answer has at most CallMemory::kUncharged bytes.
  kCharged,  // CallMemory charges them to the client's memory.
  kHandler,  // The method's handler does.
};

// What a call takes of a limited number, of which one caller leaves some to others
// (server/core/shared_slots.h).
enum class Places : uint8_t {
  kNone,           // None needed: the call holds nothing that others need.
  kSession,        // None of its own: it needs an open session, which has one.
  kConnection,     // One for its connection, unless it has a session: --max_sessions.
  kSessions,       // --max_sessions.
  kWatches,        // kMaxWatchers.
  kHealthWatches,  // kMaxHealthWatches.
  kInstalls,       // --max_installs.
  kLoads,          // kMaxLoads.
  kShared,         // kMaxSharedBuffers.
  kChecks,         // graph::kMaxChecks.
  kGraphRuns,      // graph::kMaxRuns.
  kGraphSessions,  // graph::kMaxGraphSessions.
  kLanes,          // --max_lanes.
};

// The quotas of an identity that a call takes from. A region of shared memory is registered only
// where callers have no identities.
enum class Quota : uint8_t {
  kNoQuota,       // None needed: the call keeps nothing and runs no task.
  kTasks,         // tasks_in_flight.
  kBytes,         // buffer_mib.
  kBoth,          // tasks_in_flight and buffer_mib.
  kSessionQuota,  // sessions.
  kWatchQuota,    // watches.
  kInstallQuota,  // installs and installs_per_minute.
};

// What remains of a call when its deadline has passed, or when its client has cancelled it or gone.
// The client's part of the call ends then in every case.
enum class Ends : uint8_t {
  kSoon,    // None needed: it waits for no engine and no other call. Its work is a look at the
            // daemon's state, or one access to the stored state, and is finished.
  kStops,   // Nothing, within a short time: waiting and working stop, and all is released.
  kEngine,  // What it has asked of the engine, which is finished.
};

struct MethodRule {
  // Needs no credential.
  bool open_to_all = false;
  // One of these is enough. Empty, and not open: the method is not served.
  RoleSet roles;
  // Sub-messages, texts and unknown fields in one message (server/rpc/message_bytes.h).
  uint32_t max_objects = 0;
  Unfinished unfinished = Unfinished::kHeld;
  Unread unread = Unread::kTiny;
  Places places = Places::kNone;
  Quota quota = Quota::kNoQuota;
  Ends deadline = Ends::kSoon;
  Ends cancel = Ends::kSoon;
};

// `method`: "/package.Service/Method".
MethodRule FindMethodRule(std::string_view method);

// Every method in the table, by name.
std::vector<std::string> ListedMethods();

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_METHOD_ROLES_H_
