// PublishedFile: contents in memory under the path of a file, replaced as a whole.
//
// For libraries that watch a file by its path (gRPC's certificate provider): they see
// what was checked before, never a file that somebody is about to write, and nothing is
// written to a disk. The path is of this process alone (/proc/self/fd/N).
//
// How: each version is an anonymous file of its own; dup3() puts it, atomically, in the
// place of the one before. Its time of change rises by a second with each version, so
// that a reader of several paths that compares times sees that one changed meanwhile.
//
// Thread safety: Set belongs to one thread at a time; readers come as they like.
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
