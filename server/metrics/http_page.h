// HttpPage: answers GET requests of one path of the daemon's HTTP port, after it has checked the
// header Host. ServedHosts: the names that this header may contain. HttpPlaces: how many requests
// are answered at a time. SharedBody: an answer that is made once for all requests that wait for
// it.
//
// Who may connect to the port needs no credential, so what a request costs the daemon must not
// depend on how many there are: an answer that takes work is a SharedBody, which is made by one
// thread at a time, and compressed once.
//
// Thread safety: all members may be called from any thread.
//
//   SharedBody list([] { return MakeList(); }, std::chrono::milliseconds(500));
//   ... in an HttpPage::MakeAnswer: return HttpPage::Answer{.type = kJson, .body = list.Get()};
#ifndef RESIDENT_SERVER_METRICS_HTTP_PAGE_H_
#define RESIDENT_SERVER_METRICS_HTTP_PAGE_H_

#include <CivetServer.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

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

// The places of the requests that are being answered.
class HttpPlaces {
 public:
  explicit HttpPlaces(int places) : free_(places) {}

  // False: none is left. Otherwise call Leave once.
  bool Enter() {
    if (free_.fetch_sub(1, std::memory_order_relaxed) > 0) return true;
    Leave();
    return false;
  }
  void Leave() { free_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<int> free_;
};

// The text of an answer. It does not change, so that several answers can share it.
class HttpBody {
 public:
  explicit HttpBody(std::string text) : text_(std::move(text)) {}

  const std::string& text() const { return text_; }
  // The text in the form of gzip, which is made by the first call.
  const std::string& Compressed() const;

 private:
  const std::string text_;
  mutable std::once_flag once_;
  mutable std::string compressed_;
};

class SharedBody {
 public:
  // `make` is called by one thread at a time. `max_age`: for how long its text may be used.
  explicit SharedBody(std::function<std::string()> make, std::chrono::milliseconds max_age = {})
      : make_(std::move(make)), max_age_(max_age) {}

  // A text whose making began after this call, or at most max_age before it. Waits for two makings
  // at most.
  std::shared_ptr<const HttpBody> Get() ABSL_LOCKS_EXCLUDED(mu_);
  // The number of calls that wait for a text.
  int waiting() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return waiting_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  const std::function<std::string()> make_;
  const std::chrono::milliseconds max_age_;
  mutable absl::Mutex mu_;
  bool making_ ABSL_GUARDED_BY(mu_) = false;
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
  Clock::time_point begun_ ABSL_GUARDED_BY(mu_);
  // Null: none was made yet.
  std::shared_ptr<const HttpBody> body_ ABSL_GUARDED_BY(mu_);
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
    // In place of `text`, for an answer that several requests share.
    std::shared_ptr<const HttpBody> body = nullptr;
  };
  using MakeAnswer = std::function<Answer(const Request&)>;

  static constexpr char kText[] = "text/plain; charset=utf-8";

  // `hosts` and `places` must outlive it. Null: the page needs no place, for one whose answers take
  // no work.
  HttpPage(const ServedHosts& hosts, HttpPlaces* places, MakeAnswer answer)
      : hosts_(hosts), places_(places), answer_(std::move(answer)) {}

  // Compresses the answer if the client takes gzip. Status 503: no place is left.
  bool handleGet(CivetServer*, mg_connection* connection) override;

 private:
  const ServedHosts& hosts_;
  HttpPlaces* const places_;
  const MakeAnswer answer_;
};

// A path of the HTTP port, and what makes its answers.
struct HttpPath {
  std::string path;
  HttpPage::MakeAnswer answer;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_METRICS_HTTP_PAGE_H_
