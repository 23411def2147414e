// The text form of a daemon's status, for the commands status and top.
#ifndef RESIDENT_CLIENT_COMMANDS_STATUS_TEXT_H_
#define RESIDENT_CLIENT_COMMANDS_STATUS_TEXT_H_

#include <string>
#include <vector>

#include "resident/v1/admin.pb.h"

namespace resident::cli {

// One paragraph about the daemon, a table of devices, one of clients.
std::string StatusText(const v1::StatusResponse& status, const std::string& address);

// Like StatusText, with rates since `before`, which is `seconds` older.
std::string TopText(const v1::StatusResponse& before, const v1::StatusResponse& now, double seconds,
                    const std::string& address);

// One of several daemons. `status` is null if it did not answer, for the reason in `error`.
struct NodeRow {
  std::string address;
  std::string state;
  const v1::StatusResponse* status;
  std::string error;
};

// A table with a row for each, the reasons of those that are down, and a line with their numbers.
std::string NodesText(const std::vector<NodeRow>& nodes);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_COMMANDS_STATUS_TEXT_H_
