#include "server/buffers/file_in_folder.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "server/buffers/errors.h"

namespace resident {

absl::StatusOr<UniqueFd> OpenFileInFolder(const std::string& folder, const std::string& path) {
  // A byte 0 would end the path for the system.
  if (path.empty() || path.find('\0') != std::string::npos) return errors::BadLoadPath(path);
  const UniqueFd root(open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (root.get() < 0) return errors::LoadFolderUnreadable(strerror(errno));
  open_how how{};
  how.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  UniqueFd file(
      static_cast<int>(syscall(SYS_openat2, root.get(), path.c_str(), &how, sizeof(how))));
  if (file.get() >= 0) return file;
  switch (errno) {
    case ENOENT:
    case ENOTDIR:
      return errors::NoSuchFile(path);
    case EXDEV:
      return errors::PathLeavesFolder(path);
    default:
      return errors::FileUnreadable(path, strerror(errno));
  }
}

}  // namespace resident
