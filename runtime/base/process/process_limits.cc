#include "runtime/base/process/process_limits.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
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

uint64_t RaiseDescriptorLimit(uint64_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  if (limit.rlim_cur >= wanted) return limit.rlim_cur;
  rlimit raised = limit;
  raised.rlim_cur = std::min<rlim_t>(limit.rlim_max, wanted);
  return setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : limit.rlim_cur;
}

}  // namespace resident
