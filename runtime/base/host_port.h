// HostPort: "host:port" or "[IPv6 address]:port" in its two parts.
//
// Thread safety: values.
#ifndef RESIDENT_RUNTIME_BASE_HOST_PORT_H_
#define RESIDENT_RUNTIME_BASE_HOST_PORT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace resident {

struct HostPort {
  std::string host;  // A name or an address; an IPv6 address without its brackets. Not empty.
  uint16_t port = 0;
};

// Null if `address` is not of that form.
std::optional<HostPort> ParseHostPort(absl::string_view address);

// What stands before the last colon, brackets and all.
absl::string_view HostPart(absl::string_view address);

// A host without the brackets that an IPv6 address has in "[::1]:80".
absl::string_view WithoutBrackets(absl::string_view host);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_HOST_PORT_H_
