// `residentd serve`: the daemon, from start to end.
#ifndef RESIDENT_SERVER_SERVE_H_
#define RESIDENT_SERVER_SERVE_H_

#include "absl/status/status.h"
#include "server/flags.h"
#include "server/operator_flags.h"

namespace resident {

// Serves until SIGTERM or SIGINT. Errors: what kept it from starting, for people.
//
// SIGTERM: the health service says NOT_SERVING and new work gets UNAVAILABLE; what was
// taken is finished, for at most --drain_timeout (a second signal cuts that short);
// the rest is answered UNAVAILABLE; the metrics page goes last. SIGHUP, where there is
// TLS or a policy: their files are read anew.
//
// REQUIRES: called from the main thread, before any other was started.
absl::Status Serve(const ServeOptions& options, const OperatorOptions& operator_options);

}  // namespace resident

#endif  // RESIDENT_SERVER_SERVE_H_
