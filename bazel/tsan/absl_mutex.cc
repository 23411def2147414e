// Annotates the system's absl::Mutex and absl::Notification for ThreadSanitizer.
//
// The system's libabsl_synchronization.so is not instrumented, so ThreadSanitizer does
// not see the ordering by its locks and notifications, and would report all data that they guard.
// The linker prefers the definitions in this file to the library's: each calls the library's
// function and annotates the ordering for ThreadSanitizer. Conditions (absl::Condition) run
// under the lock inside the library, in any thread that currently holds it; their reads are
// ignored.
//
// Linked into every target that uses Abseil, only with `--config=tsan`.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

namespace {

// Returns the library's definition of a function that this file also defines. `name` is its
// linker name.
template <typename Function>
Function* Next(const char* name) {
  void* next = dlsym(RTLD_NEXT, name);
  if (next == nullptr) {
    std::fprintf(stderr, "absl_mutex.cc: no %s. Fix: use the linker names of this Abseil\n", name);
    std::abort();
  }
  return reinterpret_cast<Function*>(next);
}

}  // namespace

// Calls the library's NAME, a member of absl::Mutex or absl::CondVar.
#define LIBRARY(name, result, ...) \
  static auto* const library = Next<result(__VA_ARGS__)>("_ZN4absl7debian3" name)

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  LIBRARY("5Mutex4LockEv", void, Mutex*);
  library(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  LIBRARY("5Mutex6UnlockEv", void, Mutex*);
  __tsan_release(this);
  library(this);
}

bool Mutex::TryLock() {
  LIBRARY("5Mutex7TryLockEv", bool, Mutex*);
  const bool locked = library(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  LIBRARY("5Mutex10ReaderLockEv", void, Mutex*);
  library(this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  LIBRARY("5Mutex12ReaderUnlockEv", void, Mutex*);
  __tsan_release(this);
  library(this);
}

bool Mutex::ReaderTryLock() {
  LIBRARY("5Mutex13ReaderTryLockEv", bool, Mutex*);
  const bool locked = library(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::LockWhen(const Condition& condition) {
  LIBRARY("5Mutex8LockWhenERKNS0_9ConditionE", void, Mutex*, const Condition&);
  library(this, condition);
  __tsan_acquire(this);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  LIBRARY("5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE", bool, Mutex*,
          const Condition&, Duration);
  const bool held = library(this, condition, timeout);
  __tsan_acquire(this);  // The lock is held in both cases.
  return held;
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  LIBRARY("5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE", bool, Mutex*,
          const Condition&, Time);
  const bool held = library(this, condition, deadline);
  __tsan_acquire(this);
  return held;
}

void Mutex::Await(const Condition& condition) {
  LIBRARY("5Mutex5AwaitERKNS0_9ConditionE", void, Mutex*, const Condition&);
  __tsan_release(this);
  library(this, condition);
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  LIBRARY("5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE", bool, Mutex*,
          const Condition&, Duration);
  __tsan_release(this);
  const bool held = library(this, condition, timeout);
  __tsan_acquire(this);
  return held;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  LIBRARY("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE", bool, Mutex*, const Condition&,
          Time);
  __tsan_release(this);
  const bool held = library(this, condition, deadline);
  __tsan_acquire(this);
  return held;
}

void CondVar::Wait(Mutex* mutex) {
  LIBRARY("7CondVar4WaitEPNS0_5MutexE", void, CondVar*, Mutex*);
  __tsan_release(mutex);
  library(this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  LIBRARY("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE", bool, CondVar*, Mutex*, Duration);
  __tsan_release(mutex);
  const bool timed_out = library(this, mutex, timeout);
  __tsan_acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  LIBRARY("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE", bool, CondVar*, Mutex*, Time);
  __tsan_release(mutex);
  const bool timed_out = library(this, mutex, deadline);
  __tsan_acquire(mutex);
  return timed_out;
}

bool Condition::Eval() const {
  static auto* const library = Next<bool(const Condition*)>("_ZNK4absl7debian39Condition4EvalEv");
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  const bool value = library(this);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  return value;
}

void Notification::Notify() {
  LIBRARY("12Notification6NotifyEv", void, Notification*);
  __tsan_release(this);
  library(this);
}

void Notification::WaitForNotification() const {
  static auto* const library =
      Next<void(const Notification*)>("_ZNK4absl7debian312Notification19WaitForNotificationEv");
  library(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static auto* const library = Next<bool(const Notification*, Duration)>(
      "_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE");
  const bool notified = library(this, timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

ABSL_NAMESPACE_END
}  // namespace absl
