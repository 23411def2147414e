#include "runtime/device/errors.h"

#include "absl/strings/str_cat.h"
#include "kernels/layout/task.h"
#include "runtime/base/errors/reason.h"

namespace resident::errors {

using absl::StrCat;

absl::Status LostBuffer(uint64_t id, uint32_t device, const std::string& cause) {
  return absl::FailedPreconditionError(StrCat("buffer ", id, " was lost when the engine of device ",
                                              device, " restarted (", cause,
                                              "). Fix: free it, "
                                              "allocate it again and upload its contents; durable "
                                              "buffers are restored automatically"));
}

absl::Status BadBufferType(const std::string& what) {
  return absl::InvalidArgumentError(StrCat(what, ". Fix: send a dtype and a shape of at most ",
                                           kMaxRank, " dimensions, each at least 1"));
}

absl::Status BufferNameTooLong(size_t bytes, size_t limit) {
  return absl::InvalidArgumentError(StrCat("a buffer's name of ", bytes,
                                           " bytes is over the limit of ", limit,
                                           ". Fix: send a shorter one"));
}

absl::Status TooManyBuffers(uint64_t limit, bool durable) {
  return absl::ResourceExhaustedError(StrCat(durable ? "there are " : "this session has ", limit,
                                             durable ? " durable buffers" : " buffers",
                                             ", the limit. Fix: free some or raise --max_buffers"));
}

absl::Status ClientMemory(uint64_t bytes, uint64_t used, uint64_t limit_mib) {
  return absl::ResourceExhaustedError(StrCat("a buffer of ", bytes, " bytes, with ", used,
                                             " in use by this session, is over the client's ",
                                             limit_mib,
                                             " MiB. Fix: free buffers or raise "
                                             "--max_client_memory_mib"));
}

absl::Status BeyondBufferEnd(uint64_t id, uint64_t offset, uint64_t bytes, uint64_t size) {
  return absl::OutOfRangeError(StrCat(bytes, " bytes at offset ", offset, " end beyond buffer ", id,
                                      " of ", size, " bytes. Fix: stay within the buffer"));
}

absl::Status EngineReplacedDuringWrite(uint64_t id) {
  return absl::UnavailableError(StrCat("the engine of durable buffer ", id,
                                       " was replaced during the write; the buffer has its "
                                       "previous contents. Fix: wait until the device serves and "
                                       "send the write again"));
}

absl::Status PersistDuringUpload(uint64_t id) {
  return absl::AbortedError(StrCat("an upload to durable buffer ", id,
                                   " was running during Persist; the saved contents are not "
                                   "changed. Fix: call Persist again when no upload to the buffer "
                                   "is running"));
}

absl::Status NoHostMemory(uint64_t bytes) {
  return absl::ResourceExhaustedError(StrCat(
      "out of memory: cannot allocate ", bytes,
      " bytes. Fix: free durable buffers that are not needed, or give the daemon more memory"));
}

absl::Status HostMemoryFull(uint64_t bytes, uint64_t used, uint64_t limit_bytes, bool client) {
  return absl::ResourceExhaustedError(
      StrCat(bytes, " bytes of the daemon's memory, with ", used,
             client ? " used by this client" : " used by all clients", ", are over the limit of ",
             limit_bytes >> 20, " MiB. Fix: free durable buffers that are not needed, or raise ",
             client ? "--max_client_host_mib" : "--max_host_mib"));
}

absl::Status DeviceUnavailable(uint32_t device, const std::string& detail) {
  return WithReason(absl::UnavailableError(
                        StrCat("device ", device, " has no running engine",
                               detail.empty() ? "" : StrCat(" (", detail, ")"),
                               ". Fix: send it again in a second; Admin.Status returns its state")),
                    {"DEVICE_UNAVAILABLE", {{"device", StrCat(device)}}});
}

absl::Status DeviceUnhealthy(uint32_t device, const std::string& detail) {
  return absl::UnavailableError(StrCat("device ", device, " is unhealthy: ", detail));
}

}  // namespace resident::errors
