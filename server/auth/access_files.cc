#include "server/auth/access_files.h"

#include <stdio.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "server/auth/trusted_file.h"

namespace resident {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(500);

absl::Status Named(const char* flag, const std::string& path, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("--", flag, "=", path, ": ", status.message()));
}

void Warn(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) LogWarning(warning);
}

std::string Fingerprint(const absl::StatusOr<std::string>& text) {
  return text.ok() ? absl::StrCat("+", *text) : absl::StrCat("-", text.status().message());
}

std::string Fingerprint(const absl::StatusOr<Certificates>& files) {
  if (!files.ok()) return absl::StrCat("-", files.status().message());
  return absl::StrCat("+", files->chain.size(), " ", files->key.size(), " ", files->chain,
                      files->key, files->client_ca);
}

}  // namespace

void AccessFiles::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

bool AccessFiles::ShouldLoad(Seen& seen, std::string now, bool at_once) {
  if (now == seen.loaded) {
    seen.last = std::move(now);
    return false;
  }
  if (!at_once && now != seen.last) {
    seen.last = std::move(now);
    return false;
  }
  seen.loaded = std::move(now);
  seen.last = seen.loaded;
  return true;
}

absl::Status AccessFiles::LoadPolicy(const absl::StatusOr<std::string>& text) {
  if (!text.ok()) return Named("policy", options_.policy, text.status());
  auto policy = ParsePolicy(*text);
  if (!policy.ok()) return Named("policy", options_.policy, policy.status());
  policy_ = *std::move(policy);
  return absl::OkStatus();
}

absl::Status AccessFiles::LoadTokens(const absl::StatusOr<std::string>& text) {
  if (!text.ok()) return Named("token_file", options_.token_file, text.status());
  auto tokens = ParseTokenFile(*text);
  if (!tokens.ok()) return Named("token_file", options_.token_file, tokens.status());
  tokens_ = *std::move(tokens);
  return absl::OkStatus();
}

absl::Status AccessFiles::LoadCertificates(const absl::StatusOr<Certificates>& certificates) {
  if (!certificates.ok()) return certificates.status();
  ASSIGN_OR_RETURN(const auto expires, CheckCertificates(*certificates, certificate_paths()));
  const absl::Status set = credentials_.SetCertificates(*certificates);
  if (set.ok()) counters_.certificate_expires = expires;
  return set;
}

absl::Status AccessFiles::Load() {
  absl::MutexLock lock(&mu_);
  absl::Status status;
  if (options_.tls()) {
    std::vector<std::string> warnings;
    const auto files = ReadCertificates(certificate_paths(), &warnings);
    ShouldLoad(certificates_seen_, Fingerprint(files), /*at_once=*/true);
    Warn(warnings);
    status = LoadCertificates(files);
  }
  if (!status.ok() || options_.policy.empty()) return status;
  std::vector<std::string> warnings;
  const auto policy =
      ReadTrustedFile(options_.policy, kMaxPolicyBytes, /*secret=*/false, &warnings);
  ShouldLoad(policy_seen_, Fingerprint(policy), /*at_once=*/true);
  status = LoadPolicy(policy);
  if (status.ok() && !options_.token_file.empty()) {
    const auto tokens =
        ReadTrustedFile(options_.token_file, kMaxTokenFileBytes, /*secret=*/false, &warnings);
    ShouldLoad(tokens_seen_, Fingerprint(tokens), /*at_once=*/true);
    status = LoadTokens(tokens);
  }
  Warn(warnings);
  if (status.ok()) access_.Load(policy_, tokens_);
  return status;
}

void AccessFiles::Report(const char* flag, const absl::Status& status) {
  if (status.ok()) {
    ++counters_.reloads;
    LogInfo("reloaded --", flag);
  } else {
    ++counters_.failures;
    LogError("failed to reload --", flag, ", keeping the previous contents: ", status.message());
  }
}

bool AccessFiles::CheckFiles(bool at_once) {
  if (options_.tls()) {
    std::vector<std::string> warnings;
    const auto files = ReadCertificates(certificate_paths(), &warnings);
    if (ShouldLoad(certificates_seen_, Fingerprint(files), at_once)) {
      Warn(warnings);
      Report("tls_cert", LoadCertificates(files));
    }
  }
  if (options_.policy.empty()) return false;
  std::optional<absl::Status> policy_loaded;
  std::optional<absl::Status> tokens_loaded;
  std::vector<std::string> warnings;
  const auto policy =
      ReadTrustedFile(options_.policy, kMaxPolicyBytes, /*secret=*/false, &warnings);
  if (ShouldLoad(policy_seen_, Fingerprint(policy), at_once)) {
    Warn(warnings);
    policy_loaded = LoadPolicy(policy);
  }
  if (!options_.token_file.empty()) {
    warnings.clear();
    const auto tokens =
        ReadTrustedFile(options_.token_file, kMaxTokenFileBytes, /*secret=*/false, &warnings);
    if (ShouldLoad(tokens_seen_, Fingerprint(tokens), at_once)) {
      Warn(warnings);
      tokens_loaded = LoadTokens(tokens);
    }
  }
  const auto is_new = [](const auto& loaded) { return loaded.has_value() && loaded->ok(); };
  const bool changed = is_new(policy_loaded) || is_new(tokens_loaded);
  if (changed) access_.Load(policy_, tokens_);
  // What is reported as reloaded is in force.
  if (policy_loaded.has_value()) Report("policy", *policy_loaded);
  if (tokens_loaded.has_value()) Report("token_file", *tokens_loaded);
  return changed;
}

void AccessFiles::Watch(std::function<void()> on_change) {
  on_change_ = std::move(on_change);
  if (options_.credentials()) thread_ = std::thread([this] { Run(); });
}

void AccessFiles::Reload() {
  bool changed = false;
  {
    absl::MutexLock lock(&mu_);
    changed = CheckFiles(/*at_once=*/true);
  }
  if (changed && on_change_) on_change_();
}

void AccessFiles::Run() {
  for (;;) {
    bool changed = false;
    {
      absl::MutexLock lock(&mu_);
      if (mu_.AwaitWithTimeout(absl::Condition(&stopping_), kPollInterval)) return;
      changed = CheckFiles(/*at_once=*/false);
    }
    if (changed) on_change_();
  }
}

AccessFiles::Counters AccessFiles::counters() const {
  absl::MutexLock lock(&mu_);
  return counters_;
}

}  // namespace resident
