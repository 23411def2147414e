#include "server/auth/access_files.h"

#include <stdio.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "server/auth/trusted_file.h"

namespace resident {
namespace {

constexpr absl::Duration kLookEvery = absl::Milliseconds(500);

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

bool AccessFiles::Settled(Seen& seen, std::string now, bool at_once) {
  if (now == seen.taken) {
    seen.last = std::move(now);
    return false;
  }
  if (!at_once && now != seen.last) {
    seen.last = std::move(now);
    return false;
  }
  seen.taken = std::move(now);
  seen.last = seen.taken;
  return true;
}

absl::Status AccessFiles::TakePolicy(const absl::StatusOr<std::string>& text) {
  if (!text.ok()) return Named("policy", options_.policy, text.status());
  auto policy = ParsePolicy(*text);
  if (!policy.ok()) return Named("policy", options_.policy, policy.status());
  policy_ = *std::move(policy);
  return absl::OkStatus();
}

absl::Status AccessFiles::TakeTokens(const absl::StatusOr<std::string>& text) {
  if (!text.ok()) return Named("token_file", options_.token_file, text.status());
  auto tokens = ParseTokenFile(*text);
  if (!tokens.ok()) return Named("token_file", options_.token_file, tokens.status());
  tokens_ = *std::move(tokens);
  return absl::OkStatus();
}

absl::Status AccessFiles::TakeCertificates(const absl::StatusOr<Certificates>& certificates) {
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
    Settled(certificates_seen_, Fingerprint(files), /*at_once=*/true);
    Warn(warnings);
    status = TakeCertificates(files);
  }
  if (!status.ok() || options_.policy.empty()) return status;
  std::vector<std::string> warnings;
  const auto policy =
      ReadTrustedFile(options_.policy, kMaxPolicyBytes, /*secret=*/false, &warnings);
  Settled(policy_seen_, Fingerprint(policy), /*at_once=*/true);
  status = TakePolicy(policy);
  if (status.ok() && !options_.token_file.empty()) {
    const auto tokens =
        ReadTrustedFile(options_.token_file, kMaxTokenFileBytes, /*secret=*/false, &warnings);
    Settled(tokens_seen_, Fingerprint(tokens), /*at_once=*/true);
    status = TakeTokens(tokens);
  }
  Warn(warnings);
  if (status.ok()) access_.Load(policy_, tokens_);
  return status;
}

bool AccessFiles::Report(const char* flag, const absl::Status& status) {
  if (status.ok()) {
    ++counters_.reloads;
    LogInfo("reloaded --", flag);
  } else {
    ++counters_.failures;
    LogError("failed to reload --", flag, ", keeping the previous contents: ", status.message());
  }
  return status.ok();
}

bool AccessFiles::Look(bool at_once) {
  bool changed = false;
  if (options_.tls()) {
    std::vector<std::string> warnings;
    const auto files = ReadCertificates(certificate_paths(), &warnings);
    if (Settled(certificates_seen_, Fingerprint(files), at_once)) {
      Warn(warnings);
      Report("tls_cert", TakeCertificates(files));
    }
  }
  if (options_.policy.empty()) return false;
  std::vector<std::string> warnings;
  const auto policy =
      ReadTrustedFile(options_.policy, kMaxPolicyBytes, /*secret=*/false, &warnings);
  if (Settled(policy_seen_, Fingerprint(policy), at_once)) {
    Warn(warnings);
    changed |= Report("policy", TakePolicy(policy));
  }
  if (!options_.token_file.empty()) {
    warnings.clear();
    const auto tokens =
        ReadTrustedFile(options_.token_file, kMaxTokenFileBytes, /*secret=*/false, &warnings);
    if (Settled(tokens_seen_, Fingerprint(tokens), at_once)) {
      Warn(warnings);
      changed |= Report("token_file", TakeTokens(tokens));
    }
  }
  if (changed) access_.Load(policy_, tokens_);
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
    changed = Look(/*at_once=*/true);
  }
  if (changed && on_change_) on_change_();
}

void AccessFiles::Run() {
  for (;;) {
    bool changed = false;
    {
      absl::MutexLock lock(&mu_);
      if (mu_.AwaitWithTimeout(absl::Condition(&stopping_), kLookEvery)) return;
      changed = Look(/*at_once=*/false);
    }
    if (changed) on_change_();
  }
}

AccessFiles::Counters AccessFiles::counters() const {
  absl::MutexLock lock(&mu_);
  return counters_;
}

}  // namespace resident
