#include "server/buffers/errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"

namespace resident::errors {

using absl::StrCat;

absl::Status NotDurable(uint64_t id) {
  return absl::FailedPreconditionError(StrCat("buffer ", id,
                                              " is not durable. Fix: allocate it "
                                              "with durable set"));
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

absl::Status MemoryShape(const std::string& shape, const std::string& dtype, const char* field,
                         uint64_t size) {
  return absl::InvalidArgumentError(StrCat("shape ", shape, " of ", dtype, " does not fit ", field,
                                           " = ", size, ". Fix: send a shape that does"));
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

absl::Status DescriptorSize(uint64_t asked, uint64_t object) {
  return absl::InvalidArgumentError(StrCat("size_bytes is ", asked, " and the shared memory has ",
                                           object, " bytes. Fix: send 1 to the memory's size"));
}

absl::Status CudaTokenOrHandle(bool both) {
  return absl::InvalidArgumentError(StrCat(
      "the request has ", both ? "both" : "neither", " descriptor_token ", both ? "and" : "nor",
      " ipc_handle. Fix: pass the descriptor of cuMemExportToShareableHandle over the daemon's "
      "local socket and send descriptor_token alone"));
}

absl::Status CudaNotByHandle(const std::string& why, bool local_socket) {
  return absl::FailedPreconditionError(
      StrCat("device memory is not imported by an IPC handle: ", why,
             ", and a handle does not prove that the caller may use the memory. Fix: ",
             local_socket ? "" : "start the daemon with --local_address, ",
             "make the memory with cuMemCreate, pass the descriptor of "
             "cuMemExportToShareableHandle over the local socket, and send descriptor_token"));
}

absl::Status CudaHandleBytes(size_t got, size_t wanted) {
  return absl::InvalidArgumentError(StrCat("ipc_handle has ", got, " bytes. Fix: send the ", wanted,
                                           " bytes that cuIpcGetMemHandle returned"));
}

absl::Status NoGpu() {
  return absl::FailedPreconditionError(
      "the daemon has no GPU, and the CPU engine has no access to the memory of one. Fix: start "
      "the "
      "daemon with a GPU in --devices, or share system memory (ImportShared)");
}

absl::Status NoGpuWithUuid(const std::string& uuid) {
  return absl::FailedPreconditionError(StrCat(
      "the daemon has no GPU with the UUID ", Quote(uuid.substr(0, 64)),
      ". Fix: send as device_uuid the UUID of one of its GPUs, as Admin.Status lists it, and "
      "memory of that GPU"));
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

}  // namespace resident::errors
