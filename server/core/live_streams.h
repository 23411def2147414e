// LiveStreams: streams that normally last until their client ends them. They are registered so that
// they can be ended when the daemon stops or a credential is withdrawn.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_SERVER_CORE_LIVE_STREAMS_H_
#define RESIDENT_SERVER_CORE_LIVE_STREAMS_H_

#include <cassert>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace resident {

class LiveStream {
 public:
  virtual ~LiveStream() = default;
  // Ends the stream with `status` once its queued answers have been sent. Idempotent.
  virtual void End(const absl::Status& status) = 0;
  // Whether a drain ends the stream at once instead of waiting for it.
  virtual bool ends_at_drain() const { return false; }
  // Whether other streams of its client need this one.
  virtual bool is_session() const { return false; }
};

class LiveStreams {
 public:
  // Whether the stream's caller would still be admitted.
  using Recheck = std::function<absl::Status()>;

  // Without `recheck`, EndRefused does not end the stream.
  void Add(const std::shared_ptr<LiveStream>& stream, Recheck recheck = nullptr) {
    absl::MutexLock lock(&mu_);
    assert(!streams_.contains(stream.get()));
    streams_[stream.get()] = {stream, std::move(recheck)};
  }
  void Remove(const LiveStream* stream) {
    absl::MutexLock lock(&mu_);
    streams_.erase(stream);
  }
  void EndAll(const absl::Status& status) {
    for (const auto& [stream, recheck] : Live()) stream->End(status);
  }
  void EndAtDrain(const absl::Status& status) {
    for (const auto& [stream, recheck] : Live()) {
      if (stream->ends_at_drain()) stream->End(status);
    }
  }
  // Ends the streams whose callers would no longer be admitted, with the reason. Sessions are the
  // last: a stream whose session ends before it could still end well.
  void EndRefused() {
    const auto live = Live();
    for (const bool sessions : {false, true}) {
      for (const auto& [stream, recheck] : live) {
        if (recheck == nullptr || stream->is_session() != sessions) continue;
        const absl::Status status = recheck();
        if (!status.ok()) stream->End(status);
      }
    }
  }

 private:
  struct Entry {
    std::weak_ptr<LiveStream> stream;
    Recheck recheck;
  };
  std::vector<std::pair<std::shared_ptr<LiveStream>, Recheck>> Live() {
    std::vector<std::pair<std::shared_ptr<LiveStream>, Recheck>> live;
    absl::MutexLock lock(&mu_);
    for (const auto& [key, entry] : streams_) {
      if (auto held = entry.stream.lock()) live.emplace_back(std::move(held), entry.recheck);
    }
    return live;
  }

  absl::Mutex mu_;
  absl::flat_hash_map<const LiveStream*, Entry> streams_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CORE_LIVE_STREAMS_H_
