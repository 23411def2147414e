// Whether an address can be listened on, asked before anything costly is started.
//
// Thread safety: a function without state of its own.
#ifndef RESIDENT_SERVER_LISTEN_CHECK_H_
#define RESIDENT_SERVER_LISTEN_CHECK_H_

#include <string>

#include "absl/status/status.h"

namespace resident {

// INVALID_ARGUMENT: not host:port. UNAVAILABLE: in use, or not this machine's. `flag`
// is named in the message.
absl::Status CheckListen(const std::string& flag, const std::string& address);

// The error for an address that could not be listened on after all.
absl::Status CannotListen(const std::string& flag, const std::string& address,
                          const std::string& why);

}  // namespace resident

#endif  // RESIDENT_SERVER_LISTEN_CHECK_H_
