#include "runtime/engine/cpu/cpu_generation.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/ops/builtin.h"
#include "kernels/ops/jump_table.h"
#include "runtime/base/status_macros.h"

namespace resident {

class CpuGeneration::LoadedObject {
 public:
  static absl::StatusOr<std::shared_ptr<const LoadedObject>> Open(
      std::shared_ptr<const std::string> bytes, const std::string& name) {
    const int fd = memfd_create("residentd-operator", MFD_CLOEXEC);
    if (fd < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot create a memory object for ", name, ": ", strerror(errno),
                       ". Fix: raise the limit on open files of the service"));
    }
    absl::Cleanup close_fd = [fd] { close(fd); };
    for (size_t written = 0; written < bytes->size();) {
      const ssize_t more = write(fd, bytes->data() + written, bytes->size() - written);
      if (more < 0 && errno == EINTR) continue;
      if (more <= 0) {
        return absl::ResourceExhaustedError(
            absl::StrCat("cannot write the object of ", name, " to memory: ", strerror(errno)));
      }
      written += static_cast<size_t>(more);
    }
    // dlopen identifies objects by their path, among other things. The descriptor stays open as
    // long as the object, so that no other object gets the same number.
    void* handle = dlopen(absl::StrCat("/proc/self/fd/", fd).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("the object of ", name, " cannot be loaded: ", dlerror(),
                       ". Fix: compile it for this machine and define all symbols that it uses"));
    }
    std::move(close_fd).Cancel();
    return std::shared_ptr<const LoadedObject>(new LoadedObject(std::move(bytes), fd, handle));
  }

  ~LoadedObject() {
    dlclose(handle_);
    close(fd_);
  }

  bool Is(const std::string& bytes) const { return *bytes_ == bytes; }

  OperatorFunction Find(const std::string& symbol) const {
    return reinterpret_cast<OperatorFunction>(dlsym(handle_, symbol.c_str()));
  }

 private:
  LoadedObject(std::shared_ptr<const std::string> bytes, int fd, void* handle)
      : bytes_(std::move(bytes)), fd_(fd), handle_(handle) {}

  const std::shared_ptr<const std::string> bytes_;
  const int fd_;
  void* const handle_;
};

absl::StatusOr<std::shared_ptr<const CpuGeneration>> CpuGeneration::Load(
    const Generation& generation, bool test_operators, std::chrono::nanoseconds time_limit,
    const CpuGeneration* former) {
  RETURN_IF_ERROR(CheckGeneration(generation));
  auto loaded = std::make_shared<CpuGeneration>();
  loaded->number_ = generation.number;
  for (u32 slot = 0; slot < kMaxOperatorSlots; ++slot) {
    loaded->table_[slot] = {FindBuiltinFunction(slot, test_operators), time_limit};
  }
  loaded->table_[*FindBuiltinSlot(kStoppableTestOperator)].stoppable = test_operators;
  for (const GenerationOperator& added : generation.operators) {
    RETURN_IF_ERROR(loaded->Add(added, former));
  }
  for (const Slot& slot : loaded->table_) {
    if (!slot.stoppable || slot.time_limit.count() == 0) continue;
    std::chrono::nanoseconds& min = loaded->min_time_limit_;
    min = min.count() == 0 ? slot.time_limit : std::min(min, slot.time_limit);
  }
  return loaded;
}

absl::Status CpuGeneration::Add(const GenerationOperator& added, const CpuGeneration* former) {
  if (added.object == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the operator in slot ", added.slot, " (", added.symbol,
                     ") has no object for the CPU. Fix: compile it for the CPU too"));
  }
  std::shared_ptr<const LoadedObject> object;
  const auto look_in = [&](const CpuGeneration& generation) {
    for (const auto& candidate : generation.objects_) {
      if (object == nullptr && candidate->Is(*added.object)) object = candidate;
    }
  };
  look_in(*this);
  const bool held = object != nullptr;
  if (!held && former != nullptr) look_in(*former);
  if (object == nullptr) {
    ASSIGN_OR_RETURN(auto opened, LoadedObject::Open(added.object, added.symbol));
    object = std::move(opened);
  }
  const OperatorFunction function = object->Find(added.symbol);
  if (function == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("the object for slot ", added.slot,
                                                   " does not define ", added.symbol,
                                                   ". Fix: name the function that it exports"));
  }
  Slot& slot = table_[added.slot];
  slot.function = function;
  if (added.time_limit.count() != 0) slot.time_limit = added.time_limit;
  slot.stoppable = added.stoppable;
  if (!held) objects_.push_back(std::move(object));
  return absl::OkStatus();
}

}  // namespace resident
