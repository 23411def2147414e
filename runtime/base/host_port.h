// HostPort: the two parts of "host:port" or "[IPv6 address]:port".
//
// Thread safety: a plain value; the functions may be called from any thread.
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

// nullopt: `address` does not have one of these forms.
std::optional<HostPort> ParseHostPort(absl::string_view address);

// Whether a client can connect to `address` as it is written: host:port with a port from 1 to
// 65535, alone or after "dns:" (with an authority), or lists of them after "ipv4:" and "ipv6:"; or
// a name of gRPC's without ports ("unix:PATH"). gRPC itself takes the lower 16 bits of any port.
bool IsServerAddress(absl::string_view address);

// The part before the last colon, including brackets.
absl::string_view HostPart(absl::string_view address);

// The host without the brackets of an IPv6 address: "::1" for "[::1]".
absl::string_view WithoutBrackets(absl::string_view host);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_HOST_PORT_H_
