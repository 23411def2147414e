#include "runtime/ring/shared_region.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

constexpr uint32_t kMinSlots = 64;
constexpr uint32_t kMaxSlots = 65536;
constexpr uint64_t kPageBytes = 4096;

absl::Status SystemError(const char* what) {
  return absl::InternalError(absl::StrCat("shared region: ", what, ": ", strerror(errno)));
}

absl::Status CheckSizes(uint32_t slots, uint64_t staging_bytes) {
  if (!std::has_single_bit(slots) || slots < kMinSlots || slots > kMaxSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("ring of ", slots, " slots: it must be a power of two from ", kMinSlots,
                     " to ", kMaxSlots, ". Fix: set --ring_slots to such a number"));
  }
  if (staging_bytes % kPageBytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("staging of ", staging_bytes,
                                                   " bytes: it must be whole pages of ", kPageBytes,
                                                   " bytes. Fix: round it up"));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint8_t*> Map(int fd, uint64_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("shared region: mmap of ", bytes, " bytes: ", strerror(errno),
                     ". Fix: lower --staging_mib or raise the memory limit of the service"));
  }
  return static_cast<uint8_t*>(base);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedRegion>> SharedRegion::Create(uint32_t slots,
                                                                   uint64_t staging_bytes) {
  RETURN_IF_ERROR(CheckSizes(slots, staging_bytes));
  const RegionLayout layout = LayOutRegion(slots, staging_bytes);

  const int fd = memfd_create("residentd-region", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return SystemError("memfd_create");
  absl::Cleanup close_fd = [fd] { close(fd); };
  if (ftruncate(fd, static_cast<off_t>(layout.total_bytes)) != 0) return SystemError("ftruncate");
  // Seals the size: no process that has the descriptor can shrink the memory while another
  // process has it mapped (that process would receive SIGBUS).
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return SystemError("F_ADD_SEALS");
  }
  ASSIGN_OR_RETURN(uint8_t * base, Map(fd, layout.total_bytes));

  std::move(close_fd).Cancel();
  std::unique_ptr<SharedRegion> region(new SharedRegion(fd, base, layout));
  // A new memfd contains zeros, so only the other fields are written.
  ControlBlock* control = region->control();
  control->slots = slots;
  control->staging_bytes = staging_bytes;
  control->layout_hash = LayoutHash();
  control->magic = kRegionMagic;
  return region;
}

absl::StatusOr<std::unique_ptr<SharedRegion>> SharedRegion::Attach(int fd) {
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return SystemError("fstat of the descriptor that was passed");
  const uint64_t size = static_cast<uint64_t>(info.st_size);
  if (size < sizeof(ControlBlock)) {
    return absl::FailedPreconditionError(
        absl::StrCat("descriptor ", fd, " is not a shared region: it has ", size,
                     " bytes, but a control block alone has ", sizeof(ControlBlock),
                     ". Fix: start the engine through `residentd serve`"));
  }

  // The control block contains the sizes of the other parts, so it is read first.
  ControlBlock control;
  const ssize_t got = pread(fd, &control, sizeof(control), 0);
  if (got != static_cast<ssize_t>(sizeof(control))) return SystemError("read of its control block");
  if (control.magic != kRegionMagic) {
    return absl::FailedPreconditionError(
        absl::StrFormat("descriptor %d is not a shared region: its magic is %#x, not %#x. Fix: "
                        "start the engine through `residentd serve`",
                        fd, control.magic, kRegionMagic));
  }
  if (control.layout_hash != LayoutHash()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the ring layout differs: the region was made with layout %#x, this build "
                        "has %#x. Fix: run front end and engine from the same residentd binary",
                        control.layout_hash, LayoutHash()));
  }
  if (absl::Status status = CheckSizes(control.slots, control.staging_bytes); !status.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the shared region is damaged: ", status.message()));
  }
  const RegionLayout layout = LayOutRegion(control.slots, control.staging_bytes);
  if (layout.total_bytes != size) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the shared region is damaged: it has ", size, " bytes, but ", control.slots,
        " slots with ", control.staging_bytes, " bytes of staging memory take ", layout.total_bytes,
        ". Fix: run front end and engine from the same residentd binary"));
  }
  ASSIGN_OR_RETURN(uint8_t * base, Map(fd, layout.total_bytes));
  std::move(close_fd).Cancel();
  return std::unique_ptr<SharedRegion>(new SharedRegion(fd, base, layout));
}

SharedRegion::~SharedRegion() {
  munmap(base_, layout_.total_bytes);
  close(fd_);
}

}  // namespace resident
