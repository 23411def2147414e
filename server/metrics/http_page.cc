#include "server/metrics/http_page.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/metrics/content_negotiation.h"

namespace resident {
namespace {

// Smaller answers are not compressed: they fit into one packet.
constexpr size_t kMinGzipBytes = 1024;

std::string LowerCaseHost(std::string host) {
  absl::AsciiStrToLower(&host);
  if (host.ends_with('.')) host.pop_back();
  return host;
}

absl::string_view ToView(const char* text) {
  return text == nullptr ? absl::string_view() : absl::string_view(text);
}

void Send(mg_connection* connection, HttpPage::Answer answer) {
  const std::shared_ptr<const HttpBody> shared =
      answer.body != nullptr ? std::move(answer.body)
                             : std::make_shared<const HttpBody>(std::move(answer.text));
  const bool gzip = shared->text().size() >= kMinGzipBytes &&
                    AcceptsGzip(ToView(mg_get_header(connection, "Accept-Encoding")));
  const std::string& body = gzip ? shared->Compressed() : shared->text();
  const std::string header =
      absl::StrCat("HTTP/1.1 ", answer.status, "\r\nContent-Type: ", answer.type,
                   "\r\nX-Content-Type-Options: nosniff\r\nVary: Accept, Accept-Encoding\r\n",
                   gzip ? "Content-Encoding: gzip\r\n" : "", answer.headers,
                   "Content-Length: ", body.size(), "\r\nConnection: close\r\n\r\n");
  mg_write(connection, header.data(), header.size());
  mg_write(connection, body.data(), body.size());
}

}  // namespace

ServedHosts::ServedHosts(const std::string& listens_on, const std::vector<std::string>& more)
    : names_{"localhost", LowerCaseHost(listens_on)} {
  for (const std::string& name : more) names_.insert(LowerCaseHost(name));
}

bool ServedHosts::Contains(const char* header) const {
  if (header == nullptr) return true;
  std::string host = header;
  in6_addr address;
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    if (end == std::string::npos) return false;
    return inet_pton(AF_INET6, host.substr(1, end - 1).c_str(), &address) == 1;
  }
  host = host.substr(0, host.find(':'));
  return inet_pton(AF_INET, host.c_str(), &address) == 1 || names_.contains(LowerCaseHost(host));
}

const std::string& HttpBody::Compressed() const {
  std::call_once(once_, [this] { compressed_ = Gzip(text_); });
  return compressed_;
}

std::shared_ptr<const HttpBody> SharedBody::Get() {
  const Clock::time_point oldest = Clock::now() - max_age_;
  Clock::time_point begun;
  {
    absl::MutexLock lock(&mu_);
    const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !making_; };
    ++waiting_;
    mu_.Await(absl::Condition(&idle));
    --waiting_;
    if (body_ != nullptr && begun_ >= oldest) return body_;
    making_ = true;
    begun = Clock::now();
  }
  absl::Cleanup end = [this] {
    absl::MutexLock lock(&mu_);
    making_ = false;
  };
  auto body = std::make_shared<const HttpBody>(make_());
  absl::MutexLock lock(&mu_);
  begun_ = begun;
  body_ = body;
  making_ = false;
  std::move(end).Cancel();
  return body;
}

bool HttpPage::handleGet(CivetServer*, mg_connection* connection) {
  if (!hosts_.Contains(mg_get_header(connection, "Host"))) {
    Send(connection, {.status = "403 Forbidden",
                      .text = "The page is not served under this host name. Fix: request it by "
                              "address, or add the name to --metrics_hosts\n"});
    return true;
  }
  if (places_ != nullptr && !places_->Enter()) {
    Send(connection, {.status = "503 Service Unavailable",
                      .text = "Too many requests are being answered. Fix: send fewer at a time, "
                              "or send the request again\n"});
    return true;
  }
  const absl::Cleanup leave = [this] {
    if (places_ != nullptr) places_->Leave();
  };
  const mg_request_info* const request = mg_get_request_info(connection);
  Send(connection, answer_({.path = ToView(request->local_uri),
                            .query = ToView(request->query_string),
                            .accept = ToView(mg_get_header(connection, "Accept"))}));
  return true;
}

}  // namespace resident
