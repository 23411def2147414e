#include "runtime/engine/control/engine_server.h"

#include <sys/prctl.h>
#include <sys/socket.h>

#include "runtime/base/process/frames.h"
#include "runtime/engine/control/engine_messages.h"

namespace resident {

EngineServer::EngineServer(int control_socket, EngineService* service,
                           std::function<void()> on_closed)
    : socket_(control_socket), service_(service), on_closed_(std::move(on_closed)) {
  for (Lane& lane : lanes_) {
    lane.thread = std::thread([this, &lane] { ServeRequests(lane); });
  }
  reader_ = std::thread([this] { ReadRequests(); });
}

EngineServer::~EngineServer() {
  shutdown(socket_.get(), SHUT_RDWR);
  reader_.join();
  for (Lane& lane : lanes_) lane.thread.join();
}

void EngineServer::ReadRequests() {
  prctl(PR_SET_NAME, "engine-read");
  while (true) {
    Received received;
    const auto message =
        ReadFrame(socket_.get(), kMaxControlMessageBytes, WaitForever, &received.fd);
    if (!message.ok() || !received.request.ParseFromString(*message)) break;
    const auto found = EngineService::FindLane(received.request);
    if (!found.has_value()) {
      Respond(service_->Serve(received.request, received.fd.get()));
      continue;
    }
    Lane& lane = lanes_[static_cast<size_t>(*found)];
    absl::MutexLock lock(&lane.mu);
    lane.requests.push_back(std::move(received));
  }
  for (Lane& lane : lanes_) {
    absl::MutexLock lock(&lane.mu);
    lane.ended = true;
  }
  if (on_closed_) on_closed_();
}

void EngineServer::ServeRequests(Lane& lane) {
  prctl(PR_SET_NAME, "engine-serve");
  const auto due = [&lane]() ABSL_SHARED_LOCKS_REQUIRED(lane.mu) {
    return !lane.requests.empty() || lane.ended;
  };
  while (true) {
    Received received;
    {
      absl::MutexLock lock(&lane.mu);
      lane.mu.Await(absl::Condition(&due));
      if (lane.requests.empty()) return;
      received = std::move(lane.requests.front());
      lane.requests.pop_front();
    }
    Respond(service_->Serve(received.request, received.fd.get()));
  }
}

void EngineServer::Respond(const internal::EngineResponse& response) {
  absl::MutexLock lock(&write_mu_);
  // An error is ignored: the front end has ended and needs no response.
  WriteFrame(socket_.get(), response.SerializeAsString(), WaitForever).IgnoreError();
}

}  // namespace resident
