#include "runtime/model/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

constexpr std::string_view kMetadata = "__metadata__";

struct FormatDType {
  std::string_view name;
  DType dtype;
};
// The format's names of the types that residentd has.
constexpr FormatDType kDTypes[] = {
    {"F32", DType::kF32}, {"F16", DType::kF16}, {"BF16", DType::kBF16},
    {"F64", DType::kF64}, {"I32", DType::kI32}, {"I64", DType::kI64},
    {"U8", DType::kU8},   {"I8", DType::kI8},   {"U32", DType::kU32},
};

// The format's other types, with the bits of an element. A newer version may have further ones.
struct ForeignDType {
  std::string_view name;
  uint64_t bits;
};
constexpr ForeignDType kForeignDTypes[] = {
    {"BOOL", 8}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6},
    {"F4", 4},   {"I16", 16},    {"U16", 16},    {"U64", 64},    {"C64", 64},
};
constexpr size_t kMaxDTypeBytes = 32;

std::string SafetensorsDTypeNames() {
  return absl::StrJoin(kDTypes, ", ", [](std::string* out, const FormatDType& known) {
    absl::StrAppend(out, absl::string_view(known.name.data(), known.name.size()));
  });
}

// Text of the file for a message: quoted, without control characters, and not too long.
std::string Quoted(const std::string& text) {
  constexpr size_t kShownBytes = 80;
  return absl::StrCat("'", absl::Utf8SafeCEscape(text.substr(0, kShownBytes)),
                      text.size() > kShownBytes ? "...'" : "'");
}

absl::Status Damaged(std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("not a valid safetensors file: ", absl::string_view(what.data(), what.size()),
                   ". Fix: write the file again with a tool for safetensors"));
}

// Reads the header as a stream of events, so that its memory is that of the tensors alone.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<SafetensorsTensor> Take() { return std::move(tensors_); }
  const absl::Status& status() const { return status_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a truth value"); }
  bool number_integer(int64_t) override { return Unexpected("a negative number"); }
  bool number_float(double, const std::string&) override {
    return Unexpected("a number that is not a whole number of 64 bits");
  }
  bool binary(nlohmann::json::binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (place_ == Place::kShape) {
      if (tensor_.shape.size() == kMaxRank) {
        return Fail(absl::StrCat(TensorText(), " has more than ", kMaxRank, " dimensions"));
      }
      tensor_.shape.push_back(value);
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (offsets_ == 2) return Fail(absl::StrCat(TensorText(), " has more than two offsets"));
      (offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
      return true;
    }
    return Unexpected("a number");
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kDType) return Unexpected("a text");
    for (const FormatDType& known : kDTypes) {
      if (known.name == value) tensor_.dtype = known.dtype;
    }
    if (value.empty() || value.size() > kMaxDTypeBytes) {
      return Fail(absl::StrCat(TensorText(), " has the dtype ", Quoted(value)));
    }
    tensor_.format_dtype = value;
    place_ = Place::kTensor;
    return true;
  }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kHeader;
        return true;
      case Place::kTensorValue:
        place_ = Place::kTensor;
        return true;
      case Place::kMetadataValue:
        place_ = Place::kMetadata;
        return true;
      default:
        return Unexpected("an object");
    }
  }

  bool key(std::string& name) override {
    switch (place_) {
      case Place::kHeader:
        if (!names_.insert(name).second) return Fail(absl::StrCat(Quoted(name), " appears twice"));
        if (name == kMetadata) {
          place_ = Place::kMetadataValue;
          return true;
        }
        if (tensors_.size() == kMaxSafetensorsTensors) {
          return Fail(absl::StrCat("it has more than ", kMaxSafetensorsTensors, " tensors"));
        }
        if (name.empty()) return Fail("a tensor has an empty name");
        if (name.size() > kMaxSafetensorsNameBytes) {
          return Fail(absl::StrCat("a tensor's name has ", name.size(), " bytes, and at most ",
                                   kMaxSafetensorsNameBytes, " are accepted"));
        }
        tensor_ = {};
        tensor_.name = name;
        offsets_ = 0;
        has_shape_ = has_offsets_ = false;
        place_ = Place::kTensorValue;
        return true;
      case Place::kMetadata:
        return true;
      case Place::kTensor:
        return TensorKey(name);
      default:
        return Unexpected("a key");
    }
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      if (tensor_.format_dtype.empty() || !has_shape_ || offsets_ != 2) {
        return Fail(absl::StrCat(TensorText(), " needs dtype, shape and two data_offsets"));
      }
      tensors_.push_back(std::move(tensor_));
      place_ = Place::kHeader;
    } else if (place_ == Place::kMetadata) {
      place_ = Place::kHeader;
    } else {
      place_ = Place::kEnd;
    }
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::kShapeValue) {
      place_ = Place::kShape;
      return true;
    }
    if (place_ == Place::kOffsetsValue) {
      place_ = Place::kOffsets;
      return true;
    }
    return Unexpected("an array");
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    return Fail(absl::StrCat("its header is not valid JSON at byte ", position));
  }

 private:
  // What the next event is part of; ...Value: the value of a key.
  enum class Place {
    kStart,
    kHeader,
    kMetadataValue,
    kMetadata,
    kTensorValue,
    kTensor,
    kDType,
    kShapeValue,
    kShape,
    kOffsetsValue,
    kOffsets,
    kEnd,
  };

  bool TensorKey(const std::string& name) {
    if (name == "dtype" && tensor_.format_dtype.empty()) {
      place_ = Place::kDType;
    } else if (name == "shape" && !has_shape_) {
      has_shape_ = true;
      place_ = Place::kShapeValue;
    } else if (name == "data_offsets" && !has_offsets_) {
      has_offsets_ = true;
      place_ = Place::kOffsetsValue;
    } else {
      return Fail(absl::StrCat(TensorText(), " has an unknown or repeated key ", Quoted(name)));
    }
    return true;
  }

  std::string TensorText() const { return absl::StrCat("tensor ", Quoted(tensor_.name)); }
  bool Unexpected(const char* what) {
    return Fail(absl::StrCat("its header has ", what, " in an unexpected place",
                             tensor_.name.empty() ? "" : ", after " + TensorText()));
  }
  bool Fail(const std::string& what) {
    if (status_.ok()) status_ = Damaged(what);
    return false;
  }

  Place place_ = Place::kStart;
  SafetensorsTensor tensor_;
  int offsets_ = 0;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::unordered_set<std::string> names_;
  std::vector<SafetensorsTensor> tensors_;
  absl::Status status_;
};

// Whether the tensor's range lies in the data and has the size of its elements.
absl::Status CheckTensor(const SafetensorsTensor& tensor, uint64_t data_bytes) {
  const std::string text = absl::StrCat("tensor ", Quoted(tensor.name));
  uint64_t bits = 8 * SizeOf(tensor.dtype);
  if (tensor.dtype == DType::kInvalid) {
    const ForeignDType* const known =
        std::find_if(std::begin(kForeignDTypes), std::end(kForeignDTypes),
                     [&](const ForeignDType& each) { return each.name == tensor.format_dtype; });
    bits = known == std::end(kForeignDTypes) ? 0 : known->bits;
  }
  uint64_t bytes = bits;
  // A dimension of 0 must not hide the overflow of the others.
  bool empty = false;
  for (const uint64_t dim : tensor.shape) {
    empty = empty || dim == 0;
    if (dim != 0 && __builtin_mul_overflow(bytes, dim, &bytes)) {
      return Damaged(absl::StrCat(text, " has a shape whose size overflows 64 bits"));
    }
  }
  if (empty) bytes = 0;
  bytes = bytes / 8 + (bytes % 8 != 0);
  if (tensor.begin > tensor.end || tensor.end > data_bytes) {
    return Damaged(absl::StrCat(text, " has the range ", tensor.begin, " to ", tensor.end,
                                ", and the data have ", data_bytes, " bytes"));
  }
  if (bits != 0 && tensor.size_bytes() != bytes) {
    return Damaged(absl::StrCat(text, " has a range of ", tensor.size_bytes(),
                                " bytes, and its shape and dtype need ", bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<SafetensorsTensor>> ParseSafetensorsHeader(std::string_view header,
                                                                      uint64_t data_bytes) {
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(header.begin(), header.end(), &reader)) return reader.status();
  RETURN_IF_ERROR(reader.status());
  std::vector<SafetensorsTensor> tensors = reader.Take();
  for (const SafetensorsTensor& tensor : tensors) {
    RETURN_IF_ERROR(CheckTensor(tensor, data_bytes));
  }
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  uint64_t end = 0;
  std::string before;
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.begin < end) {
      return Damaged(
          absl::StrCat("tensors ", Quoted(before), " and ", Quoted(tensor.name), " overlap"));
    }
    if (tensor.begin > end) {
      return Damaged(absl::StrCat("bytes ", end, " to ", tensor.begin, " belong to no tensor"));
    }
    end = tensor.end;
    before = tensor.name;
  }
  if (end != data_bytes) {
    return Damaged(absl::StrCat("bytes ", end, " to ", data_bytes, " belong to no tensor"));
  }
  return tensors;
}

std::string WriteSafetensorsHeader(const std::vector<SafetensorsTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  for (const SafetensorsTensor& tensor : tensors) {
    const FormatDType* const dtype =
        std::find_if(std::begin(kDTypes), std::end(kDTypes),
                     [&](const FormatDType& each) { return each.dtype == tensor.dtype; });
    assert(dtype != std::end(kDTypes));
    assert(tensor.begin == (&tensor == tensors.data() ? 0 : (&tensor)[-1].end));
    header[tensor.name] = {{"dtype", dtype->name},
                           {"shape", tensor.shape},
                           {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = header.dump();
  // Other programs that write this format align the elements, too.
  constexpr size_t kAlignment = 8;
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  const uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  bytes += text;
  return bytes;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  return FromDescriptor(std::move(file), path);
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::FromDescriptor(UniqueFd descriptor,
                                                                const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  file.file_ = std::move(descriptor);
  struct stat about {};
  if (fstat(file.file_.get(), &about) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  }
  if (!S_ISREG(about.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a regular file. Fix: give a safetensors file"));
  }
  const auto size = static_cast<uint64_t>(about.st_size);
  const auto in_file = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(path, " is ", status.message()));
  };
  uint8_t length_bytes[8];
  if (size < sizeof(length_bytes) ||
      pread(file.file_.get(), length_bytes, sizeof(length_bytes), 0) != sizeof(length_bytes)) {
    return in_file(Damaged("it is shorter than 8 bytes"));
  }
  // Damaged, unless the file is recognized as one of another kind.
  const auto damaged = [&](const absl::Status& status) {
    char beginning[kFileKindBytes];
    const ssize_t got = pread(file.file_.get(), beginning, sizeof(beginning), 0);
    const FileKind kind = FindFileKind({beginning, static_cast<size_t>(std::max<ssize_t>(got, 0))});
    if (kind.what.empty()) return in_file(status);
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is ", absl::string_view(kind.what.data(), kind.what.size()),
                     ". Fix: ", absl::string_view(kind.fix.data(), kind.fix.size())));
  };
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | length_bytes[i];
  if (length > size - sizeof(length_bytes)) {
    return damaged(Damaged(absl::StrCat("its header of ", length,
                                        " bytes is longer than the file of ", size, " bytes")));
  }
  if (length > kMaxSafetensorsHeaderBytes) {
    return damaged(Damaged(absl::StrCat("its header has ", length, " bytes, and at most ",
                                        kMaxSafetensorsHeaderBytes, " are accepted")));
  }
  std::string header(length, '\0');
  RETURN_IF_ERROR(file.ReadAt(sizeof(length_bytes), length, header.data()));
  file.data_begin_ = sizeof(length_bytes) + length;
  absl::StatusOr<std::vector<SafetensorsTensor>> tensors =
      ParseSafetensorsHeader(header, size - file.data_begin_);
  if (!tensors.ok()) return damaged(tensors.status());
  for (SafetensorsTensor& tensor : *tensors) {
    (tensor.dtype == DType::kInvalid ? file.unsupported_ : file.tensors_)
        .push_back(std::move(tensor));
  }
  return file;
}

absl::Status SafetensorsFile::CheckSupported(std::string_view fix) const {
  if (unsupported_.empty()) return absl::OkStatus();
  const SafetensorsTensor& first = unsupported_.front();
  const std::string more =
      unsupported_.size() == 1 ? "" : absl::StrCat(" (and ", unsupported_.size() - 1, " more)");
  return absl::InvalidArgumentError(
      absl::StrCat(path_, ": tensor ", Quoted(first.name), more, " has the dtype ",
                   Quoted(first.format_dtype), ", which residentd does not have; it has ",
                   SafetensorsDTypeNames(), ". Fix: ", absl::string_view(fix.data(), fix.size())));
}

absl::Status SafetensorsFile::Read(const SafetensorsTensor& tensor, uint64_t offset, uint64_t size,
                                   void* to) const {
  assert(offset <= tensor.size_bytes() && size <= tensor.size_bytes() - offset);
  return ReadAt(data_begin_ + tensor.begin + offset, size, to);
}

absl::Status SafetensorsFile::ReadAt(uint64_t position, uint64_t size, void* to) const {
  auto* at = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t got = pread(file_.get(), at, size, static_cast<off_t>(position));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path_));
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(path_, " has become shorter while it was read"));
    }
    at += got;
    position += static_cast<uint64_t>(got);
    size -= static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

namespace {

struct Row {
  std::string_view beginning;
  FileKind kind;
};

constexpr std::string_view kSaveAgain =
    "load it with the program that wrote it, and save it with safetensors.torch.save_file";
constexpr std::string_view kDownloadAgain =
    "download the file itself, with the credentials that it needs";

constexpr Row kRows[] = {
    {"version https://git-lfs", {"a Git LFS pointer, not the file", "run git lfs pull"}},
    {"PK\x03\x04", {"a zip archive, as torch.save writes", kSaveAgain}},
    {"\x80\x02", {"a pickle, as torch.save wrote", kSaveAgain}},
    {"\x80\x03", {"a pickle", kSaveAgain}},
    {"\x80\x04", {"a pickle", kSaveAgain}},
    {"\x80\x05", {"a pickle", kSaveAgain}},
    {"GGUF", {"a GGUF file", "use the model's safetensors files"}},
    {"\x89HDF", {"an HDF5 file", kSaveAgain}},
    {"\x93NUMPY", {"a NumPy array", kSaveAgain}},
    {"\x1f\x8b", {"a gzip file", "unpack it"}},
    {"<!doctype html", {"an HTML page", kDownloadAgain}},
    {"<html", {"an HTML page", kDownloadAgain}},
    {"<?xml", {"an XML document, as servers send for errors", kDownloadAgain}},
    {"{",
     {"a JSON text, such as an index",
      "give the index to residentctl buffers load, or give the "
      "safetensors files that it lists"}},
};

}  // namespace

FileKind FindFileKind(std::string_view beginning) {
  const size_t text = beginning.find_first_not_of(" \t\r\n");
  if (text != std::string_view::npos) beginning.remove_prefix(text);
  for (const Row& row : kRows) {
    const std::string_view start = beginning.substr(0, row.beginning.size());
    if (absl::EqualsIgnoreCase({start.data(), start.size()},
                               {row.beginning.data(), row.beginning.size()})) {
      return row.kind;
    }
  }
  return {};
}

}  // namespace resident
