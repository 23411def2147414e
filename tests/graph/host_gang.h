// A gang whose members are threads of the host, for tests of GangWalk.
//
// The clock is not that of the host: each look at it takes kTickNs. So a budget is a number of
// looks, and a quantum ends at a random place however fast the machine is. A member that waits
// without end fails the process.
//
// Thread safety: quanta may be executed at the same time if they share nothing.
//
//   const u32 status = RunGang(descriptor, workers, [](u32 rank) { ... },
//                              [&](const GangCall& call) { ...; return 0u; });
#ifndef RESIDENT_TESTS_GRAPH_HOST_GANG_H_
#define RESIDENT_TESTS_GRAPH_HOST_GANG_H_

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/graph/gang_walk.h"
#include "kernels/graph/graph_task.h"

namespace resident::testing {

inline constexpr u64 kTickNs = 1000;

// The Platform of GangWalk.
class HostMember {
 public:
  static constexpr u32 kLanes = 1;

  static u32 Lane() { return 0; }
  static void Sync() {}
  static bool All(bool value) { return value; }
  template <typename T>
  static T First(T value) {
    return value;
  }

  template <typename T>
  static T Load(const T* from) {
    T value;
    __atomic_load(from, &value, __ATOMIC_RELAXED);
    return value;
  }
  static u32 LoadAcquire(const u32* from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }
  static void StoreRelease(u32* to, u32 value) { __atomic_store_n(to, value, __ATOMIC_RELEASE); }
  static void AddRelease(u32* to, u32 value) { __atomic_fetch_add(to, value, __ATOMIC_RELEASE); }
  static void Add(u64* to, u64 value) { __atomic_fetch_add(to, value, __ATOMIC_RELAXED); }
  static u32 FetchAdd(u32* to, u32 value) {
    return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
  }
  static bool Exchange(u32* at, u32 expected, u32 desired) {
    return __atomic_compare_exchange_n(at, &expected, desired, /*weak=*/false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED);
  }
  template <typename T>
  static T LoadHost(const T* from) {
    return Load(from);
  }

  static u64 Clock() { return kTickNs * looks_.fetch_add(1, std::memory_order_relaxed); }

  void Wait(u32 polls) {
    if (polls > kMaxPolls) {
      std::fputs("a member of a gang waits without end\n", stderr);
      std::abort();
    }
    std::this_thread::yield();
  }

  bool TakesPages() const { return takes_pages; }
  InputState InputsOfTurn() const { return inputs; }

  bool takes_pages = false;
  InputState inputs = InputState::kAwaited;

 private:
  static constexpr u32 kMaxPolls = 20'000'000;

  static inline std::atomic<u64> looks_{1};
};

// A node's chunks that a member executes: `first_chunk`, and each `stride`-th one after it.
struct GangCall {
  u32 rank = 0;
  u32 node = 0;
  u32 operator_slot = 0;
  u32 argument_count = 0;
  u32 step = 0;  // Of the quantum.
  u32 first_chunk = 0;
  u32 chunks = 0;
  u32 stride = 0;
  // Whether the operator was started before its inputs were ready.
  bool early = false;
  // Of a node whose operator takes pages; 0: it does not.
  u32 stream = 0;
  StreamShare pages = {};
  u32 pages_before = 0;
  ArgumentBlock arguments;
};

// A member that has prepared its next node executes it. `execute`: executes the chunks of a call;
// returns their CompletionStatus | detail << 16. False: the member must leave.
template <typename Execute>
bool ExecuteNext(GangWalk<HostMember>& walk, HostMember& member, const GangMemory& memory, u32 rank,
                 const Execute& execute) {
  GangCall call;
  u32* signal = nullptr;
  // What an operator that takes pages does before it begins.
  const auto await_inputs = [&] {
    signal = walk.turn().signals != 0 ? walk.signal() : nullptr;
    member.inputs = InputState::kReady;
    const u32* const counter = walk.counter();
    const u32 target = walk.target();
    for (u32 polls = 0; counter != nullptr; ++polls) {
      if (static_cast<i32>(HostMember::LoadAcquire(counter) - target) >= 0) break;
      if (HostMember::Load(walk.leave()) != 0) {
        member.inputs = InputState::kCancelled;
        break;
      }
      member.Wait(polls);
    }
  };
  const auto take = [&] {
    call = {rank,
            walk.node(),
            walk.operator_slot(),
            walk.arguments(),
            walk.step(),
            walk.first_chunk(),
            walk.chunks(),
            walk.stride(),
            walk.starts_early(),
            walk.has_turn() ? walk.turn().stream : 0,
            walk.turn().pages,
            walk.turn().pages_before,
            memory.arguments};
    if (walk.starts_early() && call.stream != 0) await_inputs();
  };
  if (walk.starts_early()) take();
  while (!walk.Next()) {
    if (walk.leaves()) return false;
    walk.Prepare();
    if (walk.starts_early()) take();
  }
  if (!call.early) take();
  const u64 begin_ns = HostMember::Clock();
  // An engine prepares the next node at any time during this one.
  const bool prepares_first = (call.node + rank) % 2 == 0;
  if (prepares_first) walk.Prepare();
  const u32 status_and_detail = execute(call);
  if (status_and_detail == 0 && call.stream != 0 && signal != nullptr) {
    HostMember::AddRelease(signal, 1);
  }
  const u64 end_ns = HostMember::Clock();
  if (!prepares_first) walk.Prepare();
  walk.Finish(status_and_detail, begin_ns, end_ns);
  return true;
}

// Executes a quantum, as the engine does, with a thread for each member, which first calls `start`.
// `takes_pages`: whether the members take matrices from streams. Returns the status of the quantum.
template <typename Start, typename Execute>
u32 RunGang(const GraphDescriptor& descriptor, u32 workers, const Start& start,
            const Execute& execute, bool takes_pages = false) {
  enum Ready : u32 { kNotReady, kOpen, kRefused };
  std::atomic<u32> ready{kNotReady};
  std::atomic<u32> left{0};
  u32 status_and_detail = 0;
  std::vector<std::thread> members;
  for (u32 rank = 0; rank < descriptor.gang; ++rank) {
    members.emplace_back([&, rank] {
      start(rank);
      HostMember member;
      member.takes_pages = takes_pages;
      const auto memory = std::make_unique<GangMemory>();
      GangWalk<HostMember> walk(member, descriptor, rank, workers, memory.get());
      if (rank == 0) {
        ready.store(walk.Open() ? kOpen : kRefused, std::memory_order_release);
      }
      for (u32 polls = 0; ready.load(std::memory_order_acquire) == kNotReady; ++polls) {
        member.Wait(polls);
      }
      const bool open = ready.load(std::memory_order_relaxed) == kOpen;
      if (open) {
        walk.Join();
        walk.Prepare();
        while (ExecuteNext(walk, member, *memory, rank, execute)) {
        }
        walk.Save();
      }
      if (left.fetch_add(1, std::memory_order_acq_rel) + 1 == descriptor.gang) {
        status_and_detail = open ? walk.Conclude() : walk.Refuse();
      }
    });
  }
  for (std::thread& member : members) member.join();
  return status_and_detail;
}

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GRAPH_HOST_GANG_H_
