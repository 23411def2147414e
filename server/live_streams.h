// LiveStreams: streams that last until their client ends them, so that a daemon that
// stops can end them instead.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_SERVER_LIVE_STREAMS_H_
#define RESIDENT_SERVER_LIVE_STREAMS_H_

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace resident {

class LiveStream {
 public:
  virtual ~LiveStream() = default;
  // Ends the stream with `status` once what is answered has been sent. Idempotent.
  virtual void End(const absl::Status& status) = 0;
};

class LiveStreams {
 public:
  void Add(const std::shared_ptr<LiveStream>& stream) {
    absl::MutexLock lock(&mu_);
    streams_[stream.get()] = stream;
  }
  void Remove(const LiveStream* stream) {
    absl::MutexLock lock(&mu_);
    streams_.erase(stream);
  }
  void EndAll(const absl::Status& status) {
    std::vector<std::shared_ptr<LiveStream>> live;
    {
      absl::MutexLock lock(&mu_);
      for (const auto& [key, stream] : streams_) {
        if (auto held = stream.lock()) live.push_back(std::move(held));
      }
    }
    for (const auto& stream : live) stream->End(status);
  }

 private:
  absl::Mutex mu_;
  absl::flat_hash_map<const LiveStream*, std::weak_ptr<LiveStream>> streams_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_LIVE_STREAMS_H_
