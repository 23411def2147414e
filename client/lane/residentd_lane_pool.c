/* An allocator of device memory that the daemon can import: each allocation is made with
 * cuMemCreate, so that there is a descriptor of it.
 *
 * A caller that keeps addresses of segments must notice that one was freed before the address is
 * used again. So the id is in the list, and `changes` has risen, before the address is given back.
 *
 * The mutex is not held during calls that may wait for the device, because the thread that submits
 * what the device waits for may call pool_find. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/lane/lane_state.h"

enum {
  kCudaOk = 0,
  kPinned = 1,           /* CU_MEM_ALLOCATION_TYPE_PINNED */
  kDescriptor = 1,       /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
  kDevice = 1,           /* CU_MEM_LOCATION_TYPE_DEVICE */
  kReadWrite = 3,        /* CU_MEM_ACCESS_FLAGS_PROT_READWRITE */
  kGranularityBytes = 0, /* CU_MEM_ALLOC_GRANULARITY_MINIMUM */
  kMaxSegments = 65536,
};

/* The driver's structures. */
struct location {
  int type;
  int id;
};
struct properties {
  int type;
  int handle_types;
  struct location location;
  void* windows;
  uint8_t flags[8];
};
struct access {
  struct location location;
  int flags;
};
typedef uint64_t device_pointer;
typedef unsigned long long memory_handle;

static struct driver {
  int (*get_error_name)(int, const char**);
  int (*init)(unsigned);
  int (*device_get)(int*, int);
  int (*device_uuid)(void*, int);
  int (*granularity)(size_t*, const struct properties*, int);
  int (*create)(memory_handle*, size_t, const struct properties*, unsigned long long);
  int (*reserve)(device_pointer*, size_t, size_t, device_pointer, unsigned long long);
  int (*map)(device_pointer, size_t, size_t, memory_handle, unsigned long long);
  int (*set_access)(device_pointer, size_t, const struct access*, size_t);
  int (*export_to)(void*, memory_handle, int, unsigned long long);
  int (*unmap)(device_pointer, size_t);
  int (*release)(memory_handle);
  int (*address_free)(device_pointer, size_t);
  int (*current_context)(void**);
  int (*push_context)(void*);
  int (*pop_context)(void**);
  int (*synchronize)(void);
} driver;

struct segment {
  residentd_lane_segment info;
  memory_handle memory;
  void* context; /* Of the thread that allocated; may be null. */
  bool exported;
};

static struct pool {
  /* lane_map_alive(); atomic, null before the first allocation. */
  volatile uint32_t* alive;
  const char* missing;
  pthread_mutex_t mutex;
  /* With the mutex. Segments by rising addresses; ids that pool_freed has not popped; the entries
   * for which both arrays have space, and those that may be needed: segments, those that a thread
   * is making, and freed ids. */
  struct segment* segments;
  uint64_t* freed;
  uint32_t segment_count, freed_count, space, used;
  uint64_t next_id;
  uint64_t changes; /* Atomic. */
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .next_id = 1};
static pthread_once_t pool_once = PTHREAD_ONCE_INIT;

static void open_pool(void) {
  const struct driver_call calls[] = {
      {"cuGetErrorName", (void**)&driver.get_error_name},
      {"cuInit", (void**)&driver.init},
      {"cuDeviceGet", (void**)&driver.device_get},
      {"cuDeviceGetUuid_v2", (void**)&driver.device_uuid},
      {"cuMemGetAllocationGranularity", (void**)&driver.granularity},
      {"cuMemCreate", (void**)&driver.create},
      {"cuMemAddressReserve", (void**)&driver.reserve},
      {"cuMemMap", (void**)&driver.map},
      {"cuMemSetAccess", (void**)&driver.set_access},
      {"cuMemExportToShareableHandle", (void**)&driver.export_to},
      {"cuMemUnmap", (void**)&driver.unmap},
      {"cuMemRelease", (void**)&driver.release},
      {"cuMemAddressFree", (void**)&driver.address_free},
      {"cuCtxGetCurrent", (void**)&driver.current_context},
      {"cuCtxPushCurrent_v2", (void**)&driver.push_context},
      {"cuCtxPopCurrent_v2", (void**)&driver.pop_context},
      {"cuCtxSynchronize", (void**)&driver.synchronize},
  };
  pool.missing = lane_open_driver(calls, sizeof(calls) / sizeof(calls[0]));
  if (pool.missing == NULL) __atomic_store_n(&pool.alive, lane_map_alive(), __ATOMIC_RELEASE);
}

/* OK: this process may use the pool. */
static int enter(void) {
  volatile uint32_t* const alive = __atomic_load_n(&pool.alive, __ATOMIC_ACQUIRE);
  if (alive == NULL || *alive != 0) return RESIDENTD_LANE_OK;
  return lane_fail(RESIDENTD_LANE_FORKED,
                   "the pool's memory belongs to the process that called fork(). Fix: start "
                   "processes that use the GPU with exec, as multiprocessing's 'spawn' does");
}

static int fail_cuda(const char* call, int error) {
  return lane_fail_cuda(driver.get_error_name, call, error,
                        "allocate less memory, or use a GPU of this process with virtual memory "
                        "management");
}

/* Takes an entry of both arrays. With the mutex. */
static int take_entry(void) {
  if (pool.used == kMaxSegments) {
    return lane_fail(RESIDENTD_LANE_SYSTEM,
                     "the pool has %d segments, with those that were freed. Fix: allocate larger "
                     "ones, and call residentd_lane_pool_freed",
                     kMaxSegments);
  }
  if (pool.used == pool.space) {
    const uint32_t space = pool.space == 0 ? 64 : 2 * pool.space;
    struct segment* const segments = realloc(pool.segments, space * sizeof(*segments));
    if (segments != NULL) pool.segments = segments;
    uint64_t* const freed = realloc(pool.freed, space * sizeof(*freed));
    if (freed != NULL) pool.freed = freed;
    if (segments == NULL || freed == NULL)
      return lane_fail(RESIDENTD_LANE_SYSTEM, "out of memory. Fix: raise the limit on memory");
    pool.space = space;
  }
  ++pool.used;
  return RESIDENTD_LANE_OK;
}

/* Maps new memory of at least `bytes`; fills in `segment`, except its id. Returns an error of the
 * driver, and the call; then nothing is left. */
static int make_segment(size_t bytes, int device, struct segment* segment, const char** call) {
  struct properties properties;
  memset(&properties, 0, sizeof(properties));
  properties.type = kPinned;
  properties.handle_types = kDescriptor;
  properties.location.type = kDevice;
  residentd_lane_segment* const info = &segment->info;
  info->device = device;
  *call = "cuInit";
  int error = driver.init(0);
  if (error != kCudaOk) return error;
  *call = "cuDeviceGet";
  error = driver.device_get(&properties.location.id, device);
  if (error != kCudaOk) return error;
  *call = "cuDeviceGetUuid";
  error = driver.device_uuid(info->device_uuid, properties.location.id);
  if (error != kCudaOk) return error;
  size_t granularity = 0;
  *call = "cuMemGetAllocationGranularity";
  error = driver.granularity(&granularity, &properties, kGranularityBytes);
  if (error != kCudaOk) return error;
  info->bytes = (bytes + granularity - 1) / granularity * granularity;
  *call = "cuMemCreate";
  error = driver.create(&segment->memory, info->bytes, &properties, 0);
  if (error != kCudaOk) return error;
  *call = "cuMemAddressReserve";
  error = driver.reserve(&info->address, info->bytes, 0, 0, 0);
  if (error == kCudaOk) {
    *call = "cuMemMap";
    error = driver.map(info->address, info->bytes, 0, segment->memory, 0);
    if (error == kCudaOk) {
      const struct access access = {properties.location, kReadWrite};
      *call = "cuMemSetAccess";
      error = driver.set_access(info->address, info->bytes, &access, 1);
      if (error == kCudaOk) {
        driver.current_context(&segment->context);
        return error;
      }
      driver.unmap(info->address, info->bytes);
    }
    driver.address_free(info->address, info->bytes);
  }
  driver.release(segment->memory);
  return error;
}

/* The number of segments at or below the address. With the mutex. */
static uint32_t count_to(uint64_t address) {
  uint32_t low = 0, high = pool.segment_count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (pool.segments[middle].info.address <= address) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

void* residentd_lane_pool_alloc(size_t bytes, int device, void* stream) {
  (void)stream;
  if (enter() != RESIDENTD_LANE_OK) return NULL;
  pthread_once(&pool_once, open_pool);
  if (pool.missing != NULL) {
    lane_fail_no_driver(pool.missing);
    return NULL;
  }
  if (pool.alive == NULL) {
    lane_fail(RESIDENTD_LANE_SYSTEM, "no page for the pool. Fix: raise the limit on memory");
    return NULL;
  }
  if (bytes == 0 || bytes > SIZE_MAX / 2) {
    lane_fail(RESIDENTD_LANE_INVALID, "an allocation of %zu bytes. Fix: allocate at least 1",
              bytes);
    return NULL;
  }
  pthread_mutex_lock(&pool.mutex);
  const int code = take_entry();
  pthread_mutex_unlock(&pool.mutex);
  if (code != RESIDENTD_LANE_OK) return NULL;
  struct segment made;
  memset(&made, 0, sizeof(made));
  const char* call = NULL;
  const int error = make_segment(bytes, device, &made, &call);
  pthread_mutex_lock(&pool.mutex);
  if (error == kCudaOk) {
    made.info.id = pool.next_id++;
    const uint32_t at = count_to(made.info.address);
    memmove(&pool.segments[at + 1], &pool.segments[at],
            (pool.segment_count - at) * sizeof(*pool.segments));
    pool.segments[at] = made;
    ++pool.segment_count;
  } else {
    --pool.used;
  }
  pthread_mutex_unlock(&pool.mutex);
  if (error != kCudaOk) {
    fail_cuda(call, error);
    return NULL;
  }
  return (void*)made.info.address;
}

/* Removes the segment that begins at the address, and lists its id; false: there is none. */
static bool remove_segment(uint64_t address, struct segment* removed) {
  pthread_mutex_lock(&pool.mutex);
  const uint32_t count = count_to(address);
  const bool found = count > 0 && pool.segments[count - 1].info.address == address;
  if (found) {
    *removed = pool.segments[count - 1];
    memmove(&pool.segments[count - 1], &pool.segments[count],
            (pool.segment_count - count) * sizeof(*pool.segments));
    --pool.segment_count;
    if (removed->exported) {
      pool.freed[pool.freed_count++] = removed->info.id;
      __atomic_fetch_add(&pool.changes, 1, __ATOMIC_RELEASE);
    } else {
      --pool.used;
    }
  }
  pthread_mutex_unlock(&pool.mutex);
  return found;
}

/* Waits for the work of the process that may use the segment, as cudaFree does: unmapping does not.
 */
static void wait_for_device(const struct segment* segment) {
  void* context = NULL;
  const bool pushed = segment->context != NULL && driver.push_context(segment->context) == kCudaOk;
  driver.synchronize();
  if (pushed) driver.pop_context(&context);
}

void residentd_lane_pool_free(void* address, size_t bytes, int device, void* stream) {
  (void)bytes, (void)device, (void)stream;
  struct segment segment;
  if (address == NULL || enter() != RESIDENTD_LANE_OK) return;
  if (!remove_segment((uint64_t)address, &segment)) {
    lane_fail(RESIDENTD_LANE_INVALID,
              "no segment begins at %p. Fix: pass what residentd_lane_pool_alloc returned",
              address);
    return;
  }
  wait_for_device(&segment);
  /* What fails is lost to this process, for instance when its context has ended before. */
  const char* call = "cuMemUnmap";
  int error = driver.unmap(segment.info.address, segment.info.bytes);
  if (error == kCudaOk) {
    call = "cuMemAddressFree";
    error = driver.address_free(segment.info.address, segment.info.bytes);
  }
  const int released = driver.release(segment.memory);
  if (error != kCudaOk) {
    fail_cuda(call, error);
  } else if (released != kCudaOk) {
    fail_cuda("cuMemRelease", released);
  }
}

const uint64_t* residentd_lane_pool_changes(void) { return &pool.changes; }

int residentd_lane_pool_find(const void* address, residentd_lane_segment* segment) {
  const int code = enter();
  if (code != RESIDENTD_LANE_OK) return code;
  pthread_mutex_lock(&pool.mutex);
  const uint32_t count = count_to((uint64_t)address);
  const residentd_lane_segment* const last = count > 0 ? &pool.segments[count - 1].info : NULL;
  const bool found = last != NULL && (uint64_t)address - last->address < last->bytes;
  if (found) *segment = *last;
  pthread_mutex_unlock(&pool.mutex);
  if (found) return RESIDENTD_LANE_OK;
  return lane_fail(RESIDENTD_LANE_INVALID,
                   "%p is in no segment of the pool. Fix: allocate the memory with "
                   "residentd_lane_pool_alloc",
                   address);
}

/* With the mutex: a handle that was released may be given to other memory. */
static int export_segment(uint64_t id) {
  uint32_t at = 0;
  while (at < pool.segment_count && pool.segments[at].info.id != id) ++at;
  if (at == pool.segment_count) {
    return lane_fail(RESIDENTD_LANE_INVALID,
                     "the pool has no segment %llu. Fix: find it again, it may have been freed",
                     (unsigned long long)id);
  }
  int descriptor = -1;
  const int error = driver.export_to(&descriptor, pool.segments[at].memory, kDescriptor, 0);
  if (error != kCudaOk) return fail_cuda("cuMemExportToShareableHandle", error);
  pool.segments[at].exported = true;
  return descriptor;
}

int residentd_lane_pool_export(uint64_t id) {
  int descriptor = enter();
  if (descriptor != RESIDENTD_LANE_OK) return descriptor;
  pthread_mutex_lock(&pool.mutex);
  descriptor = export_segment(id);
  pthread_mutex_unlock(&pool.mutex);
  if (descriptor >= 0) fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  return descriptor;
}

int residentd_lane_pool_freed(uint64_t* ids, int n) {
  const int code = enter();
  if (code != RESIDENTD_LANE_OK) return code;
  if (n < 0) return lane_fail(RESIDENTD_LANE_INVALID, "space for %d ids. Fix: pass 0 or more", n);
  pthread_mutex_lock(&pool.mutex);
  const uint32_t popped = (uint32_t)n < pool.freed_count ? (uint32_t)n : pool.freed_count;
  if (popped > 0) {
    memcpy(ids, pool.freed, popped * sizeof(*ids));
    pool.freed_count -= popped;
    pool.used -= popped;
    memmove(pool.freed, pool.freed + popped, pool.freed_count * sizeof(*ids));
  }
  pthread_mutex_unlock(&pool.mutex);
  return (int)popped;
}
