#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/engine/control/engine_messages.h"

namespace resident {
namespace {

absl::Status Append(int fd, const std::string& bytes) {
  for (size_t written = 0; written < bytes.size();) {
    const ssize_t more = write(fd, bytes.data() + written, bytes.size() - written);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot write a generation of operators to memory: ", strerror(errno),
                       ". Fix: raise the memory limit of the service"));
    }
    written += static_cast<size_t>(more);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadObject(int fd, uint64_t offset, uint64_t size) {
  std::string object(size, '\0');
  for (uint64_t at = 0; at < size;) {
    const ssize_t more = pread(fd, object.data() + at, size - at, static_cast<off_t>(offset + at));
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) {
      return absl::InternalError(absl::StrCat("cannot read a generation: ", strerror(errno)));
    }
    at += static_cast<uint64_t>(more);
  }
  return object;
}

}  // namespace

absl::StatusOr<UniqueFd> PackGeneration(const Generation& generation,
                                        internal::Generation* message) {
  message->set_number(generation.number);
  std::vector<const std::string*> objects;
  for (const GenerationOperator& added : generation.operators) {
    internal::Generation::Operator* const sent = message->add_operators();
    sent->set_slot(added.slot);
    sent->set_symbol(added.symbol);
    sent->set_time_limit_ms(static_cast<uint64_t>(added.time_limit.count()));
    sent->set_stoppable(added.stoppable);
    if (added.object == nullptr) continue;
    const auto found = std::find(objects.begin(), objects.end(), added.object.get());
    sent->set_object(static_cast<uint32_t>(found - objects.begin()) + 1);
    if (found != objects.end()) continue;
    objects.push_back(added.object.get());
    message->add_object_bytes(added.object->size());
  }
  if (objects.empty()) return UniqueFd();

  UniqueFd fd(memfd_create("residentd-generation", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot create a memory object for a generation of operators: ", strerror(errno),
        ". Fix: raise the limit on open files of the service"));
  }
  for (const std::string* object : objects) {
    RETURN_IF_ERROR(Append(fd.get(), *object));
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0) {
    return absl::InternalError(absl::StrCat("cannot seal a generation: ", strerror(errno)));
  }
  return fd;
}

absl::StatusOr<std::shared_ptr<const Generation>> UnpackGeneration(
    const internal::Generation& message, int fd) {
  uint64_t size = 0;
  if (struct stat info; fd >= 0 && fstat(fd, &info) == 0)
    size = static_cast<uint64_t>(info.st_size);
  uint64_t expected = 0;
  for (const uint64_t bytes : message.object_bytes()) expected += bytes;
  if (fd < 0 && expected != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the objects of generation ", message.number(),
                     " did not arrive. Fix: raise the limit on open files of the service"));
  }
  if (size != expected) {
    return absl::InvalidArgumentError(absl::StrCat("generation ", message.number(), " has ", size,
                                                   " bytes; its message specifies ", expected));
  }
  auto generation = std::make_shared<Generation>();
  generation->number = message.number();
  std::vector<std::shared_ptr<const std::string>> objects;
  uint64_t at = 0;
  for (const uint64_t bytes : message.object_bytes()) {
    ASSIGN_OR_RETURN(auto object, ReadObject(fd, std::exchange(at, at + bytes), bytes));
    objects.push_back(std::make_shared<const std::string>(std::move(object)));
  }
  for (const internal::Generation::Operator& sent : message.operators()) {
    if (sent.object() > objects.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("generation ", message.number(), " has no object number ", sent.object()));
    }
    generation->operators.push_back(
        {.slot = sent.slot(),
         .symbol = sent.symbol(),
         .object = sent.object() == 0 ? nullptr : objects[sent.object() - 1],
         .time_limit = std::chrono::milliseconds(sent.time_limit_ms()),
         .stoppable = sent.stoppable()});
  }
  return generation;
}

}  // namespace resident
