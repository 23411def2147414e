// HttpPage: answers GET requests of one path of the daemon's HTTP port, after it has checked the
// header Host. ServedHosts: the names that this header may contain.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_SERVER_METRICS_HTTP_PAGE_H_
#define RESIDENT_SERVER_METRICS_HTTP_PAGE_H_

#include <CivetServer.h>

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace resident {

// Without this check, a web page whose owner lets its name point to this machine (DNS rebinding)
// could read the metrics through the browser of a user here. Addresses need no check, because then
// no name was resolved.
class ServedHosts {
 public:
  ServedHosts(const std::string& listens_on, const std::vector<std::string>& more);

  // `header`: null if there is none, which HTTP/1.0 allows; browsers always send one.
  bool Contains(const char* header) const;

 private:
  std::set<std::string> names_;
};

class HttpPage : public CivetHandler {
 public:
  struct Request {
    absl::string_view path;
    absl::string_view query;   // Without "?"; empty: none.
    absl::string_view accept;  // The header; empty: none.
  };
  struct Answer {
    const char* status = "200 OK";
    const char* type = kText;
    std::string text = {};
    std::string headers = {};  // Further ones, each ending in "\r\n".
  };
  using MakeAnswer = std::function<Answer(const Request&)>;

  static constexpr char kText[] = "text/plain; charset=utf-8";

  // `hosts` must outlive it.
  HttpPage(const ServedHosts& hosts, MakeAnswer answer)
      : hosts_(hosts), answer_(std::move(answer)) {}

  // Compresses the answer if the client takes gzip.
  bool handleGet(CivetServer*, mg_connection* connection) override;

 private:
  const ServedHosts& hosts_;
  const MakeAnswer answer_;
};

// A path of the HTTP port, and what makes its answers.
struct HttpPath {
  std::string path;
  HttpPage::MakeAnswer answer;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_METRICS_HTTP_PAGE_H_
