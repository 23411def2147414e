// AccessFiles: loads policy, tokens and certificates, and reloads them when their files
// change.
//
// The files are read twice a second. A changed file is loaded when two consecutive reads
// return the same contents, so that a file that is still being written is not loaded;
// Reload loads it immediately. If a file cannot be used, the previous contents stay in
// effect, the reason is logged, and the failure is counted, once for each change of the
// file. A file that every user may write is not used; other problems of its mode are logged
// as warnings when it is loaded (trusted_file.h).
//
//   AccessFiles files(options, &access, &credentials);
//   RETURN_IF_ERROR(files.Load());          // The daemon does not start if a file cannot be used.
//   ... create a server with `credentials` ...
//   files.Watch(/*on_change=*/[&] { streams.EndRefused(); });
//   ... files.Stop();
//
// Thread safety: Reload and counters may be called from any thread, the others from the
// thread that created the object. `on_change` is called from the watcher's thread, or from
// Reload's.
#ifndef RESIDENT_SERVER_AUTH_ACCESS_FILES_H_
#define RESIDENT_SERVER_AUTH_ACCESS_FILES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/auth/access.h"
#include "server/auth/access_options.h"
#include "server/auth/certificate_files.h"
#include "server/auth/server_credentials.h"

namespace resident {

class AccessFiles {
 public:
  struct Counters {
    // Since the start: successful and failed reloads of changed files.
    uint64_t reloads = 0;
    uint64_t failures = 0;
    // When the server's certificate expires, in seconds since 1970; 0: there is no
    // certificate.
    int64_t certificate_expires = 0;
  };

  AccessFiles(const AccessOptions& options, Access* access, ServerCredentials* credentials)
      : options_(options), access_(*access), credentials_(*credentials) {}
  ~AccessFiles() { Stop(); }

  // Reads everything for the first time. Errors name the flag and the file.
  absl::Status Load();
  // Starts the watcher. `on_change` is called after a new policy or new tokens took effect.
  void Watch(std::function<void()> on_change);
  void Reload();
  // `on_change` is not called after this has returned. Idempotent.
  void Stop();

  Counters counters() const;

 private:
  // The state of a file, or of several: their contents, or why they cannot be read, as one
  // text. `loaded`: when it was last loaded; `last`: when it was last read.
  struct Seen {
    std::string loaded;
    std::string last;
  };
  // Whether the contents `now` are to be loaded.
  static bool ShouldLoad(Seen& seen, std::string now, bool at_once);
  absl::Status LoadPolicy(const absl::StatusOr<std::string>& text)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status LoadTokens(const absl::StatusOr<std::string>& text)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status LoadCertificates(const absl::StatusOr<Certificates>& certificates)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  CertificatePaths certificate_paths() const {
    return {options_.tls_cert, options_.tls_key, options_.tls_client_ca};
  }
  // Reads all files and loads those that changed. Returns whether policy or tokens changed.
  bool CheckFiles(bool at_once) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Report(const char* flag, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run();

  const AccessOptions options_;
  Access& access_;
  ServerCredentials& credentials_;
  std::function<void()> on_change_;
  std::thread thread_;

  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Seen policy_seen_ ABSL_GUARDED_BY(mu_);
  Seen tokens_seen_ ABSL_GUARDED_BY(mu_);
  Seen certificates_seen_ ABSL_GUARDED_BY(mu_);
  // The policy and tokens in effect.
  Policy policy_ ABSL_GUARDED_BY(mu_);
  TokenFile tokens_ ABSL_GUARDED_BY(mu_);
  Counters counters_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_ACCESS_FILES_H_
