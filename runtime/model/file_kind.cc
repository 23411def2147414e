#include "runtime/model/file_kind.h"

#include "absl/strings/match.h"

namespace resident {
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
