/* CUDA streams and a lane's tasks, in order: begin lets the lane's tasks wait for a stream, end
 * lets the stream wait for them. The processor waits for neither.
 *
 * The device writes and reads the stream words of the lane's first two pages, which are registered
 * with the stream's context at the first call. The library is built without CUDA: the driver is
 * opened at that call, and its types are declared here. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "client/lane/lane_state.h"

enum {
  kCudaOk = 0,
  kRegisterPortable = 1, /* CU_MEMHOSTREGISTER_PORTABLE */
  kRegisterDeviceMap = 2,
  kWriteDefault = 0, /* CU_STREAM_WRITE_VALUE_DEFAULT: what the stream did before is visible. */
  kWaitAtLeast = 0,  /* CU_STREAM_WAIT_VALUE_GEQ: modulo 2^32, as awaits of a lane. */
  kNotCapturing = 0, /* CU_STREAM_CAPTURE_STATUS_NONE */
  kSharedPages = 2,
};

typedef uint64_t device_pointer;

/* The driver's calls, with the versions of CUDA 11.7 and later. */
static struct driver {
  int (*get_error_name)(int, const char**);
  int (*stream_get_context)(void*, void**);
  int (*stream_is_capturing)(void*, int*);
  int (*push_context)(void*);
  int (*pop_context)(void**);
  int (*synchronize)(void);
  int (*host_register)(void*, size_t, unsigned);
  int (*host_unregister)(void*);
  int (*host_device_pointer)(device_pointer*, void*, unsigned);
  int (*write_value)(void*, device_pointer, uint32_t, unsigned);
  int (*wait_value)(void*, device_pointer, uint32_t, unsigned);
} driver;
static const char* driver_missing; /* What the driver does not have; null: it is usable. */
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

/* A stream that was used, and its pair of stream words. */
struct stream {
  void* handle;
  uint32_t begun; /* The last value that the stream stores. */
  uint32_t ended; /* The last value that it waits for, and the signal's number. */
  int64_t signal;
};

struct lane_cuda {
  void* context;
  device_pointer client; /* The pages, for the device. */
  device_pointer daemon;
  uint32_t streams;
  struct stream stream[kLaneStreamWords];
};

const char* lane_open_driver(const struct driver_call* calls, size_t count) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return "libcuda.so.1, the NVIDIA driver,";
  for (size_t i = 0; i < count; ++i) {
    *calls[i].to = dlsym(library, calls[i].name);
    if (*calls[i].to == NULL) return calls[i].name;
  }
  return NULL;
}

int lane_fail_no_driver(const char* missing) {
  return lane_fail(RESIDENTD_LANE_SYSTEM,
                   "this machine has no %s. Fix: install the driver of CUDA 11.7 or later",
                   missing);
}

int lane_fail_cuda(int (*error_name)(int, const char**), const char* call, int error,
                   const char* fix) {
  const char* name = NULL;
  error_name(error, &name);
  return lane_fail(RESIDENTD_LANE_SYSTEM, "%s: %s (%d). Fix: %s", call,
                   name == NULL ? "unknown error" : name, error, fix);
}

static void open_driver(void) {
  const struct driver_call calls[] = {
      {"cuGetErrorName", (void**)&driver.get_error_name},
      {"cuStreamGetCtx", (void**)&driver.stream_get_context},
      {"cuStreamIsCapturing", (void**)&driver.stream_is_capturing},
      {"cuCtxPushCurrent_v2", (void**)&driver.push_context},
      {"cuCtxPopCurrent_v2", (void**)&driver.pop_context},
      {"cuCtxSynchronize", (void**)&driver.synchronize},
      {"cuMemHostRegister_v2", (void**)&driver.host_register},
      {"cuMemHostUnregister", (void**)&driver.host_unregister},
      {"cuMemHostGetDevicePointer_v2", (void**)&driver.host_device_pointer},
      {"cuStreamWriteValue32_v2", (void**)&driver.write_value},
      {"cuStreamWaitValue32_v2", (void**)&driver.wait_value},
  };
  driver_missing = lane_open_driver(calls, sizeof(calls) / sizeof(calls[0]));
}

static int fail_cuda(const char* call, int error) {
  return lane_fail_cuda(driver.get_error_name, call, error,
                        "pass a stream of a context that is in order");
}

/* Registers the pages with the context. */
static int register_pages(residentd_lane* lane, void* context) {
  struct lane_cuda* const cuda = calloc(1, sizeof(*cuda));
  if (cuda == NULL)
    return lane_fail(RESIDENTD_LANE_SYSTEM, "out of memory. Fix: raise the limit on memory");
  cuda->context = context;
  int error = driver.push_context(context);
  if (error != kCudaOk) {
    free(cuda);
    return fail_cuda("cuCtxPushCurrent", error);
  }
  const char* call = "cuMemHostRegister";
  error = driver.host_register(lane->memory, kSharedPages * kLanePageBytes,
                               kRegisterPortable | kRegisterDeviceMap);
  if (error == kCudaOk) {
    call = "cuMemHostGetDevicePointer";
    error = driver.host_device_pointer(&cuda->client, lane->memory, 0);
    if (error != kCudaOk) driver.host_unregister(lane->memory);
  }
  driver.pop_context(&context);
  if (error != kCudaOk) {
    free(cuda);
    return fail_cuda(call, error);
  }
  cuda->daemon = cuda->client + kLanePageBytes;
  lane->cuda = cuda;
  return RESIDENTD_LANE_OK;
}

/* OK: `*index` is the stream's word. */
static int find_stream(residentd_lane* lane, void* handle, uint32_t* index) {
  pthread_once(&driver_once, open_driver);
  if (driver_missing != NULL) return lane_fail_no_driver(driver_missing);
  int capturing = kNotCapturing;
  int error = driver.stream_is_capturing(handle, &capturing);
  if (error != kCudaOk) return fail_cuda("cuStreamIsCapturing", error);
  if (capturing != kNotCapturing) {
    return lane_fail(
        RESIDENTD_LANE_INVALID,
        "the stream is being captured: a graph would repeat a value that only rises. Fix: call "
        "this outside of the capture");
  }
  void* context = NULL;
  error = driver.stream_get_context(handle, &context);
  if (error != kCudaOk) return fail_cuda("cuStreamGetCtx", error);
  if (lane->cuda == NULL) {
    const int code = register_pages(lane, context);
    if (code != RESIDENTD_LANE_OK) return code;
  }
  struct lane_cuda* const cuda = lane->cuda;
  if (context != cuda->context) {
    return lane_fail(
        RESIDENTD_LANE_INVALID,
        "the stream has another context than the first one of this lane. Fix: use a lane for each "
        "context");
  }
  uint32_t at = 0;
  while (at < cuda->streams && cuda->stream[at].handle != handle) ++at;
  if (at == kLaneStreamWords) {
    return lane_fail(RESIDENTD_LANE_INVALID,
                     "this lane was used with %d streams. Fix: use another lane for more",
                     kLaneStreamWords);
  }
  if (at == cuda->streams) {
    cuda->stream[at] = (struct stream){.handle = handle, .signal = -1};
    ++cuda->streams;
  }
  *index = at;
  return RESIDENTD_LANE_OK;
}

/* Streams use the words from the last one downwards. */
static uint32_t word_of(uint32_t index) { return kLaneStreamWords - 1 - index; }

static device_pointer address_of(device_pointer page, size_t offset, uint32_t word) {
  return page + offset + word * sizeof(uint64_t);
}

/* What both functions do first. OK: the stream, and its word. */
static int enter(residentd_lane* lane, void* handle, struct stream** stream, uint32_t* word) {
  int code = lane_reserve(lane);
  uint32_t index = 0;
  if (code == RESIDENTD_LANE_OK) code = find_stream(lane, handle, &index);
  if (code != RESIDENTD_LANE_OK) return code;
  *stream = &lane->cuda->stream[index];
  *word = word_of(index);
  return RESIDENTD_LANE_OK;
}

int residentd_lane_stream_begin(residentd_lane* lane, void* cuda_stream) {
  struct stream* stream = NULL;
  uint32_t word = 0;
  const int code = enter(lane, cuda_stream, &stream, &word);
  if (code != RESIDENTD_LANE_OK) return code;
  const int error = driver.write_value(
      cuda_stream, address_of(lane->cuda->client, offsetof(lane_client_page, stream), word),
      stream->begun + 1, kWriteDefault);
  if (error != kCudaOk) return fail_cuda("cuStreamWriteValue32", error);
  ++stream->begun;
  const int64_t sequence = residentd_lane_submit_await(lane, word, stream->begun);
  if (sequence < 0) return (int)sequence;
  /* The stream has waited for that signal before it stores the value. */
  if (stream->signal >= 0) lane_order_ended(lane, (uint64_t)stream->signal);
  return RESIDENTD_LANE_OK;
}

int residentd_lane_stream_end(residentd_lane* lane, void* cuda_stream) {
  struct stream* stream = NULL;
  uint32_t word = 0;
  const int code = enter(lane, cuda_stream, &stream, &word);
  if (code != RESIDENTD_LANE_OK) return code;
  /* First: from then on the value comes, whatever happens to the daemon. */
  const int64_t sequence = residentd_lane_submit_signal(lane, word, stream->ended + 1);
  if (sequence < 0) return (int)sequence;
  ++stream->ended;
  const int error = driver.wait_value(
      cuda_stream, address_of(lane->cuda->daemon, offsetof(lane_daemon_page, stream), word),
      stream->ended, kWaitAtLeast);
  if (error != kCudaOk) return fail_cuda("cuStreamWaitValue32", error);
  stream->signal = sequence;
  return RESIDENTD_LANE_OK;
}

void lane_end_cuda(residentd_lane* lane) {
  struct lane_cuda* const cuda = lane->cuda;
  if (cuda == NULL) return;
  /* A child of fork() has no context. The device must not use the pages any more; a context that
   * has ended does not. */
  if (*lane->alive != 0 && driver.push_context(cuda->context) == kCudaOk) {
    driver.synchronize();
    driver.host_unregister(lane->memory);
    void* context = NULL;
    driver.pop_context(&context);
  }
  free(cuda);
  lane->cuda = NULL;
}
