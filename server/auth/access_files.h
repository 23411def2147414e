// AccessFiles: keeps policy, tokens and certificates in step with their files.
//
// The files are looked at twice a second. One that differs from what was read before is
// taken when two looks in a row see the same, so that a file that is being written is
// not taken by half; Reload takes it at once. A file that cannot be used changes
// nothing: what was read before holds, the log says why, and the failure is counted,
// once for each change of a file. A file that everybody may write cannot be used either, and
// what else is wrong with its mode is warned of when it is taken (trusted_file.h).
//
//   AccessFiles files(options, &access, &credentials);
//   RETURN_IF_ERROR(files.Load());          // The start is refused where one is bad.
//   ... a server is made with `credentials` ...
//   files.Watch(/*on_change=*/[&] { streams.EndRefused(); });
//   ... files.Stop();
//
// Thread safety: Reload and counters may be called from any thread, the others from that
// which made it. `on_change` is called from the watch's thread, or Reload's.
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
    // Since the start: files that were read anew and taken, and that could not be.
    uint64_t reloads = 0;
    uint64_t failures = 0;
    // When the server's certificate expires, in seconds since 1970; 0: there is none.
    int64_t certificate_expires = 0;
  };

  AccessFiles(const AccessOptions& options, Access* access, ServerCredentials* credentials)
      : options_(options), access_(*access), credentials_(*credentials) {}
  ~AccessFiles() { Stop(); }

  // Reads everything for the first time. Errors name the flag and the file.
  absl::Status Load();
  // From now on. `on_change` is called after a new policy or new tokens hold.
  void Watch(std::function<void()> on_change);
  void Reload();
  // `on_change` is not called any more once this has returned. Idempotent.
  void Stop();

  Counters counters() const;

 private:
  // What was last seen of a file, or of several: their contents, or why they cannot be
  // read, as one text.
  struct Seen {
    std::string taken;
    std::string last;
  };
  // Whether `now` is to be taken.
  static bool Settled(Seen& seen, std::string now, bool at_once);
  absl::Status TakePolicy(const absl::StatusOr<std::string>& text)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TakeTokens(const absl::StatusOr<std::string>& text)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TakeCertificates(const absl::StatusOr<Certificates>& certificates)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  CertificatePaths certificate_paths() const {
    return {options_.tls_cert, options_.tls_key, options_.tls_client_ca};
  }
  // Looks at everything. False: policy and tokens are as before.
  bool Look(bool at_once) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Report(const char* flag, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
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
  // What holds.
  Policy policy_ ABSL_GUARDED_BY(mu_);
  TokenFile tokens_ ABSL_GUARDED_BY(mu_);
  Counters counters_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_ACCESS_FILES_H_
