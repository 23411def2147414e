/* The client's side of a local lane; residentd_lane.h describes it, runtime/lane/lane_layout.h the
 * memory.
 *
 * The daemon is trusted to write what the format says. The memory is mapped once; a submission is
 * one cache line of it. */
#define _GNU_SOURCE
#include "client/lane/residentd_lane.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "client/lane/lane_state.h"

/* The public names of what lane_layout.h defines. */
static_assert(RESIDENTD_LANE_MAX_WORDS == kLaneWords, "");
static_assert(RESIDENTD_LANE_STREAM_WORDS == kLaneStreamWords, "");
static_assert(RESIDENTD_LANE_AFTER_ALL == kLaneAfterAll, "");
static_assert(RESIDENTD_LANE_DEADLINE == kLaneDeadline, "");
static_assert(RESIDENTD_LANE_QUIET == kLaneQuiet, "");
/* The daemon does not get it. */
static_assert((RESIDENTD_LANE_ORDERED &
               (RESIDENTD_LANE_AFTER_ALL | RESIDENTD_LANE_DEADLINE | RESIDENTD_LANE_QUIET)) == 0,
              "");
static_assert(RESIDENTD_LANE_STATUS_INTERNAL == kLaneInternal, "");
static_assert(RESIDENTD_LANE_STATUS_REFUSED == kLaneRefused, "");
static_assert(RESIDENTD_LANE_REFUSED_CALL == kLaneRefusedCall, "");
static_assert(RESIDENTD_LANE_REFUSED_STREAM == kLaneRefusedStream, "");
static_assert(RESIDENTD_LANE_JOINED == kLaneJoined, "");
static_assert(RESIDENTD_LANE_MAY_HAVE_RUN == kLaneMayHaveRun, "");

enum {
  kAttachSeconds = 10,
  /* await: how long it polls, and how often it looks at the clock meanwhile. */
  kSpinNs = 20000,
  kPollsForEachLook = 32,
  /* A sleeping client looks this often whether the daemon still runs. */
  kLookNs = 10000000,
  /* A client that finds the lane full in a loop looks so rarely whether the daemon still runs. */
  kFullForEachLook = 256,
  /* Ranges whose columns are in the data area. */
  kMaxRanges = 1024,
  /* Values are not at the beginning of the data area, because offset 0 means that there are none.
   */
  kDataHead = 64,
  kMaxBuffers = 65536,
  kMaxPassedBuffers = 64,
  kErrorBytes = 512,
  /* Every so many submissions, completions that QUIET submissions left behind are marked. */
  kSweepInterval = 1 << 30,
  /* The status of such a mark. */
  kStaleStatus = 255,
};

static _Thread_local const char* last_error = "";
static _Thread_local char error_text[kErrorBytes];
static _Thread_local char explanation[kErrorBytes];

int lane_fail(int code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error_text, sizeof(error_text), format, arguments);
  va_end(arguments);
  last_error = error_text;
  return code;
}

/* For what a program may meet in each round of a loop. */
static int fail_with(int code, const char* text) {
  last_error = text;
  return code;
}

int residentd_lane_version(void) { return RESIDENTD_LANE_VERSION; }
const char* residentd_lane_last_error(void) { return last_error; }

static int fail_lost(residentd_lane* lane) {
  lane->lost = true;
  return lane_fail(RESIDENTD_LANE_LOST,
                   "the daemon has closed the lane's connection, or has ended; tasks that were not "
                   "answered may have run. Fix: open a lane again");
}

static int fail_closed(uint32_t state) {
  return lane_fail(
      RESIDENTD_LANE_CLOSED,
      state == kLaneDraining
          ? "the daemon is stopping and takes no submissions. Fix: open a lane when it runs again"
          : "the daemon has closed the lane. Fix: the status of the Lanes.Open call has the "
            "reason; open a lane again");
}

static int fail_forked(void) {
  return lane_fail(
      RESIDENTD_LANE_FORKED,
      "this lane belongs to the process that called fork(). Fix: open a lane in each process");
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

/* --- Attach and detach ------------------------------------------------------------------------ */

static int connect_to(const char* path, int* out) {
  struct sockaddr_un address;
  memset(&address, 0, sizeof(address));
  address.sun_family = AF_UNIX;
  if (strlen(path) >= sizeof(address.sun_path)) {
    return lane_fail(
        RESIDENTD_LANE_INVALID,
        "the socket's path '%.120s' is too long. Fix: use a shorter one, for instance a "
        "symbolic link",
        path);
  }
  strcpy(address.sun_path, path);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return lane_fail(RESIDENTD_LANE_SYSTEM,
                     "cannot create a socket: %s. Fix: raise the limit that it names",
                     strerror(errno));
  }
  const struct timeval timeout = {kAttachSeconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  int connected;
  do {
    connected = connect(fd, (const struct sockaddr*)&address, sizeof(address));
  } while (connected != 0 && errno == EINTR);
  if (connected != 0) {
    const int error = errno;
    close(fd);
    return lane_fail(
        RESIDENTD_LANE_LOST,
        "cannot connect to the daemon's local socket %s: %s. Fix: check that the daemon runs with "
        "--local_address, on this machine",
        path, strerror(error));
  }
  *out = fd;
  return RESIDENTD_LANE_OK;
}

/* Receives the answer: `welcome` and the memory, or an error. */
static int receive_welcome(int fd, lane_welcome* welcome, int* memory) {
  char packet[1024];
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * 2)];
  } control;
  struct iovec part = {packet, sizeof(packet) - 1};
  struct msghdr message;
  memset(&message, 0, sizeof(message));
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = sizeof(control);
  ssize_t bytes;
  bool reset = false;
  do {
    bytes = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    /* If the daemon did not read the request, recvmsg fails once, and then returns the answer. */
    reset = bytes < 0 && errno == ECONNRESET && !reset;
  } while (bytes < 0 && (errno == EINTR || reset));
  *memory = -1;
  for (struct cmsghdr* c = CMSG_FIRSTHDR(&message); bytes >= 0 && c != NULL;
       c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int received;
      memcpy(&received, CMSG_DATA(c) + at, sizeof(received));
      if (*memory >= 0) close(*memory);
      *memory = received;
    }
  }
  if (bytes < (ssize_t)sizeof(uint32_t)) {
    return lane_fail(
        RESIDENTD_LANE_LOST,
        "the daemon did not answer: %s. Fix: check that it runs, and open a lane again",
        bytes < 0 ? strerror(errno) : "it closed the connection");
  }
  uint32_t code;
  memcpy(&code, packet, sizeof(code));
  if (code != 0) {
    packet[bytes] = 0;
    return lane_fail(RESIDENTD_LANE_NOT_ACCEPTED, "%s", packet + sizeof(code));
  }
  if (bytes >= (ssize_t)sizeof(*welcome)) memcpy(welcome, packet, sizeof(*welcome));
  if (bytes < (ssize_t)sizeof(*welcome) || welcome->layout_hash != lane_layout_hash()) {
    return lane_fail(RESIDENTD_LANE_NOT_ACCEPTED,
                     "the daemon's lanes have another format than this library's. Fix: use the "
                     "libresidentd_lane "
                     "of the daemon's bundle");
  }
  if (*memory < 0) {
    return lane_fail(
        RESIDENTD_LANE_SYSTEM,
        "the daemon's descriptor was not received. Fix: raise the limit on open files");
  }
  return RESIDENTD_LANE_OK;
}

static int map_memory(residentd_lane* lane, const lane_welcome* welcome, int memory) {
  const uint64_t bytes = lane_bytes(welcome->slots, welcome->data_bytes);
  struct stat file;
  if (fstat(memory, &file) != 0 || (uint64_t)file.st_size < bytes ||
      welcome->slots < kLaneMinSlots || welcome->slots > kLaneMaxSlots ||
      (welcome->slots & (welcome->slots - 1)) != 0) {
    return lane_fail(
        RESIDENTD_LANE_NOT_ACCEPTED,
        "the daemon's memory has not the size that it says. Fix: report this as a bug");
  }
  uint8_t* const base =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, memory, 0);
  if (base == MAP_FAILED) {
    return lane_fail(RESIDENTD_LANE_SYSTEM,
                     "cannot map %llu bytes: %s. Fix: raise the limit on memory",
                     (unsigned long long)bytes, strerror(errno));
  }
  lane->memory = base;
  lane->memory_bytes = bytes;
  lane->client = (lane_client_page*)base;
  lane->daemon = (lane_daemon_page*)(base + kLanePageBytes);
  lane->slots = (lane_slot*)(base + lane_slots_offset());
  lane->completions = (lane_completion*)(base + lane_completions_offset(welcome->slots));
  lane->data = base + lane_data_offset(welcome->slots);
  lane->slot_count = welcome->slots;
  lane->data_bytes = lane->data_size = welcome->data_bytes;
  return RESIDENTD_LANE_OK;
}

volatile uint32_t* lane_map_alive(void) {
  uint32_t* const page =
      mmap(NULL, kLanePageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED || madvise(page, kLanePageBytes, MADV_WIPEONFORK) != 0) {
    lane_fail(RESIDENTD_LANE_SYSTEM, "cannot map a page: %s. Fix: raise the limit on memory",
              strerror(errno));
    if (page != MAP_FAILED) munmap(page, kLanePageBytes);
    return NULL;
  }
  *page = 1;
  return page;
}

static int attach(residentd_lane* lane, const char* socket, const char* token) {
  int code = connect_to(socket, &lane->socket);
  if (code != RESIDENTD_LANE_OK) return code;
  char request[128];
  const int length = snprintf(request, sizeof(request), "%s%s", kLaneMagic, token);
  if (length >= (int)sizeof(request)) {
    return lane_fail(RESIDENTD_LANE_INVALID,
                     "the token has %zu characters. Fix: pass OpenLaneResponse.token",
                     strlen(token));
  }
  ssize_t sent;
  do {
    sent = send(lane->socket, request, (size_t)length, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  /* A daemon that refuses the connection itself answers before the request is sent. */
  if (sent < 0 && errno != EPIPE && errno != ECONNRESET) {
    return lane_fail(
        RESIDENTD_LANE_LOST,
        "cannot send to the daemon: %s. Fix: check that it runs, and open a lane again",
        strerror(errno));
  }
  lane_welcome welcome = {0};
  int memory;
  code = receive_welcome(lane->socket, &welcome, &memory);
  if (code == RESIDENTD_LANE_OK) code = map_memory(lane, &welcome, memory);
  if (memory >= 0) close(memory);
  if (code == RESIDENTD_LANE_OK && (lane->alive = lane_map_alive()) == NULL)
    code = RESIDENTD_LANE_SYSTEM;
  if (code != RESIDENTD_LANE_OK) return code;
  lane->next = lane->completed = __atomic_load_n(&lane->daemon->completed, __ATOMIC_ACQUIRE);
  return RESIDENTD_LANE_OK;
}

int residentd_lane_attach(const char* socket, const char* token, residentd_lane** out) {
  if (out == NULL)
    return lane_fail(RESIDENTD_LANE_INVALID, "out is null. Fix: pass the address of a pointer");
  *out = NULL;
  if (socket == NULL && token == NULL) {
    socket = getenv("RESIDENTD_LANE_SOCKET");
    token = getenv("RESIDENTD_LANE_TOKEN");
    if (socket == NULL || token == NULL) {
      return lane_fail(
          RESIDENTD_LANE_INVALID,
          "RESIDENTD_LANE_SOCKET or RESIDENTD_LANE_TOKEN is not set. Fix: run the program with "
          "residentctl lane, or pass socket and token");
    }
  }
  if (socket == NULL || token == NULL) {
    return lane_fail(RESIDENTD_LANE_INVALID, "%s is null. Fix: pass both, or neither",
                     socket == NULL ? "socket" : "token");
  }
  residentd_lane* const lane = calloc(1, sizeof(*lane));
  if (lane == NULL)
    return lane_fail(RESIDENTD_LANE_SYSTEM, "out of memory. Fix: raise the limit on memory");
  lane->socket = -1;
  const int code = attach(lane, socket, token);
  if (code != RESIDENTD_LANE_OK) {
    residentd_lane_detach(lane);
    return code;
  }
  *out = lane;
  return RESIDENTD_LANE_OK;
}

void residentd_lane_detach(residentd_lane* lane) {
  if (lane == NULL) return;
  for (uint32_t i = 0; i < lane->mapping_count; ++i) {
    if (lane->mappings[i].owned) munmap((void*)lane->mappings[i].address, lane->mappings[i].bytes);
  }
  lane_end_watcher(lane);
  lane_end_cuda(lane);
  /* close() ends the connection only when no child has it any more; shutdown() would end a
   * parent's. */
  if (lane->socket >= 0) close(lane->socket);
  if (lane->memory != NULL) munmap(lane->memory, lane->memory_bytes);
  if (lane->alive != NULL) munmap((void*)lane->alive, kLanePageBytes);
  lane_end_order(lane);
  free(lane->mappings);
  free(lane->ranges);
  free(lane);
}

uint32_t residentd_lane_slots(const residentd_lane* lane) { return lane->slot_count; }
int64_t residentd_lane_next(const residentd_lane* lane) { return (int64_t)lane->next; }

int64_t residentd_lane_completed(residentd_lane* lane) {
  lane->completed = __atomic_load_n(&lane->daemon->completed, __ATOMIC_ACQUIRE);
  return (int64_t)lane->completed;
}

/* --- Memory ----------------------------------------------------------------------------------- */

static int add_mapping(residentd_lane* lane, uint32_t buffer, const void* address, uint64_t bytes,
                       bool owned) {
  struct mapping* slot = NULL;
  for (uint32_t i = 0; i < lane->mapping_count; ++i) {
    if (lane->mappings[i].buffer == buffer) slot = &lane->mappings[i];
  }
  if (slot == NULL) {
    if (lane->mapping_count == lane->mapping_space) {
      const uint32_t space = lane->mapping_space == 0 ? 16 : 2 * lane->mapping_space;
      struct mapping* const grown = realloc(lane->mappings, space * sizeof(*grown));
      if (grown == NULL)
        return lane_fail(RESIDENTD_LANE_SYSTEM, "out of memory. Fix: raise the limit on memory");
      lane->mappings = grown;
      lane->mapping_space = space;
    }
    slot = &lane->mappings[lane->mapping_count++];
  } else if (slot->owned) {
    munmap((void*)slot->address, slot->bytes);
  }
  *slot = (struct mapping){buffer, owned, address, bytes};
  return RESIDENTD_LANE_OK;
}

int residentd_lane_map(residentd_lane* lane, uint32_t buffer, void* address, uint64_t bytes) {
  if (buffer >= kMaxBuffers) {
    return lane_fail(RESIDENTD_LANE_INVALID,
                     "buffer %u is no index of a lane. Fix: pass an index that Bind returned",
                     buffer);
  }
  return add_mapping(lane, buffer, address, bytes, false);
}

/* Finds entry `buffer` of RESIDENTD_LANE_MEMORY, "DESCRIPTOR:BYTES,DESCRIPTOR:BYTES,...". */
static bool find_passed(uint32_t buffer, int* fd, uint64_t* bytes) {
  const char* text = getenv("RESIDENTD_LANE_MEMORY");
  for (uint32_t i = 0; text != NULL && i < kMaxPassedBuffers; ++i) {
    unsigned long long size;
    int used = 0;
    if (sscanf(text, "%d:%llu%n", fd, &size, &used) != 2) return false;
    *bytes = size;
    if (i == buffer) return true;
    text += used;
    if (*text != ',') return false;
    ++text;
  }
  return false;
}

void* residentd_lane_memory(residentd_lane* lane, uint32_t buffer, uint64_t* bytes) {
  for (uint32_t i = 0; i < lane->mapping_count; ++i) {
    if (lane->mappings[i].buffer != buffer || lane->mappings[i].bytes == 0) continue;
    if (bytes != NULL) *bytes = lane->mappings[i].bytes;
    return (void*)lane->mappings[i].address;
  }
  int fd;
  uint64_t size;
  if (!find_passed(buffer, &fd, &size)) {
    lane_fail(
        RESIDENTD_LANE_INVALID,
        "RESIDENTD_LANE_MEMORY has no memory of buffer %u. Fix: run the program with residentctl "
        "lane, and "
        "use the index of one of its tensors",
        buffer);
    return NULL;
  }
  void* const address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    lane_fail(RESIDENTD_LANE_SYSTEM, "cannot map buffer %u: %s. Fix: raise the limit on memory",
              buffer, strerror(errno));
    return NULL;
  }
  if (add_mapping(lane, buffer, address, size, true) != RESIDENTD_LANE_OK) {
    munmap(address, size);
    return NULL;
  }
  if (bytes != NULL) *bytes = size;
  return address;
}

int residentd_lane_place(residentd_lane* lane, const void* address, uint64_t bytes,
                         uint64_t* place) {
  const uint8_t* const first = address;
  for (uint32_t i = 0; i < lane->mapping_count; ++i) {
    /* Beginning with the one that was found last. */
    const uint32_t at = (lane->last_mapping + i) % lane->mapping_count;
    const struct mapping* const mapping = &lane->mappings[at];
    if (first < mapping->address) continue;
    const uint64_t offset = (uint64_t)(first - mapping->address);
    if (offset > mapping->bytes || bytes > mapping->bytes - offset || mapping->bytes == 0) continue;
    lane->last_mapping = at;
    *place = lane_place((uint16_t)mapping->buffer, offset);
    return RESIDENTD_LANE_OK;
  }
  return lane_fail(RESIDENTD_LANE_INVALID,
                   "%llu bytes at %p are in no buffer of the lane. Fix: bind the buffer and call "
                   "residentd_lane_map",
                   (unsigned long long)bytes, address);
}

/* --- Submission ------------------------------------------------------------------------------- */

/* Whether the daemon's end of the connection is closed. */
static bool is_hung_up(const residentd_lane* lane) {
  struct pollfd polled = {lane->socket, POLLIN | POLLRDHUP, 0};
  return poll(&polled, 1, 0) > 0;
}

int lane_ring(residentd_lane* lane) {
  const char byte = 1;
  if (send(lane->socket, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) return RESIDENTD_LANE_OK;
  /* With EAGAIN, bytes that the daemon has not read wake it. */
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS)
    return RESIDENTD_LANE_OK;
  return fail_lost(lane);
}

/* A stamp is the low half of a sequence number. The completion of a submission 2^32 earlier would
 * be taken for that of this one, if only QUIET submissions used the slot since: marks such
 * completions. The daemon may write one at the same time. */
static void mark_stale_completions(residentd_lane* lane) {
  for (uint32_t i = 0; i < lane->slot_count; ++i) {
    uint64_t* const at = &lane->completions[i].head;
    uint64_t head = __atomic_load_n(at, __ATOMIC_RELAXED);
    if (lane_stamp(lane->next) - lane_head_stamp(head) <= 2 * lane->slot_count) continue;
    const uint64_t marked = head | (uint64_t)kStaleStatus << 32;
    __atomic_compare_exchange_n(at, &head, marked, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }
}

static int fail_full(residentd_lane* lane, const char* text) {
  if (lane->full++ % kFullForEachLook == 0 && is_hung_up(lane)) return fail_lost(lane);
  return fail_with(RESIDENTD_LANE_FULL, text);
}

int lane_reserve(residentd_lane* lane) {
  if (*lane->alive == 0) return fail_forked();
  if (lane->lost) return fail_lost(lane);
  const uint32_t state = __atomic_load_n(&lane->daemon->state, __ATOMIC_RELAXED);
  if (state != kLaneOpen) return fail_closed(state);
  if (lane->next - lane->completed >= lane->slot_count) {
    residentd_lane_completed(lane);
    if (lane->next - lane->completed >= lane->slot_count)
      return fail_full(lane,
                       "all slots of the lane are in use. Fix: wait for submissions to end, or "
                       "open a lane with more slots");
    lane->full = 0;
  }
  if (lane->next % kSweepInterval == 0 && lane->next > 0) mark_stale_completions(lane);
  return RESIDENTD_LANE_OK;
}

int64_t lane_publish(residentd_lane* lane, lane_slot* slot, uint16_t call, uint8_t kind,
                     uint8_t flags) {
  const uint64_t sequence = lane->next;
  __atomic_store_n(&slot->head, lane_slot_head(sequence, call, kind, flags), __ATOMIC_RELEASE);
  lane->next = sequence + 1;
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (__builtin_expect(__atomic_load_n(&lane->daemon->asleep, __ATOMIC_RELAXED) != 0, 0)) {
    const int code = lane_ring(lane);
    if (code != RESIDENTD_LANE_OK) return code;
  }
  return (int64_t)sequence;
}

static int check_submission(int n, int max, int flags) {
  if (n < 0 || n > max) {
    return lane_fail(RESIDENTD_LANE_INVALID, "%d words. Fix: pass 0 to %d", n, max);
  }
  if ((flags & ~(RESIDENTD_LANE_AFTER_ALL | RESIDENTD_LANE_DEADLINE | RESIDENTD_LANE_QUIET |
                 RESIDENTD_LANE_ORDERED)) != 0) {
    return lane_fail(RESIDENTD_LANE_INVALID,
                     "flags %#x. Fix: combine AFTER_ALL, DEADLINE, QUIET and ORDERED",
                     (unsigned)flags);
  }
  return RESIDENTD_LANE_OK;
}

int64_t residentd_lane_submit(residentd_lane* lane, uint16_t call, const uint64_t* words, int n,
                              int flags) {
  int code = check_submission(n, kLaneWords, flags);
  if (code == RESIDENTD_LANE_OK) code = lane_reserve(lane);
  if (code != RESIDENTD_LANE_OK) return code;
  lane_slot* const slot = lane_next_slot(lane);
  for (int i = 0; i < n; ++i) __atomic_store_n(&slot->words[i], words[i], __ATOMIC_RELAXED);
  if ((flags & (RESIDENTD_LANE_AFTER_ALL | RESIDENTD_LANE_ORDERED)) != 0)
    flags = lane_order_words(lane, call, words, n, flags);
  return lane_publish(lane, slot, call, kLaneTask, (uint8_t)flags);
}

void residentd_lane_cancel_below(residentd_lane* lane, int64_t sequence) {
  if (*lane->alive == 0 || sequence < 0) return;
  const uint64_t below = (uint64_t)sequence < lane->next ? (uint64_t)sequence : lane->next;
  if (below <= lane->cancel_below) return;
  lane->cancel_below = below;
  lane_order_unknown(lane);
  __atomic_store_n(&lane->client->cancel_below, below, __ATOMIC_RELEASE);
  /* Always: a batch that the daemon has taken is marked by the thread that reads the socket. */
  lane_ring(lane);
}

/* --- Ranges ----------------------------------------------------------------------------------- */

/* Frees the parts of the data area whose ranges have ended. */
static void free_ranges(residentd_lane* lane) {
  residentd_lane_completed(lane);
  while (lane->range_tail < lane->range_head) {
    const struct range* const oldest = &lane->ranges[lane->range_tail % kMaxRanges];
    if (oldest->sequence >= lane->completed) return;
    lane->data_tail = oldest->end;
    ++lane->range_tail;
  }
}

/* Finds `bytes` in one piece; sets `head` to the end of the piece. */
static bool find_space(const residentd_lane* lane, uint64_t bytes, uint64_t* position,
                       uint64_t* head) {
  uint64_t begin = lane->data_head;
  const uint64_t left = lane->data_size - begin % lane->data_size;
  if (left < bytes) begin += left;
  if (begin + bytes - lane->data_tail > lane->data_size) return false;
  *position = begin;
  *head = begin + bytes;
  return true;
}

static bool is_in_data(const residentd_lane* lane, const uint64_t* values, uint32_t count) {
  const uint8_t* const first = (const uint8_t*)values;
  const uint8_t* const end = lane->data + lane->data_begin;
  return first >= lane->data + kDataHead && first <= end &&
         (uint64_t)count * sizeof(uint64_t) <= (uint64_t)(end - first);
}

/* OK: `*at` is the offset in the data area of `bytes` that are free. */
static int reserve_data(residentd_lane* lane, uint64_t bytes, uint64_t* at, uint64_t* head) {
  if (bytes == 0) { /* A call without words has no columns. */
    *at = 0;
    *head = lane->data_head;
    return RESIDENTD_LANE_OK;
  }
  if (bytes > lane->data_size) {
    return lane_fail(
        RESIDENTD_LANE_INVALID,
        "the range needs %llu bytes of the data area, which has %llu. Fix: submit smaller ranges, "
        "or open the lane with more data_bytes",
        (unsigned long long)bytes, (unsigned long long)lane->data_size);
  }
  if (lane->ranges == NULL) lane->ranges = malloc(kMaxRanges * sizeof(*lane->ranges));
  if (lane->ranges == NULL)
    return lane_fail(RESIDENTD_LANE_SYSTEM, "out of memory. Fix: raise the limit on memory");
  uint64_t position = 0;
  bool found =
      lane->range_head - lane->range_tail < kMaxRanges && find_space(lane, bytes, &position, head);
  if (!found) {
    free_ranges(lane);
    found = lane->range_head - lane->range_tail < kMaxRanges &&
            find_space(lane, bytes, &position, head);
  }
  if (!found) {
    return fail_full(lane,
                     "the data area of the lane is in use. Fix: wait for ranges to end, or open "
                     "the lane with more data_bytes");
  }
  lane->full = 0;
  *at = lane->data_begin + position % lane->data_size;
  return RESIDENTD_LANE_OK;
}

int64_t residentd_lane_submit_range(residentd_lane* lane, uint16_t call, uint32_t count,
                                    const residentd_lane_column* columns, int n, int flags) {
  int code = check_submission(n, kLaneWords, flags & ~RESIDENTD_LANE_DEADLINE);
  if ((flags & RESIDENTD_LANE_DEADLINE) != 0) {
    code = lane_fail(
        RESIDENTD_LANE_INVALID,
        "a range with a deadline. Fix: leave DEADLINE out, and use residentd_lane_cancel_below");
  }
  if (code == RESIDENTD_LANE_OK && count == 0)
    code = lane_fail(RESIDENTD_LANE_INVALID, "a range of 0 tasks. Fix: submit at least 1");
  if (code == RESIDENTD_LANE_OK) code = lane_reserve(lane);
  if (code != RESIDENTD_LANE_OK) return code;
  const uint64_t values_bytes = (uint64_t)count * sizeof(uint64_t);
  uint64_t bytes = (uint64_t)n * sizeof(lane_range_column);
  for (int i = 0; i < n; ++i) {
    if (columns[i].values != NULL && !is_in_data(lane, columns[i].values, count))
      bytes += values_bytes;
  }
  uint64_t at = 0, head = 0;
  code = reserve_data(lane, bytes, &at, &head);
  if (code != RESIDENTD_LANE_OK) return code;
  lane_range_column* const records = (lane_range_column*)(lane->data + at);
  uint64_t next_values = at + (uint64_t)n * sizeof(lane_range_column);
  for (int i = 0; i < n; ++i) {
    const residentd_lane_column* const column = &columns[i];
    if (column->values == NULL) {
      records[i] = (lane_range_column){column->base, column->stride, 0};
      continue;
    }
    uint64_t values = (uint64_t)((const uint8_t*)column->values - lane->data);
    if (!is_in_data(lane, column->values, count)) {
      values = next_values;
      memcpy(lane->data + values, column->values, values_bytes);
      next_values += values_bytes;
    }
    records[i] = (lane_range_column){0, 0, values};
  }
  if (bytes > 0) {
    lane->data_head = head;
    lane->ranges[lane->range_head++ % kMaxRanges] = (struct range){lane->next, head};
  }
  lane_slot* const slot = lane_next_slot(lane);
  __atomic_store_n(&slot->words[0], count, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->words[1], at, __ATOMIC_RELAXED);
  if ((flags & (RESIDENTD_LANE_AFTER_ALL | RESIDENTD_LANE_ORDERED)) != 0)
    flags = lane_order_columns(lane, call, count, columns, n, flags);
  return lane_publish(lane, slot, call, kLaneRange, (uint8_t)flags);
}

uint64_t* residentd_lane_data(residentd_lane* lane, uint64_t reserve_bytes, uint64_t* bytes) {
  const uint64_t reserved =
      reserve_bytes < lane->data_bytes ? reserve_bytes & ~(uint64_t)7 : lane->data_bytes;
  lane->data_size = reserved;
  lane->data_begin = lane->data_bytes - reserved;
  lane->data_head = lane->data_tail = 0;
  lane->range_head = lane->range_tail = 0;
  if (lane->data_begin <= kDataHead) return NULL;
  if (bytes != NULL) *bytes = lane->data_begin - kDataHead;
  return (uint64_t*)(lane->data + kDataHead);
}

/* --- Waiting ---------------------------------------------------------------------------------- */

/* Whether the submission has ended; then fills in its completion. */
static inline bool look(residentd_lane* lane, uint64_t sequence,
                        residentd_lane_completion* completion) {
  const lane_completion* const from = &lane->completions[sequence & (lane->slot_count - 1)];
  for (int tries = 0; tries < 2; ++tries) {
    const uint64_t head = __atomic_load_n(&from->head, __ATOMIC_ACQUIRE);
    const uint8_t status = (uint8_t)(head >> 32);
    if (lane_head_stamp(head) == lane_stamp(sequence) && status != kStaleStatus) {
      if (completion == NULL) return true;
      const uint64_t tail = __atomic_load_n(&from->tail, __ATOMIC_RELAXED);
      completion->sequence = (int64_t)sequence;
      completion->status = status;
      completion->flags = (uint8_t)(head >> 40);
      completion->detail = (uint16_t)(head >> 48);
      completion->device_ns = (uint32_t)tail;
      completion->version = (uint32_t)(tail >> 32);
      return true;
    }
    if (tries == 0) {
      /* The submission may be QUIET. Its completion, if there is one, is written before. */
      if (sequence >= lane->completed && (uint64_t)residentd_lane_completed(lane) <= sequence)
        return false;
    }
  }
  if (completion != NULL) {
    memset(completion, 0, sizeof(*completion));
    completion->sequence = (int64_t)sequence;
  }
  return true;
}

static void sleep_until_woken(residentd_lane* lane, uint32_t wakes, uint64_t ns) {
  const struct timespec timeout = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
  syscall(SYS_futex, &lane->daemon->wakes, FUTEX_WAIT, wakes, &timeout, NULL, 0);
}

/* What await returns for a submission that has not ended, unless it is to go on waiting (OK). */
static int check_daemon(residentd_lane* lane, uint64_t sequence,
                        residentd_lane_completion* completion) {
  if (!is_hung_up(lane)) return RESIDENTD_LANE_OK;
  /* The daemon may have answered before it ended. */
  if (look(lane, sequence, completion)) return RESIDENTD_LANE_OK;
  const uint32_t state = __atomic_load_n(&lane->daemon->state, __ATOMIC_ACQUIRE);
  if (state == kLaneClosed) {
    lane->lost = true;
    return fail_closed(state);
  }
  return fail_lost(lane);
}

static int await_asleep(residentd_lane* lane, uint64_t sequence, uint64_t deadline,
                        residentd_lane_completion* completion) {
  int code = RESIDENTD_LANE_OK;
  while (true) {
    __atomic_store_n(&lane->client->sleeping, 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    const uint32_t wakes = __atomic_load_n(&lane->daemon->wakes, __ATOMIC_ACQUIRE);
    if (look(lane, sequence, completion)) break;
    const uint64_t now = now_ns();
    if (now >= deadline) {
      code = fail_with(RESIDENTD_LANE_TIMEOUT,
                       "the submission has not ended within the timeout. Fix: wait again, or "
                       "cancel it with residentd_lane_cancel_below");
      break;
    }
    const uint64_t left = deadline - now;
    sleep_until_woken(lane, wakes, left < kLookNs ? left : kLookNs);
    if (look(lane, sequence, completion)) break;
    code = check_daemon(lane, sequence, completion);
    if (code != RESIDENTD_LANE_OK) break;
  }
  __atomic_store_n(&lane->client->sleeping, 0, __ATOMIC_RELAXED);
  return code;
}

int residentd_lane_await(residentd_lane* lane, int64_t sequence, int64_t timeout_ns,
                         residentd_lane_completion* completion) {
  if (*lane->alive == 0) return fail_forked();
  if (sequence < 0 || (uint64_t)sequence >= lane->next) {
    return lane_fail(RESIDENTD_LANE_INVALID,
                     "%lld was not submitted. Fix: pass what residentd_lane_submit returned",
                     (long long)sequence);
  }
  if (lane->next - (uint64_t)sequence > lane->slot_count) {
    return lane_fail(
        RESIDENTD_LANE_INVALID,
        "the slot of submission %lld was used again. Fix: wait for it before %u further "
        "submissions",
        (long long)sequence, lane->slot_count);
  }
  if (look(lane, (uint64_t)sequence, completion)) return RESIDENTD_LANE_OK;
  if (lane->lost) return fail_lost(lane);
  if (timeout_ns == 0) return fail_with(RESIDENTD_LANE_TIMEOUT, "the submission has not ended");
  const uint64_t start = now_ns();
  const uint64_t deadline = timeout_ns < 0 ? UINT64_MAX : start + (uint64_t)timeout_ns;
  const uint64_t spin_until = deadline - start < kSpinNs ? deadline : start + kSpinNs;
  do {
    for (int i = 0; i < kPollsForEachLook; ++i) {
      if (look(lane, (uint64_t)sequence, completion)) return RESIDENTD_LANE_OK;
      pause_briefly();
    }
  } while (now_ns() < spin_until);
  return await_asleep(lane, (uint64_t)sequence, deadline, completion);
}

int residentd_lane_call(residentd_lane* lane, uint16_t call, const uint64_t* words, int n,
                        int64_t timeout_ns, residentd_lane_completion* completion) {
  int64_t sequence = residentd_lane_submit(lane, call, words, n, 0);
  if (sequence == RESIDENTD_LANE_FULL) {
    if (completion != NULL) completion->sequence = -1;
    const uint64_t start = now_ns();
    const int code =
        residentd_lane_await(lane, (int64_t)(lane->next - lane->slot_count), timeout_ns, NULL);
    if (code != RESIDENTD_LANE_OK) return code;
    if (timeout_ns > 0) {
      const int64_t waited = (int64_t)(now_ns() - start);
      timeout_ns = waited < timeout_ns ? timeout_ns - waited : 0;
    }
    sequence = residentd_lane_submit(lane, call, words, n, 0);
  }
  if (completion != NULL) completion->sequence = sequence < 0 ? -1 : sequence;
  if (sequence < 0) return (int)sequence;
  return residentd_lane_await(lane, sequence, timeout_ns, completion);
}

/* --- Words ------------------------------------------------------------------------------------ */

static const char* refusal_text(uint16_t reason) {
  switch (reason) {
    case kLaneRefusedCall:
      return "the lane has no such call. Fix: prepare it";
    case kLaneRefusedKind:
      return "unknown kind of submission. Fix: use the library of the daemon's bundle";
    case kLaneRefusedFlags:
      return "flags that this kind of submission does not have. Fix: leave them out";
    case kLaneRefusedBuffer:
      return "the lane has no such buffer. Fix: bind it";
    case kLaneRefusedBounds:
      return "the tensor is not inside of its buffer. Fix: correct the place's offset";
    case kLaneRefusedAlignment:
      return "the tensor's offset is not a multiple of the size of its elements. Fix: correct the "
             "place's offset";
    case kLaneRefusedValue:
      return "a value outside of the limits that the call was prepared with. Fix: correct it, or "
             "prepare the call with "
             "other limits";
    case kLaneRefusedRange:
      return "wrong number of tasks of a range, or wrong place of its columns. Fix: submit smaller "
             "ranges";
    case kLaneRefusedLostBuffer:
      return "the buffer's contents were lost with an engine. Fix: allocate and bind it again";
    case kLaneRefusedPermission:
      return "the policy does not let the caller use the operator. Fix: ask the daemon's "
             "administrator";
    case kLaneRefusedQuarantined:
      return "the version is quarantined. Fix: prepare the call with another version, or version 0";
    case kLaneRefusedPrepareAgain:
      return "the version was removed, or the operator was installed anew. Fix: prepare the call "
             "again";
    case kLaneRefusedStream:
      return "the lane has no such stream word. Fix: use one below 32";
    default:
      return "refused for a reason that this library does not know. Fix: use the library of the "
             "daemon's bundle";
  }
}

static const char* status_text(const residentd_lane_completion* completion) {
  const bool may_have_run = (completion->flags & RESIDENTD_LANE_MAY_HAVE_RUN) != 0;
  switch (completion->status) {
    case kLaneOk:
      return "OK";
    case kLaneInvalidArgument:
      return "the operator refused its arguments. Fix: look up the detail in "
             "docs/operator_reference.md";
    case kLaneDeadlineExceeded:
      return "the deadline passed; it did not run";
    case kLaneCancelled:
      return "it was cancelled; it did not run";
    case kLaneAborted:
      return "the engine ended while the task ran, which is suspected to be the cause; it may have "
             "run in part";
    case kLaneUnavailable:
      return may_have_run ? "the engine ended; it may have run"
                          : "the engine ended, or the daemon stops; it did not run";
    case kLaneRefused:
      return refusal_text(completion->detail);
    default:
      return "the operator reported an internal error";
  }
}

const char* residentd_lane_explain(residentd_lane* lane,
                                   const residentd_lane_completion* completion) {
  char text[kLaneRefusalBytes];
  text[0] = 0;
  const lane_daemon_page* const page = lane->daemon;
  if (completion->status == kLaneRefused &&
      __atomic_load_n(&page->refused, __ATOMIC_ACQUIRE) == (uint64_t)completion->sequence) {
    for (size_t i = 0; i < sizeof(text); ++i)
      text[i] = __atomic_load_n(&page->refusal[i], __ATOMIC_RELAXED);
    text[sizeof(text) - 1] = 0;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    /* Otherwise the daemon has written another refusal meanwhile. */
    if (__atomic_load_n(&page->refused, __ATOMIC_RELAXED) != (uint64_t)completion->sequence)
      text[0] = 0;
  }
  if (text[0] != 0) {
    snprintf(explanation, sizeof(explanation), "%s", text);
  } else if (completion->status != kLaneRefused && completion->detail != 0) {
    snprintf(explanation, sizeof(explanation), "%s (detail %u)", status_text(completion),
             completion->detail);
  } else {
    snprintf(explanation, sizeof(explanation), "%s", status_text(completion));
  }
  return explanation;
}
