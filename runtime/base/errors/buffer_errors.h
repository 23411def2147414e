// Errors of buffers, transfers and shared memory. The rules in argument_errors.h apply.
#ifndef RESIDENT_RUNTIME_BASE_ERRORS_BUFFER_ERRORS_H_
#define RESIDENT_RUNTIME_BASE_ERRORS_BUFFER_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

absl::Status UnknownBuffer(uint64_t id);
absl::Status LostBuffer(uint64_t id, uint32_t device, const std::string& cause);
absl::Status BufferOnOtherDevice(uint64_t id, uint32_t device, uint32_t batch_device);
absl::Status BadBufferType(const std::string& what);
absl::Status BufferNameTooLong(size_t bytes, size_t limit);
absl::Status TooManyBuffers(uint64_t limit, bool durable);
absl::Status ClientMemory(uint64_t bytes, uint64_t used, uint64_t limit_mib);
absl::Status NotDurable(uint64_t id);
absl::Status BeyondBufferEnd(uint64_t id, uint64_t offset, uint64_t bytes, uint64_t size);
absl::Status NoUpload();
// A write to a durable buffer started on an engine that was then replaced.
absl::Status EngineReplacedDuringWrite(uint64_t id);
absl::Status PersistDuringUpload(uint64_t id);
absl::Status SharedMemoryDisabled();
absl::Status SharedMemoryName(const std::string& name);
absl::Status SharedMemoryMissing(const std::string& name);
absl::Status SharedMemoryDenied(const std::string& name, const std::string& why);
absl::Status SharedMemorySize(const std::string& name, uint64_t asked, uint64_t object);
absl::Status SharedMemoryShape(const std::string& shape, const std::string& dtype, uint64_t size);
// `why`: the property of the daemon for which names are not accepted.
absl::Status SharedMemoryNotByName(const std::string& why, bool local_socket);
absl::Status SharedMemoryNameAndToken();

// Descriptors of shared memory, passed through the socket of --local_address.
absl::Status NoLocalSocket();
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
absl::Status DescriptorSize(uint64_t asked, uint64_t object);
absl::Status UnknownDescriptorToken(uint32_t lifetime_ms);

// Files of Buffers.LoadFile.
absl::Status NoLoadFolder();
absl::Status LoadFolderUnreadable(const std::string& why);
absl::Status BadLoadPath(const std::string& path);
absl::Status NoSuchFile(const std::string& path);
absl::Status PathLeavesFolder(const std::string& path);
absl::Status FileUnreadable(const std::string& path, const std::string& why);
absl::Status BufferNameTaken(const std::string& name);

absl::Status TransferFailed(const std::string& what, const std::string& cause);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_BASE_ERRORS_BUFFER_ERRORS_H_
