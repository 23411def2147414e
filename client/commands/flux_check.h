// flux check: test vectors through a running daemon.
#ifndef RESIDENT_CLIENT_COMMANDS_FLUX_CHECK_H_
#define RESIDENT_CLIENT_COMMANDS_FLUX_CHECK_H_

#include <string>

namespace resident::cli {

// Runs the vectors in `text` (runtime/flux/vectors.h has the format), prints each
// difference and the count last. Returns the exit code; `path` is for messages.
int CheckVectors(const std::string& path, const std::string& text);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_COMMANDS_FLUX_CHECK_H_
