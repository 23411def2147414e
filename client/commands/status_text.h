// The text form of a daemon's status, for the commands status and top.
#ifndef RESIDENT_CLIENT_COMMANDS_STATUS_TEXT_H_
#define RESIDENT_CLIENT_COMMANDS_STATUS_TEXT_H_

#include <string>

#include "resident/v1/admin.pb.h"

namespace resident::cli {

// One paragraph about the daemon, a table of devices, one of clients.
std::string StatusText(const v1::StatusResponse& status, const std::string& address);

// Like StatusText, with rates since `before`, which is `seconds` older.
std::string TopText(const v1::StatusResponse& before, const v1::StatusResponse& now, double seconds,
                    const std::string& address);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_COMMANDS_STATUS_TEXT_H_
