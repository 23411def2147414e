// Console: the read-only page at http://METRICS_ADDRESS/ and the JSON that it reads (/api/...).
//
// The port knows no identities. Where callers have some (Core::credentials), the page shows what
// the services show a caller without the role admin and without clients of its own, no drawings and
// no traces.
//
// A request takes no lock for longer than the calls of the services that list the same. Answers are
// kept for kMaxAge, and one request at a time makes a new one, so that many readers cost as much as
// one. Sizes are limited: kMaxOperators, kMaxEvents, and those of pictures
// (runtime/graph/limits.h).
//
// Thread safety: the answers of paths() may be called from any thread. They must not be called any
// more when the object is destroyed.
//
//   Console console(graphs, facts);
//   MetricsServer::Start(address, sources, hosts, console.paths());
#ifndef RESIDENT_SERVER_CONSOLE_CONSOLE_H_
#define RESIDENT_SERVER_CONSOLE_CONSOLE_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/console/history.h"
#include "server/core/core.h"
#include "server/core/daemon_status.h"
#include "server/core/viewer.h"
#include "server/graphs/graphs.h"
#include "server/metrics/http_page.h"

namespace resident {

class Console {
 public:
  static constexpr std::chrono::milliseconds kMaxAge{500};
  static constexpr int kMaxOperators = 10'000;
  static constexpr size_t kMaxEvents = 50;
  // Drawings that are kept.
  static constexpr size_t kMaxDrawings = 8;

  // The graphs must outlive it.
  Console(resident::Graphs& graphs, DaemonFacts facts);
  ~Console();

  std::vector<HttpPath> paths();

 private:
  // An answer that is made again when it is older than kMaxAge.
  struct Kept {
    absl::Mutex mu;
    Clock::time_point made ABSL_GUARDED_BY(mu) = Clock::time_point::min();
    std::string text ABSL_GUARDED_BY(mu);
  };

  HttpPath KeptJson(const std::string& path, std::function<std::string()> make);
  std::string Status() const;
  std::string Operators() const;
  std::string Events() const;
  std::string Graphs() const;
  std::string Traces() const;
  HttpPage::Answer Draw(const HttpPage::Request& request);

  Core& core_;
  const resident::Graphs& graphs_;
  const DaemonFacts facts_;
  const Viewer viewer_;
  History history_;

  absl::Mutex drawing_mu_;
  // By id of the graph.
  std::map<std::string, std::string> drawings_ ABSL_GUARDED_BY(drawing_mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CONSOLE_CONSOLE_H_
