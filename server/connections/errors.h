// Errors of descriptors of memory that pass through the socket of --local_address.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_CONNECTIONS_ERRORS_H_
#define RESIDENT_SERVER_CONNECTIONS_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

absl::Status LocalPacket(size_t bytes, size_t limit);
// `descriptors`: how many came with the packet.
absl::Status LocalPacketDescriptors(size_t descriptors);
absl::Status NoFileDescriptorLeft();
absl::Status TooManyLocalConnections(uint64_t limit, bool of_user, uint32_t user);
// `whose`: "this session", "user 1000", "all clients".
absl::Status TooManyPassedDescriptors(uint64_t limit, const std::string& whose);
absl::Status DescriptorIsNotSharedMemory();
absl::Status DescriptorIsNotWritable(const std::string& why);
absl::Status DescriptorIsNotSealed();
absl::Status DescriptorIsNotDeviceMemory();
absl::Status UnknownDescriptorToken(uint32_t lifetime_ms);
// `device`: it was passed as one of device memory.
absl::Status DescriptorOfAnotherKind(bool device);
// A packet for a lane. `clean`: it is as described, and the daemon has no lanes.
absl::Status LanePacket(bool clean);

}  // namespace resident::errors

#endif  // RESIDENT_SERVER_CONNECTIONS_ERRORS_H_
