// SafetensorsFile: the tensors of a safetensors file (https://github.com/huggingface/safetensors).
//
// The file starts with the length of its header (8 bytes, little-endian), then the header, a JSON
// object that maps each tensor's name to its dtype, shape and range in the rest of the file. Files
// come from strangers, so that everything is checked before anything is read or allocated: sizes
// must not overflow, ranges must lie in the file, must not overlap, and must leave no gaps.
//
// Thread safety: const members and functions may be called from several threads.
//
//   ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open("model.safetensors"));
//   for (const SafetensorsTensor& tensor : file.tensors()) {
//     RETURN_IF_ERROR(file.Read(tensor, 0, tensor.size_bytes(), buffer));
//   }
#ifndef RESIDENT_RUNTIME_MODEL_SAFETENSORS_H_
#define RESIDENT_RUNTIME_MODEL_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/layout/task.h"
#include "runtime/base/process/unique_fd.h"

namespace resident {

// Limits of a header: its length in bytes, the bytes of a tensor's name, and its tensors.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = uint64_t{64} << 20;
inline constexpr size_t kMaxSafetensorsNameBytes = 1024;
inline constexpr size_t kMaxSafetensorsTensors = 100'000;

struct SafetensorsTensor {
  std::string name;
  // kInvalid: residentd has no such type.
  DType dtype = DType::kInvalid;
  // Numbers of elements, outermost dimension first; at most kMaxRank. Empty: one element.
  std::vector<uint64_t> shape;
  // The range of its dense, little-endian elements, in bytes from the end of the header.
  uint64_t begin = 0;
  uint64_t end = 0;
  // The name of the dtype in the format, such as "BOOL", if it was read from a file.
  std::string format_dtype = {};

  uint64_t size_bytes() const { return end - begin; }
};

// Parses the JSON text of a header, for a file with `data_bytes` bytes after it. The tensors are in
// the order of their ranges. Some may have a dtype that residentd does not have. INVALID_ARGUMENT:
// the message says what is wrong.
absl::StatusOr<std::vector<SafetensorsTensor>> ParseSafetensorsHeader(std::string_view header,
                                                                      uint64_t data_bytes);

// What a file with these tensors begins with: the length of its header, and the header. Behind it
// their elements follow. REQUIRES: the tensors are in the order of their ranges, which leave no
// gaps.
std::string WriteSafetensorsHeader(const std::vector<SafetensorsTensor>& tensors);

// A file that is read piece by piece. It is not mapped into memory: if it became shorter meanwhile,
// an access would end the process (SIGBUS), where a read is a DATA_LOSS of this file.
class SafetensorsFile {
 public:
  // INVALID_ARGUMENT: the file is damaged or not a safetensors file; NOT_FOUND, PERMISSION_DENIED
  // and others: it cannot be opened.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
  // The same for an open file. `name`: for messages.
  static absl::StatusOr<SafetensorsFile> FromDescriptor(UniqueFd file, const std::string& name);

  // The tensors whose elements have a type of residentd, and the others.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  const std::vector<SafetensorsTensor>& unsupported() const { return unsupported_; }
  // INVALID_ARGUMENT if there are unsupported tensors. `fix`: how to load the others.
  absl::Status CheckSupported(std::string_view fix) const;

  // Reads bytes [offset, offset + size) of a tensor. DATA_LOSS: the file has become shorter.
  // REQUIRES: the range lies in the tensor.
  absl::Status Read(const SafetensorsTensor& tensor, uint64_t offset, uint64_t size,
                    void* to) const;

 private:
  SafetensorsFile() = default;
  // Reads at a position in the file.
  absl::Status ReadAt(uint64_t position, uint64_t size, void* to) const;

  std::string path_;
  UniqueFd file_;
  uint64_t data_begin_ = 0;
  std::vector<SafetensorsTensor> tensors_;
  std::vector<SafetensorsTensor> unsupported_;
};

// What a file is that was given in place of another one, by its first bytes: a Git LFS pointer, a
// page of a web server, a file of another format for weights.

// How many bytes are enough for FindFileKind.
inline constexpr size_t kFileKindBytes = 64;

struct FileKind {
  std::string_view what;  // "a Git LFS pointer, not the file". Empty: it is not recognized.
  std::string_view fix;   // "run git lfs pull".
};

// `beginning`: the first bytes of the file, all of them or at least kFileKindBytes.
FileKind FindFileKind(std::string_view beginning);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_MODEL_SAFETENSORS_H_
