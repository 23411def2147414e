// UniqueFd: owns a file descriptor and closes it.
//
// Thread safety: belongs to one thread at a time.
#ifndef RESIDENT_RUNTIME_BASE_PROCESS_UNIQUE_FD_H_
#define RESIDENT_RUNTIME_BASE_PROCESS_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace resident {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    Reset(other.Release());
    return *this;
  }
  ~UniqueFd() { Reset(); }

  // -1: none.
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_PROCESS_UNIQUE_FD_H_
