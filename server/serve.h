// `residentd serve`: the daemon, from start to end.
#ifndef RESIDENT_SERVER_SERVE_H_
#define RESIDENT_SERVER_SERVE_H_

#include "absl/status/status.h"
#include "server/flags.h"
#include "server/operator_setup.h"

namespace resident {

// Serves until SIGTERM or SIGINT. The error says why the daemon could not start; it is shown to the
// user. INVALID_ARGUMENT: a flag, or a file that one names, is invalid, so that another start would
// fail in the same way.
//
// SIGTERM: the health service reports NOT_SERVING. For --drain_notice, or until a second signal,
// work is still accepted; then new work gets UNAVAILABLE. Accepted tasks are finished, for at most
// --drain_timeout or until a second signal; the rest is answered UNAVAILABLE. The metrics page is
// closed last. SIGHUP: reloads the files of TLS and policy.
//
// REQUIRES: called from the main thread, before any other thread is started.
absl::Status Serve(const ServeOptions& options, const OperatorOptions& operator_options);

}  // namespace resident

#endif  // RESIDENT_SERVER_SERVE_H_
