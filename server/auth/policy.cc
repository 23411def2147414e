#include "server/auth/policy.h"

#include <openssl/evp.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "runtime/base/errors/quote.h"
#include "runtime/base/status_macros.h"
#include "server/auth/account.h"

namespace resident {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxDepth = 8;
constexpr uint64_t kMaxMib = uint64_t{1} << 30;
constexpr uint64_t kMaxOpen = 1'000'000;

absl::Status BadField(const std::string& path, const std::string& what, const std::string& fix) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what, ". Fix: ", fix));
}

// Checks the form of the text: that it is valid JSON, and that no key is repeated (the
// parser would silently use the second one).
class FormCheck : public nlohmann::json_sax<Json> {
 public:
  const absl::Status& status() const { return status_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    Level& level = levels_.back();
    level.key = name;
    if (level.seen.insert(name).second) return true;
    status_ = BadField(Path(), "is repeated", "keep one of them");
    return false;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 3, column 5: ...".
    const std::string text = error.what();
    const size_t from = text.find("at line");
    status_ = absl::InvalidArgumentError(absl::StrCat(
        from == std::string::npos ? text : text.substr(from), ". Fix: correct the JSON there"));
    return false;
  }

 private:
  struct Level {
    std::string key;
    std::set<std::string> seen;
  };
  bool Open() {
    levels_.emplace_back();
    if (levels_.size() <= kMaxDepth) return true;
    status_ = absl::InvalidArgumentError(
        "the policy is nested too deeply. Fix: see docs/operations.md for its form");
    return false;
  }
  bool Close() {
    levels_.pop_back();
    return true;
  }
  std::string Path() const {
    return absl::StrJoin(levels_, ".", [](std::string* out, const Level& level) {
      absl::StrAppend(out, level.key);
    });
  }

  std::vector<Level> levels_;
  absl::Status status_;
};

// An object whose fields are all in `known`.
absl::Status CheckObject(const Json& json, const std::string& path,
                         const std::vector<std::string>& known) {
  if (!json.is_object()) return BadField(path, "is not an object", "write {...}");
  for (const auto& [key, value] : json.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return BadField(absl::StrCat(path, ".", key), "no such field",
                      absl::StrCat("the fields here are ", absl::StrJoin(known, ", ")));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ReadStrings(const Json& json, const std::string& path) {
  std::vector<std::string> strings;
  bool all = json.is_array();
  if (all) {
    for (const Json& element : json) {
      all = all && element.is_string();
      if (all) strings.push_back(element.get<std::string>());
    }
  }
  if (!all) return BadField(path, "is not a list of strings", "write [\"...\", ...]");
  return strings;
}

// A whole number up to `max`; absent if the field is absent.
absl::StatusOr<std::optional<uint64_t>> ReadNumber(const Json& object, const std::string& key,
                                                   const std::string& path, uint64_t max) {
  const auto found = object.find(key);
  if (found == object.end()) return std::optional<uint64_t>();
  if (!found->is_number_unsigned() || found->get<uint64_t>() > max) {
    return BadField(absl::StrCat(path, ".", key), absl::StrCat("is ", found->dump()),
                    absl::StrCat("write a whole number from 0 to ", max));
  }
  return std::optional<uint64_t>(found->get<uint64_t>());
}

absl::Status ReadOperators(const Json& json, const std::string& path, Rights& rights) {
  absl::Status status = CheckObject(json, path, {"submit", "install"});
  if (!status.ok()) return status;
  const auto read = [&](const char* key, std::optional<std::vector<std::string>>& prefixes) {
    const auto found = json.find(key);
    if (found == json.end()) return absl::OkStatus();
    ASSIGN_OR_RETURN(auto strings, ReadStrings(*found, absl::StrCat(path, ".", key)));
    if (std::count(strings.begin(), strings.end(), "") > 0) {
      return BadField(absl::StrCat(path, ".", key), "has an empty prefix",
                      "omit the list to allow all operators");
    }
    prefixes = std::move(strings);
    return absl::OkStatus();
  };
  status = read("submit", rights.submit_prefixes);
  if (status.ok()) status = read("install", rights.install_prefixes);
  return status;
}

absl::Status ReadQuotas(const Json& json, const std::string& path, Rights& rights) {
  const absl::Status status = CheckObject(
      json, path,
      {"tasks_in_flight", "buffer_mib", "installs_per_minute", "sessions", "watches", "installs"});
  if (!status.ok()) return status;
  ASSIGN_OR_RETURN(const auto tasks, ReadNumber(json, "tasks_in_flight", path, uint64_t{1} << 40));
  rights.tasks_in_flight = tasks;
  ASSIGN_OR_RETURN(const auto mib, ReadNumber(json, "buffer_mib", path, kMaxMib));
  if (mib.has_value()) rights.buffer_bytes = *mib << 20;
  ASSIGN_OR_RETURN(const auto installs, ReadNumber(json, "installs_per_minute", path, 10'000));
  if (installs.has_value()) rights.installs_per_minute = static_cast<uint32_t>(*installs);
  for (const auto& [key, quota] :
       {std::pair("sessions", &Rights::sessions), std::pair("watches", &Rights::watches),
        std::pair("installs", &Rights::installs)}) {
    ASSIGN_OR_RETURN(const auto max, ReadNumber(json, key, path, kMaxOpen));
    if (max.has_value()) rights.*quota = static_cast<uint32_t>(*max);
  }
  return absl::OkStatus();
}

absl::StatusOr<Rights> ReadRights(const Json& json, const std::string& path) {
  absl::Status status = CheckObject(json, path, {"roles", "operators", "quotas"});
  if (!status.ok()) return status;
  Rights rights;
  const auto roles = json.find("roles");
  if (roles == json.end()) {
    return BadField(absl::StrCat(path, ".roles"), "is missing",
                    "add the list of roles; [] for none");
  }
  ASSIGN_OR_RETURN(const auto words, ReadStrings(*roles, absl::StrCat(path, ".roles")));
  for (const std::string& word : words) {
    const std::optional<Role> role = ParseRole(word);
    if (!role.has_value()) {
      return BadField(absl::StrCat(path, ".roles"),
                      absl::StrCat("unknown role ", errors::Quote(word)),
                      "the roles are submit, install, install_confined and admin");
    }
    rights.roles = rights.roles | *role;
  }
  if (const auto operators = json.find("operators"); operators != json.end()) {
    status = ReadOperators(*operators, absl::StrCat(path, ".operators"), rights);
    if (!status.ok()) return status;
  }
  if (const auto quotas = json.find("quotas"); quotas != json.end()) {
    status = ReadQuotas(*quotas, absl::StrCat(path, ".quotas"), rights);
    if (!status.ok()) return status;
  }
  return rights;
}

}  // namespace

absl::Status CheckIdentityName(std::string_view name) {
  const bool printable =
      std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (name.empty() || name.size() > kMaxIdentityNameBytes || !printable) {
    return absl::InvalidArgumentError(
        absl::StrCat("the identity ", errors::Quote(name), " is not a valid name. Fix: use 1 to ",
                     kMaxIdentityNameBytes, " printable ASCII characters without spaces"));
  }
  if (name == kDaemonActor) {
    return absl::InvalidArgumentError(
        "'residentd' is the daemon's own name. Fix: use another name for the identity");
  }
  return absl::OkStatus();
}

absl::StatusOr<Policy> ParsePolicy(std::string_view text) {
  if (text.size() > kMaxPolicyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the policy has ", text.size(),
                                                   " bytes, but the limit is ", kMaxPolicyBytes,
                                                   ". Fix: make it shorter"));
  }
  FormCheck form;
  if (!Json::sax_parse(text.begin(), text.end(), &form, nlohmann::detail::input_format_t::json,
                       /*strict=*/true, /*ignore_comments=*/true)) {
    return form.status();
  }
  const Json json = Json::parse(text.begin(), text.end(), /*cb=*/nullptr,
                                /*allow_exceptions=*/false, /*ignore_comments=*/true);
  absl::Status status = CheckObject(json, "policy", {"identities"});
  if (!status.ok()) return status;
  const auto identities = json.find("identities");
  if (identities == json.end() || !identities->is_object()) {
    return BadField("identities", "is missing or not an object", "write {\"identities\": {...}}");
  }
  Policy policy;
  for (const auto& [name, rights] : identities->items()) {
    status = CheckIdentityName(name);
    if (!status.ok()) return status;
    ASSIGN_OR_RETURN(auto read, ReadRights(rights, absl::StrCat("identities.", name)));
    policy.identities.emplace(name, std::move(read));
  }
  return policy;
}

namespace {

absl::Status BadLine(size_t line, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", line, ": ", what,
                   ". Fix: write NAME and 64 hex digits, as printed by residentctl token new"));
}

}  // namespace

TokenHash HashToken(std::string_view token) {
  // This runs for every call with a token. Looking up the algorithm and creating a context
  // would take three times as long as the hash itself.
  static const EVP_MD* const kSha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  thread_local const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(
      EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  TokenHash hash;
  EVP_DigestInit_ex(context.get(), kSha256, nullptr);
  EVP_DigestUpdate(context.get(), token.data(), token.size());
  EVP_DigestFinal_ex(context.get(), hash.data(), nullptr);
  return hash;
}

absl::StatusOr<TokenFile> ParseTokenFile(std::string_view text) {
  if (text.size() > kMaxTokenFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the file has ", text.size(),
                                                   " bytes, but the limit is ", kMaxTokenFileBytes,
                                                   ". Fix: remove unused tokens"));
  }
  TokenFile file;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    if (words.size() != 2) return BadLine(number, absl::StrCat(words.size(), " words, not 2"));
    const std::string name(words[0]);
    if (const absl::Status usable = CheckIdentityName(name); !usable.ok()) {
      return BadLine(number, std::string(usable.message()));
    }
    const bool hex =
        words[1].size() == 2 * std::tuple_size_v<TokenHash> &&
        words[1].find_first_not_of("0123456789abcdefABCDEF") == absl::string_view::npos;
    // The word is not part of the message: it may be a token that was pasted by mistake.
    if (!hex) return BadLine(number, "the second word is not a SHA-256 hash in hex");
    const std::string bytes = absl::HexStringToBytes(words[1]);
    TokenHash hash;
    std::copy(bytes.begin(), bytes.end(), hash.begin());
    if (const auto [at, added] = file.names.emplace(hash, name); !added) {
      return BadLine(
          number, absl::StrCat("the same token as that of ", errors::Quote(at->second), " above"));
    }
  }
  return file;
}

}  // namespace resident
