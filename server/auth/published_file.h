// PublishedFile: contents in memory that can be read under a file path, and are replaced as
// a whole.
//
// For libraries that watch a file by its path (gRPC's certificate provider): they see only
// checked contents, never a partly written file, and nothing is written to a disk. The path
// is valid only in this process (/proc/self/fd/N).
//
// Each version is a separate anonymous file; dup3() atomically replaces the previous one.
// The modification time increases by a second with each version, so that a reader of
// several paths can detect that one has changed.
//
// Thread safety: call Set from one thread at a time; reads may be concurrent.
#ifndef RESIDENT_SERVER_AUTH_PUBLISHED_FILE_H_
#define RESIDENT_SERVER_AUTH_PUBLISHED_FILE_H_

#include <string>

#include "absl/status/status.h"

namespace resident {

class PublishedFile {
 public:
  PublishedFile() = default;
  ~PublishedFile();
  PublishedFile(const PublishedFile&) = delete;
  PublishedFile& operator=(const PublishedFile&) = delete;

  absl::Status Set(const std::string& contents);
  // REQUIRES: Set was called.
  std::string path() const;

 private:
  int fd_ = -1;
  int versions_ = 0;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_PUBLISHED_FILE_H_
