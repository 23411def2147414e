#include "server/operators/set_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status_macros.h"
#include "server/auth/trusted_file.h"

namespace resident {
namespace {

constexpr char kSetFile[] = "operators.yaml";
constexpr char kNextSetFile[] = "operators_next.yaml";
// The link of a ConfigMap's volume.
constexpr char kGeneration[] = "..data";
constexpr int kOpenFolder = O_PATH | O_DIRECTORY | O_CLOEXEC;

// The folder in which all files are read; -1: there is none, see errno.
int OpenGeneration(const std::string& path) {
  const int folder = open(path.c_str(), kOpenFolder);
  if (folder < 0) return folder;
  const int generation = openat(folder, kGeneration, kOpenFolder);
  if (generation < 0) return folder;
  close(folder);
  return generation;
}

absl::Status NoFolder(const std::string& path, int error) {
  return absl::InvalidArgumentError(absl::StrCat("--operators_dir=", path, ": ", strerror(error),
                                                 ". Fix: give a folder with the file ", kSetFile));
}

void DescribeFile(int folder, const std::string& name, std::string* out) {
  struct stat info {};
  if (fstatat(folder, name.c_str(), &info, 0) != 0) {
    absl::StrAppend(out, name, " ", errno, "\n");
    return;
  }
  absl::StrAppend(out, name, " ", info.st_dev, " ", info.st_ino, " ", info.st_size, " ",
                  info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec, " ", info.st_ctim.tv_sec, ".",
                  info.st_ctim.tv_nsec, "\n");
}

bool IsMounted(int folder, const char* name) {
  struct statx info {};
  return statx(folder, name, 0, 0, &info) == 0 &&
         (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

bool Exists(int folder, const char* name) {
  struct stat info {};
  return fstatat(folder, name, &info, 0) == 0 || errno != ENOENT;
}

}  // namespace

absl::Status SetFolder::Check() const {
  const int folder = open(path_.c_str(), kOpenFolder);
  if (folder < 0) return NoFolder(path_, errno);
  close(folder);
  std::vector<std::string> warnings;
  const absl::Status trusted = CheckTrustedFolder(path_, &warnings);
  if (trusted.ok()) return trusted;
  return absl::InvalidArgumentError(absl::StrCat("--operators_dir: ", trusted.message()));
}

SetFolder::Contents SetFolder::Read() {
  Contents contents{absl::UnknownError(""), "", std::nullopt, "", {}};
  names_ = {kSetFile, kNextSetFile};
  const int folder = OpenGeneration(path_);
  if (folder < 0) {
    contents.set = NoFolder(path_, errno);
    return contents;
  }
  const absl::Cleanup close_folder = [folder] { close(folder); };
  if (IsMounted(folder, kSetFile)) {
    contents.warnings.push_back(
        absl::StrCat("--operators_dir=", path_, ": ", kSetFile,
                     " is a mount of its own, so that changes are not seen. Fix: mount the "
                     "folder (in Kubernetes: without subPath)"));
  }
  std::map<std::string, std::string> files;
  size_t left = kMaxSetFolderBytes;
  const auto read = [&](const std::string& name) -> absl::StatusOr<std::string> {
    names_.insert(name);
    if (const auto known = files.find(name); known != files.end()) return known->second;
    ASSIGN_OR_RETURN(std::string text,
                     ReadTrustedFileIn(folder, path_, name, left, &contents.warnings));
    left -= text.size();
    files[name] = text;
    return text;
  };
  const auto read_set = [&](const char* file, std::string* hex) -> absl::StatusOr<OperatorSet> {
    std::map<std::string, std::string> used;
    const absl::Cleanup make_digest = [&] {
      Sha256 digest;
      for (const auto& [name, text] : used) digest.Field(name).Field(text);
      *hex = digest.Hex();
    };
    const auto use = [&](const std::string& name) -> absl::StatusOr<std::string> {
      ASSIGN_OR_RETURN(std::string text, read(name));
      used[name] = text;
      return text;
    };
    ASSIGN_OR_RETURN(const std::string text, use(file));
    return ReadOperatorSet(text, absl::StrCat(path_, "/", file), use);
  };
  if (absl::Status trusted = CheckTrustedFolder(path_, &contents.warnings); !trusted.ok()) {
    contents.set = std::move(trusted);
    return contents;
  }
  contents.set = read_set(kSetFile, &contents.digest);
  if (Exists(folder, kNextSetFile)) contents.next = read_set(kNextSetFile, &contents.next_digest);
  return contents;
}

std::string SetFolder::Fingerprint() const {
  std::string text;
  const int folder = OpenGeneration(path_);
  if (folder < 0) return absl::StrCat(errno);
  DescribeFile(folder, ".", &text);
  for (const std::string& name : names_) DescribeFile(folder, name, &text);
  close(folder);
  return text;
}

std::optional<SetFolder::Contents> SetFolder::Poll() {
  const std::string now = Fingerprint();
  if (std::exchange(last_, now) != now || now == returned_) return std::nullopt;
  const std::set<std::string> named = names_;
  Contents contents = Read();
  // Only what did not change while it was read is of one generation. The files of the fingerprint
  // are those of the set before; the next Poll has the others.
  if (names_ != named) {
    last_ = Fingerprint();
    return std::nullopt;
  }
  if (Fingerprint() != now) return std::nullopt;
  returned_ = now;
  return contents;
}

}  // namespace resident
