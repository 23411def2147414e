/* Awaits and signals, the words by which streams of the client are ordered with a lane's tasks.
 *
 * A stream that waits for a signal must not wait for ever: when the daemon has ended, or has closed
 * the lane, a thread of the library stores the values that signals would have stored. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/lane/lane_state.h"

/* The thread, and what it has to store. */
struct watcher {
  pthread_t thread;
  int stop; /* An eventfd: detach. */
  pthread_mutex_t mutex;
  /* With `mutex`: whether the lane has ended; the words that were promised, and the last value of
   * each one. */
  bool ended;
  uint32_t promised;
  uint32_t values[kLaneStreamWords];
};

/* Stores what was promised and has not come. With the mutex. */
static void keep_promises(residentd_lane* lane) {
  struct watcher* const watcher = lane->watcher;
  for (uint32_t w = 0; w < kLaneStreamWords; ++w) {
    if ((watcher->promised >> w & 1) == 0) continue;
    uint64_t* const word = &lane->daemon->stream[w];
    const uint32_t value = watcher->values[w];
    /* The daemon writes no more. Values only rise. */
    if ((int32_t)(value - (uint32_t)__atomic_load_n(word, __ATOMIC_RELAXED)) <= 0) continue;
    __atomic_fetch_add(&lane->daemon->stream_failed[w], 1, __ATOMIC_RELEASE);
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
  }
}

static void* watch(void* argument) {
  residentd_lane* const lane = argument;
  struct watcher* const watcher = lane->watcher;
  /* The daemon sends nothing, so that any event of the socket is its end. */
  struct pollfd polled[2] = {{lane->socket, POLLIN | POLLRDHUP, 0}, {watcher->stop, POLLIN, 0}};
  while (poll(polled, 2, -1) < 0 && errno == EINTR) {
  }
  pthread_mutex_lock(&watcher->mutex);
  watcher->ended = true;
  keep_promises(lane);
  pthread_mutex_unlock(&watcher->mutex);
  return NULL;
}

static int start_watcher(residentd_lane* lane) {
  struct watcher* const watcher = calloc(1, sizeof(*watcher));
  if (watcher == NULL)
    return lane_fail(RESIDENTD_LANE_SYSTEM, "out of memory. Fix: raise the limit on memory");
  pthread_mutex_init(&watcher->mutex, NULL);
  watcher->stop = eventfd(0, EFD_CLOEXEC);
  lane->watcher = watcher;
  /* The program's signals are not for this thread. */
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = watcher->stop < 0 ? errno : 0;
  if (error == 0) error = pthread_create(&watcher->thread, NULL, watch, lane);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error == 0) return RESIDENTD_LANE_OK;
  if (watcher->stop >= 0) close(watcher->stop);
  pthread_mutex_destroy(&watcher->mutex);
  free(watcher);
  lane->watcher = NULL;
  return lane_fail(RESIDENTD_LANE_SYSTEM,
                   "cannot start a thread that watches the daemon: %s. Fix: raise the limit on "
                   "threads or on open files",
                   strerror(error));
}

void lane_end_watcher(residentd_lane* lane) {
  struct watcher* const watcher = lane->watcher;
  if (watcher == NULL) return;
  /* A child of fork() does not have the thread, and the words are its parent's. */
  if (*lane->alive != 0) {
    const uint64_t one = 1;
    while (write(watcher->stop, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    pthread_join(watcher->thread, NULL);
    pthread_mutex_destroy(&watcher->mutex);
  }
  close(watcher->stop);
  free(watcher);
  lane->watcher = NULL;
}

static int64_t submit_stream(residentd_lane* lane, uint8_t kind, uint32_t stream, uint32_t value) {
  const int code = lane_reserve(lane);
  if (code != RESIDENTD_LANE_OK) return code;
  lane_slot* const slot = lane_next_slot(lane);
  __atomic_store_n(&slot->words[0], stream, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->words[1], value, __ATOMIC_RELAXED);
  return lane_publish(lane, slot, 0, kind, 0);
}

static int check_stream(uint32_t stream) {
  if (stream < kLaneStreamWords) return RESIDENTD_LANE_OK;
  return lane_fail(RESIDENTD_LANE_INVALID, "stream word %u. Fix: use one below %d", stream,
                   kLaneStreamWords);
}

int64_t residentd_lane_submit_await(residentd_lane* lane, uint32_t stream, uint32_t value) {
  const int code = check_stream(stream);
  return code != RESIDENTD_LANE_OK ? code : submit_stream(lane, kLaneAwait, stream, value);
}

int64_t residentd_lane_submit_signal(residentd_lane* lane, uint32_t stream, uint32_t value) {
  int code = check_stream(stream);
  if (code == RESIDENTD_LANE_OK) code = lane_reserve(lane);
  if (code == RESIDENTD_LANE_OK && lane->watcher == NULL) code = start_watcher(lane);
  if (code != RESIDENTD_LANE_OK) return code;
  const int64_t sequence = submit_stream(lane, kLaneSignal, stream, value);
  if (sequence < 0) return sequence;
  struct watcher* const watcher = lane->watcher;
  pthread_mutex_lock(&watcher->mutex);
  watcher->promised |= 1u << stream;
  watcher->values[stream] = value;
  if (watcher->ended) keep_promises(lane);
  pthread_mutex_unlock(&watcher->mutex);
  return sequence;
}

void residentd_lane_set_stream(residentd_lane* lane, uint32_t stream, uint32_t value) {
  if (stream >= kLaneStreamWords) return;
  __atomic_store_n(&lane->client->stream[stream], value, __ATOMIC_RELEASE);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (__atomic_load_n(&lane->daemon->asleep, __ATOMIC_RELAXED) != 0) lane_ring(lane);
}

uint32_t residentd_lane_get_signal(const residentd_lane* lane, uint32_t stream) {
  if (stream >= kLaneStreamWords) return 0;
  return (uint32_t)__atomic_load_n(&lane->daemon->stream[stream], __ATOMIC_ACQUIRE);
}

uint32_t residentd_lane_get_failed(const residentd_lane* lane, uint32_t stream) {
  if (stream >= kLaneStreamWords) return 0;
  return __atomic_load_n(&lane->daemon->stream_failed[stream], __ATOMIC_ACQUIRE);
}
