#include "runtime/operators/registry/native_form.h"

#include <utility>

#include "absl/time/clock.h"
#include "runtime/operators/registry/operator_version.h"

namespace resident {

NativeForm::View NativeForm::view() const {
  absl::MutexLock lock(&mu_);
  return view_;
}

NativeForm::Used NativeForm::Use(bool unknown_nop) {
  absl::MutexLock lock(&mu_);
  if (code_ == nullptr || mode_.value_or(unknown_nop) != unknown_nop) return {};
  last_use_ = absl::Now();
  return {code_, uses_++ % kUsesOfComparison == 0};
}

absl::Time NativeForm::last_use() const {
  absl::MutexLock lock(&mu_);
  return last_use_;
}

std::shared_ptr<const OperatorVersion> NativeForm::Enter(State state, std::string reason) {
  view_ = {state, std::move(reason)};
  return std::exchange(code_, nullptr);
}

bool NativeForm::Begin() {
  absl::MutexLock lock(&mu_);
  if (view_.state != State::kOff && view_.state != State::kEvicted &&
      view_.state != State::kRefused) {
    return false;
  }
  Enter(State::kCompiling, "");
  return true;
}

void NativeForm::Serve(std::shared_ptr<const OperatorVersion> code, std::optional<bool> mode) {
  absl::MutexLock lock(&mu_);
  Enter(State::kServing, "");
  code_ = std::move(code);
  mode_ = mode;
  last_use_ = absl::Now();
}

void NativeForm::Refuse(std::string reason) {
  absl::MutexLock lock(&mu_);
  Enter(State::kRefused, std::move(reason));
}

bool NativeForm::Evict() {
  std::shared_ptr<const OperatorVersion> code;
  absl::MutexLock lock(&mu_);
  if (view_.state != State::kServing) return false;
  code = Enter(State::kEvicted, "");
  return true;
}

bool NativeForm::Quarantine(std::string reason) {
  std::shared_ptr<const OperatorVersion> code;
  absl::MutexLock lock(&mu_);
  if (view_.state != State::kServing && view_.state != State::kEvicted) return false;
  code = Enter(State::kQuarantined, std::move(reason));
  // A replacement engine starts without it (generation_loader.h).
  if (code != nullptr) code->state.store(VersionState::kQuarantined, std::memory_order_relaxed);
  return true;
}

bool NativeForm::WaitUntilDecided(absl::Time deadline) const {
  const auto decided = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return view_.state != State::kCompiling;
  };
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithDeadline(absl::Condition(&decided), deadline);
}

}  // namespace resident
