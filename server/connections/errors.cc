#include "server/connections/errors.h"

#include "absl/strings/str_cat.h"

namespace resident::errors {

using absl::StrCat;

absl::Status LocalPacket(size_t bytes, size_t limit) {
  return absl::InvalidArgumentError(
      StrCat("a packet of ", bytes > limit ? StrCat("over ", limit) : StrCat(bytes),
             " bytes is not a request of this socket. Fix: send one packet with the 8 bytes "
             "'residfd1' (shared memory; docs/shared_memory.md) or 'residcu1' (device memory; "
             "docs/local_lane.md) and the session's id"));
}

absl::Status LocalPacketDescriptors(size_t descriptors) {
  return absl::InvalidArgumentError(
      StrCat("the packet carries ", descriptors == 0 ? "no descriptor" : "more than one descriptor",
             ". Fix: send exactly one, as SCM_RIGHTS"));
}

absl::Status NoFileDescriptorLeft() {
  return absl::ResourceExhaustedError(
      "the daemon could not receive the descriptor: it has no free file descriptor. Fix: try again "
      "later, or raise LimitNOFILE of the daemon");
}

absl::Status TooManyLocalConnections(uint64_t limit, bool of_user, uint32_t user) {
  return absl::ResourceExhaustedError(
      StrCat("there are ", limit, " connections to the local socket",
             of_user ? StrCat(" of user ", user) : "",
             ", the limit. Fix: try again in a moment, and pass fewer descriptors at one time"));
}

absl::Status TooManyPassedDescriptors(uint64_t limit, const std::string& whose) {
  return absl::ResourceExhaustedError(
      StrCat(limit, " descriptors of ", whose,
             " were passed and not imported yet, the limit. Fix: import them (ImportShared, "
             "ImportCuda) before passing more"));
}

absl::Status DescriptorIsNotSharedMemory() {
  return absl::InvalidArgumentError(
      "the descriptor is not one of shared memory. Fix: pass one of memfd_create (without "
      "MFD_HUGETLB), or of shm_open where the daemon has no identities");
}

absl::Status DescriptorIsNotDeviceMemory() {
  return absl::InvalidArgumentError(
      "the descriptor is not one of device memory: it is not one of the NVIDIA driver. Fix: pass "
      "the "
      "one that cuMemExportToShareableHandle returned; pass shared memory with 'residfd1'");
}

absl::Status DescriptorIsNotWritable(const std::string& why) {
  return absl::PermissionDeniedError(
      StrCat("tasks could not write the shared memory: ", why,
             ". Fix: pass a descriptor that is open for reading and writing, of memory without "
             "F_SEAL_WRITE and F_SEAL_FUTURE_WRITE"));
}

absl::Status DescriptorIsNotSealed() {
  return absl::FailedPreconditionError(
      "the shared memory can be truncated, which would end the engine while tasks use it. Fix: "
      "make it with memfd_create(MFD_ALLOW_SEALING) and add F_SEAL_SHRINK");
}

absl::Status UnknownDescriptorToken(uint32_t lifetime_ms) {
  return absl::NotFoundError(StrCat(
      "no descriptor of this session has this descriptor_token: it was imported, was passed "
      "more than ",
      lifetime_ms / 1000,
      " s ago or by another session, or was never passed. Fix: pass the descriptor again and "
      "send the new token once"));
}

absl::Status DescriptorOfAnotherKind(bool device) {
  return absl::InvalidArgumentError(
      StrCat("the descriptor of this descriptor_token was passed as one of ",
             device ? "device" : "shared", " memory. Fix: pass it again, and import it with ",
             device ? "Buffers.ImportCuda" : "Buffers.ImportShared"));
}

absl::Status LanePacket(bool clean) {
  if (clean) {
    return absl::FailedPreconditionError(
        "the daemon has no local lanes. Fix: start it with --max_lanes above 0");
  }
  return absl::InvalidArgumentError(
      "the packet for a lane carries a descriptor or is too long. Fix: send the 8 bytes "
      "'residln1' and the token of Lanes.Open, without a descriptor");
}

}  // namespace resident::errors
