#include "runtime/base/process/oom_score.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

namespace resident {

void RaiseOomScore(int score) {
  const int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  char text[16] = {};
  if (read(fd, text, sizeof(text) - 1) > 0 && atoi(text) < score) {
    const std::string value = std::to_string(score);
    [[maybe_unused]] const ssize_t written = pwrite(fd, value.data(), value.size(), 0);
  }
  close(fd);
}

}  // namespace resident
