#include "server/metrics/metrics_server.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "prometheus/exposer.h"
#include "server/metrics/metrics_collector.h"

namespace resident {
namespace {

constexpr int kScrapeThreads = 2;

struct HostPort {
  std::string host;  // Without brackets.
  std::string port;
};

absl::Status AddressError(const std::string& address) {
  return absl::InvalidArgumentError(
      absl::StrCat("--metrics_address is \"", address,
                   "\", which is not host:port. Fix: for example --metrics_address=127.0.0.1:9464 "
                   "(port 0 takes a free one)"));
}

// The listener takes a list with options of its own ("80s,[::]:81r"); only one
// host:port is let through.
absl::StatusOr<HostPort> Split(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return AddressError(address);
  HostPort parts{address.substr(0, colon), address.substr(colon + 1)};
  uint32_t port;
  if (parts.port.find_first_not_of("0123456789") != std::string::npos ||
      !absl::SimpleAtoi(parts.port, &port) || port > 65535) {
    return AddressError(address);
  }
  if (parts.host.front() == '[' && parts.host.back() == ']') {
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  } else if (parts.host.find_first_of(":,") != std::string::npos) {
    return AddressError(address);
  }
  return parts;
}

// Addresses of `parts`, as the resolver orders them; null with why on an error.
using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
AddressList Resolve(const HostPort& parts, std::string* why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(parts.host.c_str(), parts.port.c_str(), &hints, &found)) {
    *why = gai_strerror(error);
    found = nullptr;
  }
  return AddressList(found, &freeaddrinfo);
}

// Why nothing can listen there. The listener itself says only that it failed.
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

// Connects to the listener and hangs up.
void Knock(const HostPort& parts) {
  std::string why;
  const AddressList found = Resolve(parts, &why);
  if (found == nullptr) return;
  const int fd = socket(found->ai_family, found->ai_socktype | SOCK_NONBLOCK, found->ai_protocol);
  if (fd < 0) return;
  // Refused, or under way: the listener woke up, or is gone. Either will do.
  (void)connect(fd, found->ai_addr, found->ai_addrlen);
  close(fd);
}

class ExposingServer : public MetricsServer {
 public:
  // Throws what the listener throws.
  ExposingServer(const std::string& address, const HostPort& parts, MetricsSources sources)
      : collector_(std::make_shared<MetricsCollector>(std::move(sources))),
        parts_(parts),
        exposer_(std::in_place, address, kScrapeThreads) {
    exposer_->RegisterCollectable(collector_);
    port_ = exposer_->GetListeningPorts().at(0);
    parts_.port = std::to_string(port_);
  }

  // The listener looks for its end between connections, or every two seconds. So that
  // the daemon need not wait for that, somebody knocks meanwhile.
  ~ExposingServer() override {
    std::jthread knocker([this](std::stop_token stopped) {
      while (!stopped.stop_requested()) {
        Knock(parts_);
        std::this_thread::sleep_for(kKnockPause);
      }
    });
    exposer_.reset();
  }

  int port() const override { return port_; }

 private:
  static constexpr std::chrono::milliseconds kKnockPause{5};

  const std::shared_ptr<MetricsCollector> collector_;
  HostPort parts_;
  std::optional<prometheus::Exposer> exposer_;
  int port_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                                    MetricsSources sources) {
  absl::StatusOr<HostPort> parts = Split(address);
  if (!parts.ok()) return parts.status();
  try {
    return std::make_unique<ExposingServer>(address, *parts, std::move(sources));
  } catch (const std::exception&) {
    // Its text is the same for every reason.
    return absl::UnavailableError(absl::StrCat(
        "cannot serve metrics on ", address, ": ", WhyNot(*parts),
        ". Fix: stop what listens there, or choose another --metrics_address (port 0 takes a "
        "free one)"));
  }
}

}  // namespace resident
