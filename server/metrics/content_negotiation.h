// The forms of an answer between which an HTTP client chooses with its headers.
//
// Thread safety: all functions may be called from any thread.
#ifndef RESIDENT_SERVER_METRICS_CONTENT_NEGOTIATION_H_
#define RESIDENT_SERVER_METRICS_CONTENT_NEGOTIATION_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace resident {

// The weight, 0 to 1, that `header` (the value of Accept or Accept-Encoding) gives to `name`, such
// as "gzip": of several entries with that name the highest. Parameters other than q are ignored.
// nullopt: it does not contain the name.
std::optional<double> FindWeight(absl::string_view header, absl::string_view name);

// Whether a client with this Accept-Encoding takes gzip; "*" counts if gzip is not named.
bool AcceptsGzip(absl::string_view accept_encoding);
// Whether a client with this Accept asks for OpenMetrics, and does not prefer text/plain.
bool PrefersOpenMetrics(absl::string_view accept);

std::string Gzip(absl::string_view text);

// A page in Prometheus' text format 0.0.4 as OpenMetrics 1.0: there, the name of a counter's family
// has no "_total", and the page has an end. REQUIRES: the name of each counter ends in "_total".
std::string ToOpenMetrics(absl::string_view text);

inline constexpr char kPrometheusTextType[] = "text/plain; version=0.0.4; charset=utf-8";
inline constexpr char kOpenMetricsType[] =
    "application/openmetrics-text; version=1.0.0; charset=utf-8";

}  // namespace resident

#endif  // RESIDENT_SERVER_METRICS_CONTENT_NEGOTIATION_H_
