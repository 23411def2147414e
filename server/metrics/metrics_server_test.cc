#include "server/metrics/metrics_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/metrics/fake_sources.h"
#include "server/metrics/http_page.h"

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Returns a connection over which `request` was sent.
int Send(int port, const std::string& request) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  }
  return fd;
}

// Reads until the end of the answer, header and body, and closes the connection. What has not come
// within a minute does not come.
std::string Receive(int fd) {
  const timeval minute{60, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof(minute));
  std::string answer;
  char buffer[4096];
  for (ssize_t bytes; (bytes = read(fd, buffer, sizeof buffer)) > 0;) {
    answer.append(buffer, static_cast<size_t>(bytes));
  }
  close(fd);
  return answer;
}

// The answer to GET /metrics on the loopback interface.
std::string Get(int port, const std::string& path = "/metrics") {
  return Receive(Send(port, "GET " + path + " HTTP/1.0\r\n\r\n"));
}

TEST(MetricsServerTest, PortZeroSelectsAFreePortAndReportsIt) {
  FakeSources fake;
  auto server = MetricsServer::Start("127.0.0.1:0", fake.Sources());
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_GT((*server)->port(), 0);
  EXPECT_THAT(Get((*server)->port()),
              AllOf(HasSubstr("200 OK"), HasSubstr(R"(resident_build_info{version="1.2.3"} 1)"),
                    HasSubstr("resident_clients 3"), HasSubstr("resident_connections 5"),
                    HasSubstr("resident_connections_refused_total 2"),
                    HasSubstr("resident_connections_closed_total{reason=\"idle\"} 3"),
                    HasSubstr("resident_connections_closed_total{reason=\"bytes\"} 4"),
                    HasSubstr("resident_connections_closed_total{reason=\"room\"} 6"),
                    HasSubstr("resident_connections_closed_total{reason=\"unfinished\"} 9"),
                    HasSubstr("resident_connections_closed_total{reason=\"silent\"} 10"),
                    HasSubstr("resident_connections_without_call_total 7"),
                    HasSubstr("resident_grpc_log_lines_suppressed_total 8"),
                    HasSubstr("resident_buffers{device=\"0\"} 7")));
}

TEST(MetricsServerTest, AScrapeReportsTheCountersOfThatMoment) {
  FakeSources fake;
  auto server = MetricsServer::Start("127.0.0.1:0", fake.Sources());
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get((*server)->port()), Not(HasSubstr(R"(status="ok"})")));
  fake.add.CountTasks(0, 5);
  EXPECT_THAT(Get((*server)->port()), HasSubstr(R"(status="ok"} 5)"));
}

TEST(MetricsServerTest, TheClientChoosesTheFormatAndTheEncoding) {
  FakeSources fake;
  auto server = MetricsServer::Start("127.0.0.1:0", fake.Sources());
  ASSERT_TRUE(server.ok()) << server.status();
  const auto get = [&](const std::string& headers) {
    return Receive(
        Send((*server)->port(), absl::StrCat("GET /metrics HTTP/1.0\r\n", headers, "\r\n")));
  };
  EXPECT_THAT(get(""),
              AllOf(HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
                    HasSubstr("# TYPE resident_batches_total counter\n"),
                    Not(HasSubstr("Content-Encoding")), Not(HasSubstr("# EOF"))));
  EXPECT_THAT(
      get("Accept: application/openmetrics-text; version=1.0.0\r\n"),
      AllOf(
          HasSubstr("Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"),
          HasSubstr("# TYPE resident_batches counter\n"), HasSubstr("resident_batches_total 0\n"),
          testing::EndsWith("\n# EOF\n")));
  const std::string gzip = get("Accept-Encoding: gzip\r\n");
  EXPECT_THAT(gzip, AllOf(HasSubstr("Content-Encoding: gzip\r\n"),
                          HasSubstr("Vary: Accept, Accept-Encoding\r\n"), HasSubstr("\x1f\x8b"),
                          Not(HasSubstr("resident_clients"))));
  EXPECT_LT(3 * gzip.size(), get("").size());
}

TEST(MetricsServerTest, ReadyzFollowsTheDaemonAndLivezDoesNot) {
  FakeSources fake;
  auto server = MetricsServer::Start("127.0.0.1:0", fake.Sources());
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get((*server)->port(), "/livez"), HasSubstr("200 OK"));
  EXPECT_THAT(Get((*server)->port(), "/readyz"), HasSubstr("200 OK"));
  fake.ready = false;
  EXPECT_THAT(Get((*server)->port(), "/livez"), HasSubstr("200 OK"));
  EXPECT_THAT(Get((*server)->port(), "/readyz"), AllOf(HasSubstr("503"), HasSubstr("Fix: ")));
  fake.operators_dir.set_state(v1::OperatorsDirStatus::STATE_FAILED);
  fake.operators_dir.set_set("ranking");
  fake.operators_dir.set_error("its source");
  fake.operators_dir.add_missing("swish");
  EXPECT_THAT(Get((*server)->port(), "/readyz"),
              AllOf(HasSubstr("\noperator swish of set ranking is not applied yet\n"),
                    Not(HasSubstr("its source"))));
  EXPECT_THAT(Get((*server)->port()),
              HasSubstr("\nresident_operators_dir_state{state=\"failed\"} 1\n"));
}

TEST(MetricsServerTest, HalfSentRequestsDoNotDelayOthers) {
  FakeSources fake;
  auto server = MetricsServer::Start("127.0.0.1:0", fake.Sources());
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<int> half_sent;
  for (int i = 0; i < 24; ++i) {
    half_sent.push_back(Send((*server)->port(), "GET /metrics HTTP/1.1\r\nHost: localhost\r\n"));
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(Get((*server)->port()), HasSubstr("200 OK"));
  // The default timeout of a scrape by Prometheus is ten seconds.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  for (const int fd : half_sent) EXPECT_THAT(Receive(fd), Not(HasSubstr("200 OK")));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(MetricsServerTest, ProbesAreAnsweredWhileAllPagesAreBusy) {
  FakeSources fake;
  absl::Notification end;
  std::atomic<int> busy{0};
  const HttpPage::MakeAnswer slow = [&](const HttpPage::Request&) {
    ++busy;
    end.WaitForNotification();
    return HttpPage::Answer{.text = "made"};
  };
  auto server = MetricsServer::Start("127.0.0.1:0", fake.Sources(), {}, {{"/api/slow", slow}});
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<int> requests;
  for (int i = 0; i < 20; ++i) {
    requests.push_back(Send((*server)->port(), "GET /api/slow HTTP/1.0\r\n\r\n"));
  }
  EXPECT_THAT(Get((*server)->port(), "/livez"), HasSubstr("200 OK"));
  EXPECT_THAT(Get((*server)->port(), "/readyz"), HasSubstr("200 OK"));
  // The page of the metrics needs a place, too.
  while (busy < 12) std::this_thread::yield();
  EXPECT_THAT(Get((*server)->port()), AllOf(HasSubstr("503"), HasSubstr("Fix: ")));
  end.Notify();
  int made = 0;
  int refused = 0;
  for (const int fd : requests) {
    const std::string answer = Receive(fd);
    made += answer.ends_with("made");
    refused += answer.starts_with("HTTP/1.1 503");
  }
  EXPECT_GE(made, 12);
  EXPECT_EQ(made + refused, 20);
  EXPECT_THAT(Get((*server)->port()), HasSubstr("200 OK"));
}

TEST(SharedBodyTest, RequestsThatWaitShareWhatIsMadeAfterThem) {
  constexpr int kWaiting = 8;
  std::atomic<int> made{0};
  absl::Notification end;
  SharedBody body([&] {
    if (++made == 1) end.WaitForNotification();
    return absl::StrCat("text ", made.load(), std::string(1000, '.'));
  });
  std::shared_ptr<const HttpBody> first;
  std::thread maker([&] { first = body.Get(); });
  while (made == 0) std::this_thread::yield();
  std::vector<std::shared_ptr<const HttpBody>> got(kWaiting);
  std::vector<std::thread> threads;
  for (auto& each : got) threads.emplace_back([&each, &body] { each = body.Get(); });
  while (body.waiting() < kWaiting) std::this_thread::yield();
  end.Notify();
  maker.join();
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(first->text(), HasSubstr("text 1"));
  // The first one was begun before they came.
  EXPECT_EQ(made, 2);
  for (const auto& each : got) {
    EXPECT_THAT(each->text(), HasSubstr("text 2"));
    EXPECT_EQ(&each->Compressed(), &got[0]->Compressed());
  }
  EXPECT_THAT(body.Get()->text(), HasSubstr("text 3"));
}

TEST(SharedBodyTest, ATextIsUsedUntilItsAgeAndNotWhenItsMakingFailed) {
  int made = 0;
  SharedBody body(
      [&] {
        if (++made == 1) throw std::bad_alloc();
        return std::string("text");
      },
      std::chrono::hours(1));
  EXPECT_THROW(body.Get(), std::bad_alloc);
  const auto text = body.Get();
  EXPECT_EQ(body.Get(), text);
  EXPECT_EQ(made, 2);
}

TEST(MetricsServerTest, OtherHostNamesAreRefused) {
  FakeSources fake;
  auto server = MetricsServer::Start("127.0.0.1:0", fake.Sources(), {"gpu-7.corp"});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto get = [&](const std::string& host) {
    return Receive(
        Send((*server)->port(), absl::StrCat("GET /metrics HTTP/1.1\r\nHost: ", host, "\r\n\r\n")));
  };
  for (const char* served : {"127.0.0.1", "127.0.0.1:9464", "localhost:9464", "LOCALHOST.", "[::1]",
                             "[::1]:9464", "10.1.2.3:80", "gpu-7.corp", "GPU-7.corp:9464"}) {
    EXPECT_THAT(get(served), AllOf(HasSubstr("200 OK"), HasSubstr("resident_clients 3"))) << served;
  }
  for (const char* refused :
       {"evil.example", "evil.example:9464", "localhost.evil.example", "127.0.0.1.evil.example",
        "gpu-7.corp.evil.example", "[evil.example]", "[::1", "xgpu-7.corp", ":9464"}) {
    EXPECT_THAT(get(refused), AllOf(HasSubstr("403"), HasSubstr("--metrics_hosts"),
                                    Not(HasSubstr("resident_clients"))))
        << refused;
  }
}

TEST(MetricsServerTest, FurtherPathsHaveTheSameRules) {
  FakeSources fake;
  const HttpPage::MakeAnswer answer = [](const HttpPage::Request& request) {
    return HttpPage::Answer{.text = absl::StrCat("path ", request.path, " query ", request.query),
                            .headers = "X-Own: 1\r\n"};
  };
  auto server = MetricsServer::Start("127.0.0.1:0", fake.Sources(), {},
                                     {{"/", answer}, {"/api/one", answer}});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get((*server)->port(), "/api/one?id=7"),
              AllOf(HasSubstr("200 OK"), HasSubstr("X-Own: 1\r\n"), HasSubstr("nosniff"),
                    HasSubstr("path /api/one query id=7")));
  EXPECT_THAT(Get((*server)->port(), "/"), HasSubstr("path / query "));
  EXPECT_THAT(Get((*server)->port()), HasSubstr("resident_clients 3"));
  EXPECT_THAT(
      Receive(Send((*server)->port(), "GET /api/one HTTP/1.1\r\nHost: evil.example\r\n\r\n")),
      AllOf(HasSubstr("403"), Not(HasSubstr("path /api"))));
  for (const char* method : {"POST", "PUT", "DELETE"}) {
    EXPECT_THAT(
        Receive(Send((*server)->port(),
                     absl::StrCat(method, " /api/one HTTP/1.0\r\nContent-Length: 0\r\n\r\n"))),
        Not(HasSubstr("path /api")))
        << method;
  }
}

TEST(MetricsServerTest, PortInUseIsAnErrorThatNamesTheAddress) {
  FakeSources fake;
  auto first = MetricsServer::Start("127.0.0.1:0", fake.Sources());
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string address = absl::StrCat("127.0.0.1:", (*first)->port());
  auto second = MetricsServer::Start(address, fake.Sources());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              AllOf(HasSubstr(address), HasSubstr("Address already in use"), HasSubstr("Fix: ")));
  // The first server still answers.
  EXPECT_THAT(Get((*first)->port()), HasSubstr("200 OK"));
}

TEST(MetricsServerTest, PortIsFreeAgainAfterTheServer) {
  FakeSources fake;
  auto first = MetricsServer::Start("127.0.0.1:0", fake.Sources());
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string address = absl::StrCat("127.0.0.1:", (*first)->port());
  EXPECT_THAT(Get((*first)->port()), HasSubstr("200 OK"));
  first->reset();
  auto second = MetricsServer::Start(address, fake.Sources());
  EXPECT_TRUE(second.ok()) << second.status();
}

TEST(MetricsServerTest, AddressOfAnotherMachineIsAnError) {
  FakeSources fake;
  // 192.0.2.0/24 is reserved for documentation, so no machine has it.
  auto server = MetricsServer::Start("192.0.2.1:9464", fake.Sources());
  EXPECT_EQ(server.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("192.0.2.1:9464"));
}

TEST(MetricsServerTest, InvalidAddressesAreRefused) {
  FakeSources fake;
  for (const char* address :
       {"", "9464", ":9464", "localhost", "localhost:", "localhost:x", "localhost:65536",
        "localhost:99999999999", "127.0.0.1:1,127.0.0.1:2", "127.0.0.1:80s", "::1:80"}) {
    auto server = MetricsServer::Start(address, fake.Sources());
    EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(server.status().message()), HasSubstr("Fix: ")) << address;
  }
}

}  // namespace
}  // namespace resident
