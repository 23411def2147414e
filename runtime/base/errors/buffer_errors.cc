#include "runtime/base/errors/buffer_errors.h"

#include "absl/strings/str_cat.h"
#include "kernels/layout/task.h"
#include "runtime/base/errors/quote.h"

namespace resident::errors {

using absl::StrCat;

absl::Status UnknownBuffer(uint64_t id) {
  return absl::NotFoundError(StrCat("no buffer ", id,
                                    " in this session. Fix: name a buffer that "
                                    "this session allocated and has not freed, or a durable one "
                                    "(Buffers.List); send the session's id as metadata "
                                    "\"resident-session\""));
}

absl::Status LostBuffer(uint64_t id, uint32_t device, const std::string& cause) {
  return absl::FailedPreconditionError(StrCat("buffer ", id, " was lost when the engine of device ",
                                              device, " restarted (", cause,
                                              "). Fix: free it, "
                                              "allocate it again and upload its contents; durable "
                                              "buffers are restored automatically"));
}

absl::Status BufferOnOtherDevice(uint64_t id, uint32_t device, uint32_t batch_device) {
  return absl::FailedPreconditionError(StrCat("buffer ", id, " is on device ", device,
                                              " and the batch runs on device ", batch_device,
                                              ". Fix: send the batch to the buffers' device, and "
                                              "allocate all of its buffers there"));
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

absl::Status NotDurable(uint64_t id) {
  return absl::FailedPreconditionError(StrCat("buffer ", id,
                                              " is not durable. Fix: allocate it "
                                              "with durable set"));
}

absl::Status BeyondBufferEnd(uint64_t id, uint64_t offset, uint64_t bytes, uint64_t size) {
  return absl::OutOfRangeError(StrCat(bytes, " bytes at offset ", offset, " end beyond buffer ", id,
                                      " of ", size, " bytes. Fix: stay within the buffer"));
}

absl::Status NoUpload() {
  return absl::InvalidArgumentError(
      "the upload's stream had no message. Fix: send buffer_id and data in the first one");
}

absl::Status SharedMemoryDisabled() {
  return absl::FailedPreconditionError(
      "shared memory is disabled. Fix: start the daemon with --allow_shared_memory, or upload");
}

absl::Status SharedMemoryName(const std::string& name) {
  return absl::InvalidArgumentError(
      StrCat(Quote(name),
             " is not the name of a shared-memory object. Fix: send the name that was passed to "
             "shm_open: a slash, then 1 to 254 bytes without a slash"));
}

absl::Status SharedMemoryMissing(const std::string& name) {
  return absl::NotFoundError(StrCat("no shared-memory object ", Quote(name),
                                    " on the daemon's machine. Fix: create it with shm_open, on "
                                    "the same machine and in the same IPC namespace"));
}

absl::Status SharedMemoryDenied(const std::string& name, const std::string& why) {
  return absl::PermissionDeniedError(StrCat("shared-memory object ", Quote(name), ": ", why,
                                            ". Fix: let the daemon's user read and write it"));
}

absl::Status SharedMemorySize(const std::string& name, uint64_t asked, uint64_t object) {
  return absl::InvalidArgumentError(StrCat("size_bytes is ", asked, " and shared-memory object ",
                                           Quote(name), " has ", object,
                                           " bytes. Fix: send 1 to the object's size"));
}

absl::Status SharedMemoryShape(const std::string& shape, const std::string& dtype, uint64_t size) {
  return absl::InvalidArgumentError(StrCat("shape ", shape, " of ", dtype,
                                           " does not fit size_bytes = ", size,
                                           ". Fix: send a shape that does"));
}

absl::Status SharedMemoryNotByName(const std::string& why, bool local_socket) {
  return absl::FailedPreconditionError(
      StrCat("shared memory is not imported by name: ", why,
             ", and a name does not prove that the caller may use the memory. Fix: ",
             local_socket ? "pass a descriptor over the daemon's local socket (--local_address) "
                            "and send descriptor_token"
                          : "start the daemon with --local_address and pass a descriptor over that "
                            "socket; from another machine, upload"));
}

absl::Status SharedMemoryNameAndToken() {
  return absl::InvalidArgumentError(
      "the request has both name and descriptor_token. Fix: send one of them");
}

absl::Status NoLocalSocket() {
  return absl::FailedPreconditionError(
      "the daemon has no local socket, so this descriptor_token cannot belong to a passed "
      "descriptor. Fix: start the daemon with --local_address");
}

absl::Status LocalPacket(size_t bytes, size_t limit) {
  return absl::InvalidArgumentError(
      StrCat("a packet of ", bytes > limit ? StrCat("over ", limit) : StrCat(bytes),
             " bytes is not a request of this socket. Fix: send one packet with the 8 bytes "
             "'residfd1' and the session's id (docs/shared_memory.md)"));
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
             " were passed and not imported yet, the limit. Fix: import them (ImportShared) before "
             "passing more"));
}

absl::Status DescriptorIsNotSharedMemory() {
  return absl::InvalidArgumentError(
      "the descriptor is not one of shared memory. Fix: pass one of memfd_create (without "
      "MFD_HUGETLB), or of shm_open where the daemon has no identities");
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

absl::Status DescriptorSize(uint64_t asked, uint64_t object) {
  return absl::InvalidArgumentError(StrCat("size_bytes is ", asked, " and the shared memory has ",
                                           object, " bytes. Fix: send 1 to the memory's size"));
}

absl::Status UnknownDescriptorToken(uint32_t lifetime_ms) {
  return absl::NotFoundError(StrCat(
      "no descriptor of this session has this descriptor_token: it was imported, was passed "
      "more than ",
      lifetime_ms / 1000,
      " s ago or by another session, or was never passed. Fix: pass the descriptor again and "
      "send the new token once"));
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

absl::Status NoLoadFolder() {
  return absl::FailedPreconditionError(
      "the daemon loads no files. Fix: start it with --load_dir, or upload the file "
      "(residentctl buffers load)");
}

absl::Status LoadFolderUnreadable(const std::string& why) {
  return absl::PermissionDeniedError(StrCat("the daemon cannot open its --load_dir: ", why,
                                            ". Fix: let the daemon's user read the folder"));
}

absl::Status BadLoadPath(const std::string& path) {
  return absl::InvalidArgumentError(StrCat("path ", Quote(path),
                                           " does not name a file. Fix: send a path relative to "
                                           "the daemon's --load_dir"));
}

absl::Status NoSuchFile(const std::string& path) {
  return absl::NotFoundError(StrCat("there is no file ", Quote(path),
                                    " in the daemon's --load_dir. Fix: send a path relative to "
                                    "that folder"));
}

absl::Status PathLeavesFolder(const std::string& path) {
  return absl::PermissionDeniedError(
      StrCat("path ", Quote(path),
             " leaves the daemon's --load_dir. Fix: send a path relative to that folder, without "
             "links out of it"));
}

absl::Status FileUnreadable(const std::string& path, const std::string& why) {
  return absl::PermissionDeniedError(StrCat("the daemon cannot open ", Quote(path), ": ", why,
                                            ". Fix: let the daemon's user read the file"));
}

absl::Status BufferNameTaken(const std::string& name) {
  return absl::AlreadyExistsError(StrCat("a durable buffer has the name ", Quote(name),
                                         ". Fix: free it, or send another prefix"));
}

absl::Status TransferFailed(const std::string& what, const std::string& cause) {
  return absl::UnavailableError(StrCat(what, " was interrupted: ", cause,
                                       ". Fix: wait until the device serves and send it again"));
}

}  // namespace resident::errors
