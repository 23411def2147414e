#include "runtime/base/host_port.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace resident {

absl::string_view HostPart(absl::string_view address) {
  return address.substr(0, address.rfind(':'));
}

absl::string_view WithoutBrackets(absl::string_view host) {
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') {
    return host.substr(1, host.size() - 2);
  }
  return host;
}

std::optional<HostPort> ParseHostPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos) return std::nullopt;
  const absl::string_view host = address.substr(0, colon);
  const absl::string_view digits = address.substr(colon + 1);
  uint32_t port;
  if (digits.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(digits, &port) || port > UINT16_MAX) {
    return std::nullopt;
  }
  const absl::string_view bare = WithoutBrackets(host);
  // Without brackets, the end of an IPv6 address would be ambiguous.
  if (bare.empty() || (bare.size() == host.size() && host.find(':') != absl::string_view::npos)) {
    return std::nullopt;
  }
  return HostPort{std::string(bare), static_cast<uint16_t>(port)};
}

bool IsServerAddress(absl::string_view address) {
  for (const absl::string_view scheme : {"unix:", "unix-abstract:", "vsock:", "xds:"}) {
    if (absl::StartsWith(address, scheme)) return address.size() > scheme.size();
  }
  const bool list =
      absl::ConsumePrefix(&address, "ipv4:") || absl::ConsumePrefix(&address, "ipv6:");
  if (!list && absl::ConsumePrefix(&address, "dns:")) {
    address.remove_prefix(address.rfind('/') + 1);
  }
  while (true) {
    const size_t comma = list ? address.find(',') : absl::string_view::npos;
    const std::optional<HostPort> one = ParseHostPort(address.substr(0, comma));
    if (!one.has_value() || one->port == 0) return false;
    if (comma == absl::string_view::npos) return true;
    address.remove_prefix(comma + 1);
  }
}

}  // namespace resident
