// A buffer on a command line: its id, or its name.
#ifndef RESIDENT_CLIENT_CLI_BUFFER_WORD_H_
#define RESIDENT_CLIENT_CLI_BUFFER_WORD_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/residentd_client.h"

namespace resident::cli {

// The id of the buffer. A number is an id, which only the daemon checks; other words are names.
absl::StatusOr<uint64_t> FindBufferId(client::Client& client, const std::string& word);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_BUFFER_WORD_H_
