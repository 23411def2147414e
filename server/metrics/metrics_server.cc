#include "server/metrics/metrics_server.h"

#include <CivetServer.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "prometheus/text_serializer.h"
#include "runtime/base/host_port.h"
#include "runtime/base/status_macros.h"
#include "server/metrics/content_negotiation.h"
#include "server/metrics/http_page.h"
#include "server/metrics/metrics_collector.h"

namespace resident {
namespace {

// Enough threads that a few clients that send half a request do not delay others: each occupies a
// thread until its request times out.
constexpr int kServerThreads = 16;
// Of these for pages whose answers take work. The others are for the probes: a program that
// supervises the daemon would end it if they had no answer.
constexpr int kPageThreads = 12;
constexpr int kRequestMs = 2000;
constexpr int kMaxRequestBytes = 8192;

absl::Status AddressError(const std::string& address) {
  return absl::InvalidArgumentError(
      absl::StrCat("--metrics_address is \"", address,
                   "\", which is not host:port. Fix: for example --metrics_address=127.0.0.1:9464 "
                   "(port 0 selects a free one)"));
}

// The addresses of `parts`, in the resolver's order. On an error, returns null and sets `*why`.
using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
AddressList Resolve(const HostPort& parts, std::string* why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error =
          getaddrinfo(parts.host.c_str(), std::to_string(parts.port).c_str(), &hints, &found)) {
    *why = gai_strerror(error);
    found = nullptr;
  }
  return AddressList(found, &freeaddrinfo);
}

// Finds out why nothing can listen there, because the listener itself reports only that it failed.
std::string WhyNot(const HostPort& parts) {
  std::string why = "the listener failed";
  const AddressList found = Resolve(parts, &why);
  if (found == nullptr) return why;
  const int fd = socket(found->ai_family, found->ai_socktype, found->ai_protocol);
  const int yes = 1;
  if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 1) != 0) {
    why = std::strerror(errno);
  }
  if (fd >= 0) close(fd);
  return why;
}

// Connects to the listener and closes the connection, which wakes the listener up.
void WakeListener(const HostPort& parts) {
  std::string why;
  const AddressList found = Resolve(parts, &why);
  if (found == nullptr) return;
  const int fd = socket(found->ai_family, found->ai_socktype | SOCK_NONBLOCK, found->ai_protocol);
  if (fd < 0) return;
  // If this fails, the connection is in progress and wakes the listener, or the listener is closed.
  (void)connect(fd, found->ai_addr, found->ai_addrlen);
  close(fd);
}

class CivetMetricsServer : public MetricsServer {
 public:
  // Throws the exceptions of the listener.
  CivetMetricsServer(const std::string& address, const HostPort& parts, MetricsSources sources,
                     const std::vector<std::string>& hosts, const std::vector<HttpPath>& more)
      : is_ready_(sources.ready),
        operators_dir_(sources.operators_dir),
        collector_(std::move(sources)),
        hosts_(parts.host, hosts),
        parts_(parts),
        server_(std::in_place,
                std::vector<std::string>{
                    "listening_ports", address, "num_threads", std::to_string(kServerThreads),
                    "request_timeout_ms", std::to_string(kRequestMs), "max_request_size",
                    std::to_string(kMaxRequestBytes), "enable_keep_alive", "no"}) {
    server_->addHandler("/metrics", metrics_);
    server_->addHandler("/livez", live_);
    server_->addHandler("/readyz", ready_);
    for (const HttpPath& one : more) {
      server_->addHandler(one.path, more_.emplace_back(hosts_, &places_, one.answer));
    }
    port_ = server_->getListeningPorts().at(0);
    parts_.port = static_cast<uint16_t>(port_);
  }

  // The listener checks whether it has to stop between connections, or every two seconds. A thread
  // wakes it up meanwhile, so that the daemon does not wait for that.
  ~CivetMetricsServer() override {
    std::jthread waker([this](std::stop_token stopped) {
      while (!stopped.stop_requested()) {
        WakeListener(parts_);
        std::this_thread::sleep_for(kWakePause);
      }
    });
    server_.reset();
  }

  int port() const override { return port_; }

 private:
  static constexpr std::chrono::milliseconds kWakePause{5};

  std::string Scrape() const {
    return prometheus::TextSerializer().Serialize(collector_.Collect());
  }

  // The pages outlive the server.
  std::string WhyNotReady() const;

  const std::function<bool()> is_ready_;
  const std::function<v1::OperatorsDirStatus()> operators_dir_;
  const MetricsCollector collector_;
  const ServedHosts hosts_;
  HttpPlaces places_{kPageThreads};
  SharedBody prometheus_{[this] { return Scrape(); }};
  SharedBody open_metrics_{[this] { return ToOpenMetrics(Scrape()); }};
  HttpPage metrics_{
      hosts_, &places_, [this](const HttpPage::Request& request) {
        if (PrefersOpenMetrics(request.accept)) {
          return HttpPage::Answer{.type = kOpenMetricsType, .body = open_metrics_.Get()};
        }
        return HttpPage::Answer{.type = kPrometheusTextType, .body = prometheus_.Get()};
      }};
  HttpPage live_{hosts_, nullptr,
                 [](const HttpPage::Request&) { return HttpPage::Answer{.text = "ok\n"}; }};
  HttpPage ready_{hosts_, nullptr, [this](const HttpPage::Request&) {
                    if (is_ready_()) return HttpPage::Answer{.text = "ok\n"};
                    return HttpPage::Answer{.status = "503 Service Unavailable",
                                            .text = WhyNotReady()};
                  }};
  std::deque<HttpPage> more_;
  HostPort parts_;
  std::optional<CivetServer> server_;
  int port_ = 0;
};

// One line for each operator that is missing, without the reasons, which can contain sources.
std::string CivetMetricsServer::WhyNotReady() const {
  const v1::OperatorsDirStatus folder =
      operators_dir_ ? operators_dir_() : v1::OperatorsDirStatus();
  std::string text =
      "The daemon is draining, has no usable device, or has not applied --operators_dir. Fix: see "
      "residentctl status\n";
  if (folder.state() == v1::OperatorsDirStatus::STATE_FAILED) {
    text.append("--operators_dir cannot be applied; the log has the reason\n");
  }
  for (const std::string& name : folder.missing()) {
    absl::StrAppend(&text, "operator ", name, " of set ", folder.set(), " is not applied yet\n");
  }
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& address, MetricsSources sources, const std::vector<std::string>& hosts,
    const std::vector<HttpPath>& more) {
  // The listener accepts a list with its own options ("80s,[::]:81r"); this accepts only one
  // host:port.
  const std::optional<HostPort> parts = ParseHostPort(address);
  if (!parts.has_value() || parts->host.find(',') != std::string::npos) {
    return AddressError(address);
  }
  try {
    return std::make_unique<CivetMetricsServer>(address, *parts, std::move(sources), hosts, more);
  } catch (const std::exception&) {
    // The exception's text is the same for every reason.
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address, ": ",
                                               WhyNot(*parts),
                                               ". Fix: stop the program that listens there, or "
                                               "choose another --metrics_address (port 0 selects a "
                                               "free one)"));
  }
}

}  // namespace resident
