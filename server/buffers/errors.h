// Errors of transfers and shared memory.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_BUFFERS_ERRORS_H_
#define RESIDENT_SERVER_BUFFERS_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

absl::Status NotDurable(uint64_t id);
absl::Status NoUpload();
absl::Status SharedMemoryDisabled();
absl::Status SharedMemoryName(const std::string& name);
absl::Status SharedMemoryMissing(const std::string& name);
absl::Status SharedMemoryDenied(const std::string& name, const std::string& why);
absl::Status SharedMemorySize(const std::string& name, uint64_t asked, uint64_t object);
// `field`: the one with the memory's bytes.
absl::Status MemoryShape(const std::string& shape, const std::string& dtype, const char* field,
                         uint64_t size);
// `why`: the property of the daemon for which names are not accepted.
absl::Status SharedMemoryNotByName(const std::string& why, bool local_socket);
absl::Status SharedMemoryNameAndToken();
// Descriptors of shared memory, passed through the socket of --local_address.
absl::Status NoLocalSocket();
absl::Status DescriptorSize(uint64_t asked, uint64_t object);
// Device memory of a client's process (Buffers.ImportCuda).
absl::Status CudaTokenOrHandle(bool both);
absl::Status CudaNotByHandle(const std::string& why, bool local_socket);
absl::Status CudaHandleBytes(size_t got, size_t wanted);
absl::Status NoGpu();
absl::Status NoGpuWithUuid(const std::string& uuid);
// Files of Buffers.LoadFile.
absl::Status NoLoadFolder();
absl::Status LoadFolderUnreadable(const std::string& why);
absl::Status BadLoadPath(const std::string& path);
absl::Status NoSuchFile(const std::string& path);
absl::Status PathLeavesFolder(const std::string& path);
absl::Status FileUnreadable(const std::string& path, const std::string& why);
absl::Status BufferNameTaken(const std::string& name);

}  // namespace resident::errors

#endif  // RESIDENT_SERVER_BUFFERS_ERRORS_H_
