// Errors of sessions and of the daemon as a whole.
//
// Rules for the errors of all packages: there is one named function for each error that a client
// can receive, in errors.h of its package. Every message contains the reason and the values, and
// ends with "Fix: ...". Text that a client sent is quoted, shortened and made printable.
#ifndef RESIDENT_RUNTIME_BASE_ERRORS_DAEMON_ERRORS_H_
#define RESIDENT_RUNTIME_BASE_ERRORS_DAEMON_ERRORS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

absl::Status NoSession();
absl::Status UnknownSession(const std::string& id);
absl::Status Draining();
absl::Status Cancelled();
absl::Status DeadlineExceeded();

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_BASE_ERRORS_DAEMON_ERRORS_H_
