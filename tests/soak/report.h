// What a soak prints at its end.
//
// Thread safety: functions without state.
#ifndef RESIDENT_TESTS_SOAK_REPORT_H_
#define RESIDENT_TESTS_SOAK_REPORT_H_

#include <string>

#include "nlohmann/json.hpp"
#include "tests/daemon/daemon.h"
#include "tests/soak/findings.h"

namespace resident::soak {

// Prints the counts, the violations with the daemon's output, and `N violations`. Writes `summary`
// with the counts to the file `out` if it is not empty. Returns the exit status of the program.
int Report(const testing::Daemon& daemon, const Findings& findings, nlohmann::ordered_json summary,
           const std::string& out);

}  // namespace resident::soak

#endif  // RESIDENT_TESTS_SOAK_REPORT_H_
