// The nodes of a target: the daemons behind one name or one list of addresses.
//
//   ASSIGN_OR_RETURN(const Targets targets, ResolveTargets("dns:///residentd.example:50051"));
//   for (const std::string& address : targets.addresses) ...
//
// Thread safety: functions without state.
#ifndef RESIDENT_CLIENT_TARGETS_H_
#define RESIDENT_CLIENT_TARGETS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace resident::client {

struct Targets {
  // host:port of each node, or unix:PATH; each once, in the order of the resolver.
  std::vector<std::string> addresses = {};
  // host:port that the addresses have in common, of which TLS verifies the host; empty: none.
  std::string name = "";
  // The host of `name`.
  std::string host = "";
};

// Takes a target of gRPC apart: dns:///NAME:PORT (or NAME:PORT), ipv4:A:1,B:2, ipv6:[A]:1,[B]:2, or
// an address that only gRPC knows, which is one node. Waits for the system's resolver.
//
// INVALID_ARGUMENT: it is none. FAILED_PRECONDITION: it names a DNS server, which the system's
// resolver does not ask. UNAVAILABLE: the name has no address.
absl::StatusOr<Targets> ResolveTargets(const std::string& target);

}  // namespace resident::client

#endif  // RESIDENT_CLIENT_TARGETS_H_
