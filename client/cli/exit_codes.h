// residentctl's exit codes, for scripts. `residentctl help` lists them.
#ifndef RESIDENT_CLIENT_CLI_EXIT_CODES_H_
#define RESIDENT_CLIENT_CLI_EXIT_CODES_H_

namespace resident::cli {

inline constexpr int kExitOk = 0;
// A check found a difference, a task or program ended with an error, or the daemon does not
// serve (health).
inline constexpr int kExitFailed = 1;
// The command line, or a file that it names, is invalid. Nothing was sent.
inline constexpr int kExitUsage = 2;
// No server answered.
inline constexpr int kExitUnreachable = 3;
// The server refused the request, or did not answer it in time.
inline constexpr int kExitRefused = 4;
// The work was done, but its result could not be written on this machine.
inline constexpr int kExitNotWritten = 5;

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_EXIT_CODES_H_
