#include "runtime/compile/unit.h"

#include <algorithm>
#include <cassert>
#include <cctype>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/sdk/block.h"
#include "runtime/base/limits.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/errors.h"

namespace resident {
namespace {

constexpr size_t kIdDigits = 16;

bool IsIdentifier(const std::string& text) {
  return !text.empty() && !std::isdigit(static_cast<unsigned char>(text[0])) &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return c < 0x80 && (std::isalnum(c) || c == '_'); });
}

bool IsHex(const std::string& text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isdigit(c) || (c >= 'a' && c <= 'f'); });
}

// Returns the SDK headers whose names occur in any of the files. They must be included before the
// unit's namespace begins; an unnecessary one does no harm.
std::vector<std::string> FindHeaders(const CompileJob& job) {
  std::vector<std::string> named;
  for (const auto& [header, text] : SdkHeaders()) {
    for (const auto& [name, source] : job.files) {
      if (!absl::StrContains(source, header)) continue;
      named.push_back(header);
      break;
    }
  }
  return named;
}

}  // namespace

absl::Status CheckSources(const CompileJob& job) {
  if (job.files.size() > kMaxInstallFiles) {
    return absl::InvalidArgumentError(absl::StrCat(job.files.size(),
                                                   " source files are over the limit of ",
                                                   kMaxInstallFiles, ". Fix: send fewer"));
  }
  uint64_t bytes = 0;
  for (const auto& [name, text] : job.files) {
    RETURN_IF_ERROR(CheckFileName(name));
    if (const size_t zero = text.find('\0'); zero != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("file '", name, "' is not text: byte ", zero,
                                                     " is zero. Fix: send the source"));
    }
    bytes += text.size();
  }
  if (bytes > kMaxInstallSourceBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the source has ", bytes,
                                                   " bytes; the limit is ", kMaxInstallSourceBytes,
                                                   ". Fix: send tables as tensors, not as source"));
  }
  RETURN_IF_ERROR(CheckMainFile(job.files, job.main_file));
  if (!IsIdentifier(job.function)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", job.function, "' is not a function name. Fix: use letters, digits, _"));
  }
  if (job.scratch_bytes > kScratchBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the operator requires ", job.scratch_bytes,
                                                   " bytes of scratch memory; a block has ",
                                                   kScratchBytes, ". Fix: require less"));
  }
  if (job.content_hash.size() < kIdDigits || !IsHex(job.content_hash)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", job.content_hash, "' is not a content hash. Fix: use 64 hex digits"));
  }
  return absl::OkStatus();
}

Unit MakeUnit(const CompileJob& job) {
  assert(CheckSources(job).ok());
  const std::string digits = job.content_hash.substr(0, kIdDigits);
  const std::string id = absl::StrCat(job.checked ? "c" : "", digits);
  Unit unit;
  unit.symbol = absl::StrCat(job.checked ? "resident_opc_" : "resident_op_", digits);
  unit.main_name = absl::StrCat("resident/unit_", id, ".cc");
  unit.definitions = {absl::StrCat("-DRESIDENT_UNIT=", id),
                      absl::StrCat("-Dresident_operator_", job.function, "=", unit.symbol),
                      absl::StrCat("-DRESIDENT_CHECKED=", job.checked ? 1 : 0)};
  if (job.scratch_bytes != 0) {
    unit.definitions.push_back(absl::StrCat("-DRESIDENT_SCRATCH_LIMIT=", job.scratch_bytes));
  }
  unit.main_text = "#include \"kernels/sdk/operator.h\"\n";
  for (const std::string& header : FindHeaders(job)) {
    absl::StrAppend(&unit.main_text, "#include \"", header, "\"\n");
  }
  absl::StrAppend(&unit.main_text, "namespace resident_unit_", id, " {\n",  //
                  "#include \"", job.main_file, "\"\n",                     //
                  "}\n");
  return unit;
}

std::string ParseUnitId(const std::string& symbol) {
  for (const auto& [prefix, of_id] :
       {std::pair<std::string, std::string>{"resident_op_", ""}, {"resident_opc_", "c"}}) {
    if (!absl::StartsWith(symbol, prefix)) continue;
    const std::string digits = symbol.substr(prefix.size());
    if (digits.size() == kIdDigits && IsHex(digits)) return of_id + digits;
  }
  return "";
}

std::string UnitNamespace(const std::string& unit_id) {
  const std::string name = absl::StrCat("resident_unit_", unit_id);
  return absl::StrCat(name.size(), name);
}

absl::Status CheckFileName(const std::string& name) {
  const auto refuse = [&](const std::string& why) { return errors::InstallFileName(name, why); };
  if (name.empty()) return refuse("it is empty");
  if (name.size() > kMaxInstallFileNameBytes) {
    return refuse(
        absl::StrCat(name.size(), " bytes are over the limit of ", kMaxInstallFileNameBytes));
  }
  for (const unsigned char c : name) {
    if (!(absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/')) {
      return refuse("it has a character that is not a letter, a digit or one of _-./");
    }
  }
  for (const absl::string_view part : absl::StrSplit(name, '/')) {
    if (part.empty()) return refuse("it begins or ends with '/', or has two in a row");
    if (part == "." || part == "..") return refuse("it has '.' or '..' as a folder");
  }
  if (absl::StartsWith(name, "kernels/") || absl::StartsWith(name, "resident/")) {
    return refuse("kernels/ and resident/ are folders of the SDK");
  }
  return absl::OkStatus();
}

absl::Status CheckMainFile(const std::map<std::string, std::string>& files,
                           const std::string& main_file) {
  if (files.contains(main_file)) return absl::OkStatus();
  return errors::InstallMissingFile(main_file, files.size());
}

const std::string& SdkHash() {
  static const std::string* const hash = [] {
    Sha256 sha;
    for (const auto& [name, text] : SdkHeaders()) sha.Field(name).Field(text);
    return new std::string(sha.Hex());
  }();
  return *hash;
}

}  // namespace resident
