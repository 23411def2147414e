// What a file is that was given in place of another one, by its first bytes: a Git LFS pointer, a
// page of a web server, a file of another format for weights.
//
// Thread safety: a function without state.
#ifndef RESIDENT_RUNTIME_MODEL_FILE_KIND_H_
#define RESIDENT_RUNTIME_MODEL_FILE_KIND_H_

#include <cstddef>
#include <string_view>

namespace resident {

// How many bytes are enough for FindFileKind.
inline constexpr size_t kFileKindBytes = 64;

struct FileKind {
  std::string_view what;  // "a Git LFS pointer, not the file". Empty: it is not recognized.
  std::string_view fix;   // "run git lfs pull".
};

// `beginning`: the first bytes of the file, all of them or at least kFileKindBytes.
FileKind FindFileKind(std::string_view beginning);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_MODEL_FILE_KIND_H_
