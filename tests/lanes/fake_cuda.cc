// A shared library with the calls of the CUDA driver that libresidentd_lane uses, for tests without
// a GPU. Its soname is that of the driver, so that the library finds it once the test has opened
// it.
//
// Device memory is a memory object (memfd), its handle and its descriptors are descriptors of that,
// and it is mapped into this process, so that a test can write and read it.
//
// A stream is a thread that does what was enqueued, one after the other: it stores values, and
// waits for values, in the memory of this process that was registered, at the addresses that the
// calls returned for the device.
#include "tests/lanes/fake_cuda.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr int kOk = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidDevice = 101,
              kNotRegistered = 713, kAlreadyRegistered = 712;
constexpr int kDevices = 2;
constexpr size_t kGranularity = 2 << 20;
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
  // Memory, ranges of addresses and mappings that exist, and which call fails: 0 for none.
  int memories = 0, reservations = 0, mappings = 0, accesses = 0;
  int fail_at = 0;
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

// Adds to a count of things that exist, unless the call is to fail.
int Count(int State::*count, int change) {
  State& state = GetState();
  std::lock_guard<std::mutex> lock(state.mutex);
  if (change > 0 && state.fail_at > 0 && --state.fail_at == 0) return kOutOfMemory;
  state.*count += change;
  return kOk;
}

// As in cuda.h.
struct Location {
  int type;
  int id;
};
struct Properties {
  int type;
  int handle_types;
  Location location;
};
struct Access {
  Location location;
  int flags;
};

int CheckProperties(const Properties& properties) {
  if (properties.type != 1 || properties.handle_types != 1 || properties.location.type != 1) {
    return kInvalidValue;
  }
  return properties.location.id < kDevices ? kOk : kInvalidDevice;
}

// Maps `handle`, or nothing if it is below 0, at addresses that were reserved.
int MapAt(uint64_t address, size_t bytes, int handle) {
  void* const at = reinterpret_cast<void*>(address);
  const int flags =
      MAP_FIXED | (handle < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED);
  return mmap(at, bytes, PROT_NONE, flags, handle, 0) == at ? kOk : kInvalidValue;
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
  std::vector<FakeStream*> streams;
  {
    std::lock_guard<std::mutex> lock(state.mutex);
    for (const auto& [stream, owned] : state.streams) streams.push_back(stream);
  }
  for (FakeStream* const stream : streams) stream->Synchronize();
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

int cuInit(unsigned) { return kOk; }
int cuCtxGetCurrent(void** context) {
  *context = &GetState();  // Any address.
  return kOk;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < kDevices ? kOk : kInvalidDevice;
}
int cuDeviceGetUuid_v2(void* uuid, int device) {
  memset(uuid, device + 1, 16);
  return kOk;
}
int cuMemGetAllocationGranularity(size_t* bytes, const Properties* properties, int) {
  *bytes = kGranularity;
  return CheckProperties(*properties);
}
int cuMemCreate(unsigned long long* handle, size_t bytes, const Properties* properties,
                unsigned long long) {
  if (bytes % kGranularity != 0 || CheckProperties(*properties) != kOk) return kInvalidValue;
  if (const int error = Count(&State::memories, 1)) return error;
  const int memory = memfd_create("device", MFD_CLOEXEC);
  *handle = static_cast<unsigned long long>(memory);
  return ftruncate(memory, static_cast<off_t>(bytes)) == 0 ? kOk : kOutOfMemory;
}
int cuMemRelease(unsigned long long handle) {
  return close(static_cast<int>(handle)) == 0 ? Count(&State::memories, -1) : kInvalidValue;
}
int cuMemAddressReserve(uint64_t* address, size_t bytes, size_t, uint64_t, unsigned long long) {
  if (const int error = Count(&State::reservations, 1)) return error;
  void* const at =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *address = reinterpret_cast<uint64_t>(at);
  return at == MAP_FAILED ? kOutOfMemory : kOk;
}
int cuMemAddressFree(uint64_t address, size_t bytes) {
  munmap(reinterpret_cast<void*>(address), bytes);
  return Count(&State::reservations, -1);
}
int cuMemMap(uint64_t address, size_t bytes, size_t, unsigned long long handle,
             unsigned long long) {
  if (const int error = Count(&State::mappings, 1)) return error;
  return MapAt(address, bytes, static_cast<int>(handle));
}
int cuMemUnmap(uint64_t address, size_t bytes) {
  Count(&State::mappings, -1);
  return MapAt(address, bytes, -1);
}
int cuMemSetAccess(uint64_t address, size_t bytes, const Access* access, size_t count) {
  if (count != 1 || access->flags != 3 || access->location.type != 1) return kInvalidValue;
  if (const int error = Count(&State::accesses, 1)) return error;
  return mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE) == 0
             ? kOk
             : kInvalidValue;
}
int cuMemExportToShareableHandle(void* to, unsigned long long handle, int type,
                                 unsigned long long) {
  const int descriptor = dup(static_cast<int>(handle));
  memcpy(to, &descriptor, sizeof(descriptor));
  return type == 1 && descriptor >= 0 ? kOk : kInvalidValue;
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
int FakeCudaAllocations() {
  State& state = GetState();
  std::lock_guard<std::mutex> lock(state.mutex);
  return state.memories + state.reservations + state.mappings;
}
void FakeCudaFailAt(int call) {
  State& state = GetState();
  std::lock_guard<std::mutex> lock(state.mutex);
  state.fail_at = call;
}
}
