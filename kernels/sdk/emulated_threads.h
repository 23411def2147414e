// This header has the threads of an emulated block (emulated_block.h). They are contexts of one
// thread of the host, which switches from one to the next where they wait for each other. A switch
// costs less than a microsecond, so that a block of 256 threads is as fast to emulate on two cores
// as on many.
//
// A thread runs until it waits. Which of the threads that can run is next is random, in the same
// way in each process, so that code which needs a barrier and has none gives wrong results in some
// order. For ThreadSanitizer each context is a thread, and only barriers order their accesses: it
// reports a missing one in any order.
//
// Thread safety: for one thread of the host.
#ifndef RESIDENT_KERNELS_SDK_EMULATED_THREADS_H_
#define RESIDENT_KERNELS_SDK_EMULATED_THREADS_H_

#include <sys/mman.h>
#include <ucontext.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#if defined(__has_feature)
#define RESIDENT_HAS_FEATURE(feature) __has_feature(feature)
#else
#define RESIDENT_HAS_FEATURE(feature) 0
#endif
#if defined(__SANITIZE_THREAD__) || RESIDENT_HAS_FEATURE(thread_sanitizer)
#include <sanitizer/tsan_interface.h>
#define RESIDENT_THREAD_SANITIZER 1
#else
#define RESIDENT_THREAD_SANITIZER 0
#endif
#if defined(__SANITIZE_ADDRESS__) || RESIDENT_HAS_FEATURE(address_sanitizer)
#include <sanitizer/common_interface_defs.h>
#define RESIDENT_ADDRESS_SANITIZER 1
#else
#define RESIDENT_ADDRESS_SANITIZER 0
#endif

// Bookkeeping of the switches, which ThreadSanitizer must not take for accesses of the threads.
#if RESIDENT_THREAD_SANITIZER
#define RESIDENT_SWITCHING __attribute__((no_sanitize("thread"), noinline))
#else
#define RESIDENT_SWITCHING
#endif

namespace resident::emulated {

// Establishes order for ThreadSanitizer: what was done before a Release happens before what is done
// after an Acquire of the same object.
inline void Release([[maybe_unused]] void* object) {
#if RESIDENT_THREAD_SANITIZER
  __tsan_release(object);
#endif
}
inline void Acquire([[maybe_unused]] void* object) {
#if RESIDENT_THREAD_SANITIZER
  __tsan_acquire(object);
#endif
}

template <unsigned kMaxThreads>
class Threads {
 public:
  // Threads that wait for each other: [first, first + count).
  struct Group {
    unsigned first = 0;
    unsigned count = 0;
    unsigned arrived = 0;
    // Of the next arrivals, for ThreadSanitizer: those of one turn must not be ordered before what
    // follows the turn before it.
    unsigned turn = 0;
    char orders[2] = {};
  };

  Threads() = default;
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  // Calls run() in each of `count` threads, and returns when all have returned.
  void Run(unsigned count, const std::function<void()>& run) {
    while (made_ < count) Make(made_++);
    run_ = &run;
    Begin(count);
    Release(&begins_);
    SwitchTo(TakeReady());
    Acquire(&ends_);
    run_ = nullptr;
  }

  // Index of the calling thread.
  unsigned current() const { return current_.load(std::memory_order_relaxed); }

  // Waits until all threads of the group have come.
  void Wait(Group& group) {
    char* const order = Arrive(group);
    Release(order);
    SwitchTo(TakeReady());
    Acquire(order);
  }

  // An object of the calling thread, as a thread_local variable: made at its first use in a block,
  // destroyed when the thread returns.
  template <typename T>
  T& Local() {
    static char key;
    auto& locals = contexts_[current()].locals;
    for (auto& [its_key, object] : locals) {
      if (its_key == &key) return *static_cast<T*>(object.get());
    }
    locals.emplace_back(&key, std::make_shared<T>());
    return *static_cast<T*>(locals.back().second.get());
  }

 private:
  static constexpr size_t kStackBytes = size_t{128} << 10;
  static constexpr size_t kGuardBytes = 4096;
  // Index of the thread of the host that called Run.
  static constexpr unsigned kCaller = kMaxThreads;

  struct Context {
    ucontext_t machine;
    // Of ThreadSanitizer.
    void* fiber = nullptr;
    // Of AddressSanitizer.
    void* fake_stack = nullptr;
    const void* stack = nullptr;
    size_t stack_bytes = 0;
    std::vector<std::pair<const void*, std::shared_ptr<void>>> locals;
  };

  [[noreturn]] static void Fail(const char* why) {
    std::fprintf(stderr, "emulated block: %s\n", why);
    std::abort();
  }

  // Makes a context that waits for its first block.
  void Make(unsigned thread) {
    Context& context = contexts_[thread];
    void* const memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) Fail("no memory for a stack");
    if (mprotect(memory, kGuardBytes, PROT_NONE) != 0) Fail("mprotect of a stack's end failed");
    context.stack = static_cast<char*>(memory) + kGuardBytes;
    context.stack_bytes = kStackBytes;
    if (getcontext(&context.machine) != 0) Fail("getcontext failed");
    context.machine.uc_stack.ss_sp = static_cast<char*>(memory) + kGuardBytes;
    context.machine.uc_stack.ss_size = kStackBytes;
    context.machine.uc_link = nullptr;
    // The arguments of a context's function are ints.
    const auto address = reinterpret_cast<unsigned long long>(this);
    makecontext(&context.machine, reinterpret_cast<void (*)()>(&Main), 2,
                static_cast<unsigned>(address), static_cast<unsigned>(address >> 32));
#if RESIDENT_THREAD_SANITIZER
    context.fiber = __tsan_create_fiber(0);
#endif
  }

  // Runs in each context, for each block in which there is such a thread.
  static void Main(unsigned low, unsigned high) {
    auto* const self =
        reinterpret_cast<Threads*>(low | static_cast<unsigned long long>(high) << 32);
    self->Arrived();
    for (;;) {
      Acquire(&self->begins_);
      (*self->run_)();
      self->contexts_[self->current()].locals.clear();
      Release(&self->ends_);
      self->SwitchTo(self->End());
    }
  }

  RESIDENT_SWITCHING void Begin(unsigned count) {
    running_ = count;
    ready_count_ = 0;
    for (unsigned thread = 0; thread < count; ++thread) AddReady(thread);
  }

  // The calling thread has come. Returns what orders it before those that wait with it.
  RESIDENT_SWITCHING char* Arrive(Group& group) {
    char* const order = &group.orders[group.turn];
    if (++group.arrived == group.count) {
      group.arrived = 0;
      group.turn ^= 1;
      for (unsigned i = 0; i < group.count; ++i) AddReady(group.first + i);
    }
    return order;
  }

  // The calling thread has returned. Returns which runs next.
  RESIDENT_SWITCHING unsigned End() { return --running_ == 0 ? kCaller : TakeReady(); }

  // Puts a thread behind those that are ready, and exchanges it with one of them.
  RESIDENT_SWITCHING void AddReady(unsigned thread) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    const unsigned other = static_cast<unsigned>((random_ >> 33) % (ready_count_ + 1));
    ready_[ready_count_++] = ready_[other];
    ready_[other] = thread;
  }
  RESIDENT_SWITCHING unsigned TakeReady() {
    if (ready_count_ == 0) Fail("each thread waits at a barrier that others will not reach");
    return ready_[--ready_count_];
  }

  // Runs `thread`, which may be the calling one; returns when the calling one is run again.
  RESIDENT_SWITCHING void SwitchTo(unsigned thread) {
    const unsigned mine = current_.load(std::memory_order_relaxed);
    if (thread == mine) return;
    Context& from = contexts_[mine];
    Context& to = contexts_[thread];
    current_.store(thread, std::memory_order_relaxed);
#if RESIDENT_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_bytes);
    from_ = mine;
#endif
#if RESIDENT_THREAD_SANITIZER
    if (mine == kCaller) from.fiber = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to.fiber, __tsan_switch_to_fiber_no_sync);
#endif
    swapcontext(&from.machine, &to.machine);
    Arrived();
  }

  // Called first after each switch, by the thread to which it was made.
  RESIDENT_SWITCHING void Arrived() {
#if RESIDENT_ADDRESS_SANITIZER
    Context& from = contexts_[from_];
    __sanitizer_finish_switch_fiber(contexts_[current()].fake_stack, &from.stack,
                                    &from.stack_bytes);
#endif
  }

  std::array<Context, kMaxThreads + 1> contexts_;
  unsigned made_ = 0;
  std::atomic<unsigned> current_ = kCaller;
  const std::function<void()>* run_ = nullptr;
  unsigned running_ = 0;
  // Threads that can run; the last one is next.
  std::array<unsigned, kMaxThreads> ready_;
  unsigned ready_count_ = 0;
  unsigned long long random_ = 1;
  [[maybe_unused]] unsigned from_ = kCaller;
  // For ThreadSanitizer: the beginnings and the ends of blocks.
  char begins_ = 0;
  char ends_ = 0;
};

}  // namespace resident::emulated

#endif  // RESIDENT_KERNELS_SDK_EMULATED_THREADS_H_
