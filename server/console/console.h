// Console: the read-only page at http://METRICS_ADDRESS/ and the JSON that it reads (/api/...).
//
// The port knows no identities. Where callers have some (Core::credentials), the page shows what
// the services show a caller without the role admin and without clients of its own, no drawings and
// no traces.
//
// A request takes no lock for longer than the calls of the services that list the same. Answers are
// kept for kMaxAge, one request at a time makes a new one, and it is compressed once, so that many
// readers cost as much as one. Sizes are limited: kMaxOperators, kMaxEvents, and those of pictures
// (runtime/graph/limits.h), of which one at a time is drawn.
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
  // Requests that draw, or wait for that.
  static constexpr int kDrawingPlaces = 4;

  // The graphs must outlive it.
  Console(resident::Graphs& graphs, DaemonFacts facts);
  ~Console();

  std::vector<HttpPath> paths();

 private:
  // An answer that is made again when it is older than kMaxAge.
  HttpPath KeptJson(const std::string& path, std::function<std::string()> make);
  std::string Status() const;
  std::string Operators() const;
  std::string Events() const;
  std::string Graphs() const;
  std::string Traces() const;
  HttpPage::Answer Draw(const HttpPage::Request& request) ABSL_LOCKS_EXCLUDED(drawing_mu_);
  // Null: none is kept.
  std::shared_ptr<const HttpBody> FindDrawing(const std::string& id) const
      ABSL_LOCKS_EXCLUDED(drawings_mu_);

  Core& core_;
  const resident::Graphs& graphs_;
  const DaemonFacts facts_;
  const Viewer viewer_;
  History history_;

  HttpPlaces drawing_places_{kDrawingPlaces};
  absl::Mutex drawing_mu_ ABSL_ACQUIRED_BEFORE(drawings_mu_);  // Held while a graph is drawn.
  mutable absl::Mutex drawings_mu_;
  // By id of the graph.
  std::map<std::string, std::shared_ptr<const HttpBody>> drawings_ ABSL_GUARDED_BY(drawings_mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CONSOLE_CONSOLE_H_
