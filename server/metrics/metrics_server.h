// MetricsServer: the Prometheus page of the daemon, http://ADDRESS/metrics: in Prometheus' text
// format, or as OpenMetrics if the header Accept asks for it, and compressed if the client takes
// gzip.
//
// For probes that cannot call grpc.health.v1: /livez (the process answers) and /readyz (the daemon
// accepts work and a device is usable; otherwise the status is 503).
//
// Nothing is counted here. The runtime counts as it works (operator_stats.h, device.h), without a
// lookup by label for any task; a scrape reads those counters and adds names and labels. Without
// scrapes the page costs nothing.
//
// docs/operations.md lists the metrics; deploy/prometheus has alert rules over them
// and deploy/grafana a dashboard.
//
// A request that is not sent within two seconds is dropped, and so is a client that does not read
// the answer. 16 requests are served at a time, of which four places are kept for /livez and
// /readyz; requests of a page that wait at one time get the same answer. The header Host must
// contain an address, localhost, the name that the server listens on, or one of `hosts`; other
// requests are refused (DNS rebinding).
//
// Thread safety: all members may be called from any thread. Scrapes are served by the server's own
// threads, which call the functions of MetricsSources.
//
//   MetricsSources sources{.devices = {device.get()}, ...};
//   ASSIGN_OR_RETURN(auto metrics, MetricsServer::Start("127.0.0.1:9464", std::move(sources)));
//   ... metrics->port() ...
#ifndef RESIDENT_SERVER_METRICS_METRICS_SERVER_H_
#define RESIDENT_SERVER_METRICS_METRICS_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/metrics/http_page.h"
#include "server/metrics/metrics_sources.h"

namespace resident {

class MetricsServer {
 public:
  // Listens on `address` (host:port; port 0 selects a free one). Errors:
  //   INVALID_ARGUMENT     not host:port
  //   UNAVAILABLE          in use, or not an address of this machine: the message contains
  //                        the reason and the address
  // `hosts`: further names that the header Host may contain. `more`: further paths, with the same
  // rules; that of "/" also answers requests of paths that have no page.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      const std::string& address, MetricsSources sources,
      const std::vector<std::string>& hosts = {}, const std::vector<HttpPath>& more = {});
  // Stops listening, and waits for running scrapes.
  virtual ~MetricsServer() = default;

  // The port that the server listens on.
  virtual int port() const = 0;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_METRICS_METRICS_SERVER_H_
