#include "runtime/engine/cuda/imported_memory.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

// The device file of the driver, /dev/nvidiactl, of which every exported descriptor is one. Its
// number is assigned by Linux (Documentation/admin-guide/devices.txt).
constexpr unsigned kDriverMajor = 195;
constexpr unsigned kDriverMinor = 255;

absl::Status NotDeviceMemory(const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the descriptor is not one of device memory: ", why,
      ". Fix: pass the descriptor that cuMemExportToShareableHandle returned for memory of "
      "cuMemCreate with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"));
}

}  // namespace

absl::StatusOr<uint64_t> ImportedMemory::Map(int ordinal, int fd, uint64_t allocation_bytes) {
  struct stat file {};
  if (fstat(fd, &file) != 0 || !S_ISCHR(file.st_mode) || major(file.st_rdev) != kDriverMajor ||
      minor(file.st_rdev) != kDriverMinor) {
    return NotDeviceMemory("it is not one of the NVIDIA driver");
  }
  CUmemGenericAllocationHandle memory = 0;
  const absl::Status imported = driver_.Check(
      driver_.cuMemImportFromShareableHandle(&memory, reinterpret_cast<void*>(intptr_t{fd}),
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "cuMemImportFromShareableHandle");
  if (absl::IsResourceExhausted(imported)) return imported;
  if (!imported.ok()) return NotDeviceMemory(std::string(imported.message()));
  // A mapping holds the memory, so that the handle is not needed after it.
  const absl::Cleanup release = [&] { driver_.cuMemRelease(memory); };
  RETURN_IF_ERROR(CheckDevice(ordinal, memory));
  ASSIGN_OR_RETURN(const CUdeviceptr address, MapHandle(ordinal, memory, allocation_bytes));
  absl::MutexLock lock(&mu_);
  bytes_[address] = allocation_bytes;
  return address;
}

absl::Status ImportedMemory::CheckDevice(int ordinal, CUmemGenericAllocationHandle memory) const {
  CUmemAllocationProp properties{};
  const absl::Status read =
      driver_.Check(driver_.cuMemGetAllocationPropertiesFromHandle(&properties, memory),
                    "cuMemGetAllocationPropertiesFromHandle");
  if (!read.ok()) return NotDeviceMemory(std::string(read.message()));
  if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return NotDeviceMemory("it is one of memory of the host");
  }
  if (properties.location.id != ordinal) {
    return absl::InvalidArgumentError(
        absl::StrCat("the memory is on GPU ", properties.location.id,
                     " of the driver, and the buffer's device is GPU ", ordinal,
                     ". Fix: send the UUID of the GPU that has the memory"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CUdeviceptr> ImportedMemory::MapHandle(int ordinal,
                                                      CUmemGenericAllocationHandle memory,
                                                      uint64_t bytes) const {
  const auto refused = [bytes](const absl::Status& status) {
    if (absl::IsResourceExhausted(status)) return status;
    return absl::InvalidArgumentError(
        absl::StrCat("device memory of ", bytes, " bytes cannot be mapped: ", status.message(),
                     ". Fix: send as allocation_bytes the size that was passed to cuMemCreate"));
  };
  CUdeviceptr address = 0;
  absl::Status status =
      driver_.Check(driver_.cuMemAddressReserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve");
  if (!status.ok()) return refused(status);
  status = driver_.Check(driver_.cuMemMap(address, bytes, 0, memory, 0), "cuMemMap");
  if (!status.ok()) {
    driver_.cuMemAddressFree(address, bytes);
    return refused(status);
  }
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = ordinal;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  status = driver_.Check(driver_.cuMemSetAccess(address, bytes, &access, 1), "cuMemSetAccess");
  if (!status.ok()) {
    driver_.cuMemUnmap(address, bytes);
    driver_.cuMemAddressFree(address, bytes);
    return refused(status);
  }
  return address;
}

bool ImportedMemory::Unmap(uint64_t address) {
  uint64_t bytes = 0;
  {
    absl::MutexLock lock(&mu_);
    const auto found = bytes_.find(address);
    if (found == bytes_.end()) return false;
    bytes = found->second;
    bytes_.erase(found);
  }
  // An error is ignored: the memory stays mapped until the engine ends.
  if (driver_.cuMemUnmap(address, bytes) == CUDA_SUCCESS) driver_.cuMemAddressFree(address, bytes);
  return true;
}

}  // namespace resident
