// ConstantCache: what is computed from the weights of a model in the same way for each of its
// graphs, so that it is computed once.
//
// Thread safety: thread-safe.
//
//   const Constant transposed = cache.Get(key, [&] { return Transpose(weight); });
#ifndef RESIDENT_SERVER_ONNX_VALUES_CONSTANT_CACHE_H_
#define RESIDENT_SERVER_ONNX_VALUES_CONSTANT_CACHE_H_

#include <optional>
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

  // The transposed matrix of this key, which is made of `matrix` if there is none.
  Constant GetTransposed(const std::string& key, const Constant& matrix,
                         absl::FunctionRef<Constant()> make) {
    {
      const absl::MutexLock lock(&mutex_);
      const auto found = constants_.find(key);
      if (found != constants_.end()) return found->second;
    }
    const Constant made = make();
    const absl::MutexLock lock(&mutex_);
    const Constant& kept = constants_.emplace(key, made).first->second;
    originals_.emplace(kept.bytes.get(), matrix);
    return kept;
  }
  // The matrix of which GetTransposed has made this one; nullopt: it has not.
  std::optional<Constant> FindOriginal(const Constant& transposed) {
    const absl::MutexLock lock(&mutex_);
    const auto found = originals_.find(transposed.bytes.get());
    if (found == originals_.end()) return std::nullopt;
    const Sizes64& shape = found->second.shape;
    if (transposed.shape != Sizes64{shape[1], shape[0]}) return std::nullopt;
    return found->second;
  }

 private:
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Constant> constants_ ABSL_GUARDED_BY(mutex_);
  // By the bytes of a constant that is kept.
  absl::flat_hash_map<const std::string*, Constant> originals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_VALUES_CONSTANT_CACHE_H_
