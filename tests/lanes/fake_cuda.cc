// A shared library with the calls of the CUDA driver that residentd_lane_cuda.c uses, for tests
// without a GPU. Its soname is that of the driver, so that the library finds it once the test has
// opened it.
//
// A stream is a thread that does what was enqueued, one after the other: it stores values, and
// waits for values, in the memory of this process that was registered, at the addresses that the
// calls returned for the device.
#include "tests/lanes/fake_cuda.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace {

constexpr int kOk = 0, kInvalidValue = 1, kNotRegistered = 713, kAlreadyRegistered = 712;
// Addresses of the device are not those of the processor.
constexpr uint64_t kDeviceOffset = uint64_t{1} << 52;

struct FakeStream {
  FakeStream() : thread([this] { Run(); }) {}
  ~FakeStream() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      ended = true;
    }
    changed.notify_all();
    thread.join();
  }
  void Enqueue(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(mutex);
    queue.push_back(std::move(work));
    changed.notify_all();
  }
  void Synchronize() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return queue.empty(); });
  }
  void Run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return ended || !queue.empty(); });
      if (queue.empty()) return;
      const std::function<void()> work = queue.front();
      lock.unlock();
      work();
      lock.lock();
      queue.pop_front();
      changed.notify_all();
    }
  }

  std::atomic<int> capturing{0};
  void* context = nullptr;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool ended = false;
  std::thread thread;
};

struct State {
  std::mutex mutex;
  std::map<FakeStream*, std::unique_ptr<FakeStream>> streams;
  std::map<char*, size_t> registered;
  int pushed = 0;
};
State& GetState() {
  static State* const state = new State;
  return *state;
}

// The processor's address of a word; null: it is not in registered memory.
uint32_t* FindWord(uint64_t device) {
  State& state = GetState();
  std::lock_guard<std::mutex> lock(state.mutex);
  char* const address = reinterpret_cast<char*>(device - kDeviceOffset);
  for (const auto& [first, bytes] : state.registered) {
    if (address >= first && address + sizeof(uint32_t) <= first + bytes) {
      return reinterpret_cast<uint32_t*>(address);
    }
  }
  return nullptr;
}

}  // namespace

extern "C" {

int cuGetErrorName(int error, const char** name) {
  *name = error == kInvalidValue ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_OF_THE_FAKE";
  return kOk;
}
int cuStreamGetCtx(void* stream, void** context) {
  *context = static_cast<FakeStream*>(stream)->context;
  return kOk;
}
int cuStreamIsCapturing(void* stream, int* status) {
  *status = static_cast<FakeStream*>(stream)->capturing;
  return kOk;
}
int cuCtxPushCurrent_v2(void*) {
  State& state = GetState();
  std::lock_guard<std::mutex> lock(state.mutex);
  ++state.pushed;
  return kOk;
}
int cuCtxPopCurrent_v2(void**) {
  State& state = GetState();
  std::lock_guard<std::mutex> lock(state.mutex);
  --state.pushed;
  return kOk;
}
int cuCtxSynchronize() {
  State& state = GetState();
  std::lock_guard<std::mutex> lock(state.mutex);
  for (const auto& [stream, owned] : state.streams) stream->Synchronize();
  return kOk;
}
int cuMemHostRegister_v2(void* address, size_t bytes, unsigned) {
  State& state = GetState();
  std::lock_guard<std::mutex> lock(state.mutex);
  return state.registered.emplace(static_cast<char*>(address), bytes).second ? kOk
                                                                             : kAlreadyRegistered;
}
int cuMemHostUnregister(void* address) {
  State& state = GetState();
  std::lock_guard<std::mutex> lock(state.mutex);
  return state.registered.erase(static_cast<char*>(address)) == 1 ? kOk : kNotRegistered;
}
int cuMemHostGetDevicePointer_v2(uint64_t* device, void* address, unsigned) {
  *device = reinterpret_cast<uint64_t>(address) + kDeviceOffset;
  return FindWord(*device) != nullptr ? kOk : kInvalidValue;
}
int cuStreamWriteValue32_v2(void* stream, uint64_t device, uint32_t value, unsigned flags) {
  uint32_t* const word = FindWord(device);
  if (word == nullptr || flags != 0) return kInvalidValue;
  static_cast<FakeStream*>(stream)->Enqueue(
      [word, value] { __atomic_store_n(word, value, __ATOMIC_RELEASE); });
  return kOk;
}
int cuStreamWaitValue32_v2(void* stream, uint64_t device, uint32_t value, unsigned flags) {
  uint32_t* const word = FindWord(device);
  if (word == nullptr || flags != 0) return kInvalidValue;
  static_cast<FakeStream*>(stream)->Enqueue([word, value] {
    while (static_cast<int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0) {
      std::this_thread::yield();
    }
  });
  return kOk;
}

void* FakeCudaCreateStream(void* context) {
  auto stream = std::make_unique<FakeStream>();
  stream->context = context;
  FakeStream* const created = stream.get();
  State& state = GetState();
  std::lock_guard<std::mutex> lock(state.mutex);
  state.streams[created] = std::move(stream);
  return created;
}
void FakeCudaDestroyStream(void* stream) {
  std::unique_ptr<FakeStream> ended;
  State& state = GetState();
  std::lock_guard<std::mutex> lock(state.mutex);
  const auto found = state.streams.find(static_cast<FakeStream*>(stream));
  ended = std::move(found->second);
  state.streams.erase(found);
}
void FakeCudaSetCapturing(void* stream, int capturing) {
  static_cast<FakeStream*>(stream)->capturing = capturing;
}
void FakeCudaEnqueue(void* stream, void (*work)(void*), void* argument) {
  static_cast<FakeStream*>(stream)->Enqueue([work, argument] { work(argument); });
}
void FakeCudaSynchronize(void* stream) { static_cast<FakeStream*>(stream)->Synchronize(); }
int FakeCudaRegistrations() {
  State& state = GetState();
  std::lock_guard<std::mutex> lock(state.mutex);
  return static_cast<int>(state.registered.size()) + 1000 * state.pushed;
}
}
