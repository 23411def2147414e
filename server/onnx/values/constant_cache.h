// ConstantCache: what is computed from the weights of a model in the same way for each of its
// graphs, so that it is computed once.
//
// Thread safety: thread-safe.
//
//   const Constant transposed = cache.Get(key, [&] { return Transpose(weight); });
#ifndef RESIDENT_SERVER_ONNX_VALUES_CONSTANT_CACHE_H_
#define RESIDENT_SERVER_ONNX_VALUES_CONSTANT_CACHE_H_

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "server/onnx/values/constant.h"

namespace resident::onnx {

class ConstantCache {
 public:
  // The constant of this key, which is made if there is none. It has its hash.
  Constant Get(const std::string& key, absl::FunctionRef<Constant()> make) {
    {
      const absl::MutexLock lock(&mutex_);
      const auto found = constants_.find(key);
      if (found != constants_.end()) return found->second;
    }
    Constant made = make();
    made.content_hash = HashContent(made);
    const absl::MutexLock lock(&mutex_);
    return constants_.emplace(key, std::move(made)).first->second;
  }

 private:
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Constant> constants_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_VALUES_CONSTANT_CACHE_H_
