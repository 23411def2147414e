/* What the sources of libresidentd_lane share: the lane, and the parts of a submission. */
#ifndef RESIDENTD_LANE_STATE_H_
#define RESIDENTD_LANE_STATE_H_

#include <stdbool.h>
#include <stdint.h>

#include "client/lane/residentd_lane.h"
#include "runtime/lane/lane_layout.h"

/* A buffer that is mapped in this process. */
struct mapping {
  uint32_t buffer;
  bool owned; /* Mapped by residentd_lane_memory. */
  const uint8_t* address;
  uint64_t bytes;
};

/* A range whose columns are in the data area up to `end`. */
struct range {
  uint64_t sequence;
  uint64_t end;
};

struct residentd_lane {
  uint8_t* memory;
  uint64_t memory_bytes;
  lane_client_page* client;
  lane_daemon_page* daemon;
  lane_slot* slots;
  lane_completion* completions;
  uint8_t* data;
  uint32_t slot_count;
  int socket;
  bool lost;
  /* The number of the next submission; `completed` as it was last read. */
  uint64_t next;
  uint64_t completed;
  uint64_t cancel_below;
  /* How often the lane was found full since it was not. */
  uint32_t full;
  /* A page that the system fills with zeros in a child that fork() makes; otherwise 1. */
  volatile uint32_t* alive;

  /* The part of the data area that submit_range uses is a ring: positions only rise, and position p
   * is at data_begin + p % data_size. [data_tail, data_head) is in use. */
  uint64_t data_bytes, data_begin, data_size, data_head, data_tail;
  struct range* ranges; /* kMaxRanges, a ring; null before the first range. */
  uint64_t range_head, range_tail;

  struct mapping* mappings;
  uint32_t mapping_count, mapping_space, last_mapping;

  struct lane_order* order; /* Of residentd_lane_order.c; null before the first set_access. */
  struct watcher* watcher;  /* Of residentd_lane_streams.c; null before the first signal. */
  struct lane_cuda* cuda;   /* Of residentd_lane_cuda.c; null before the first CUDA stream. */
};

/* Sets what residentd_lane_last_error returns; returns `code`. */
__attribute__((format(printf, 2, 3))) int lane_fail(int code, const char* format, ...);

/* A page that the system fills with zeros in a child that fork() makes; otherwise it begins with 1.
 * Null: SYSTEM. */
volatile uint32_t* lane_map_alive(void);

/* OK: the next submission's slot is free, and lane_next_slot() returns it. */
int lane_reserve(residentd_lane* lane);
static inline lane_slot* lane_next_slot(residentd_lane* lane) {
  return &lane->slots[lane->next & (lane->slot_count - 1)];
}
/* Publishes the slot whose words are written; returns the submission's number, or LOST. */
int64_t lane_publish(residentd_lane* lane, lane_slot* slot, uint16_t call, uint8_t kind,
                     uint8_t flags);
/* Wakes the daemon. OK or LOST. */
int lane_ring(residentd_lane* lane);

/* For submissions with AFTER_ALL or ORDERED, when they are certain to be published: the flags for
 * the daemon. */
int lane_order_words(residentd_lane* lane, uint16_t call, const uint64_t* words, int n, int flags);
int lane_order_columns(residentd_lane* lane, uint16_t call, uint32_t count,
                       const residentd_lane_column* columns, int n, int flags);
/* An AFTER_ALL may not be waited for. */
void lane_order_unknown(residentd_lane* lane);
/* Later submissions are not read before all up to `sequence` have ended. */
void lane_order_ended(residentd_lane* lane, uint64_t sequence);
/* For detach. */
void lane_end_order(residentd_lane* lane);

/* A function of the CUDA driver, and where its address is stored. */
struct driver_call {
  const char* name;
  void** to;
};
/* Opens the driver, which this library is built without. Returns what it does not have; null: all
 * `count` calls are there. */
const char* lane_open_driver(const struct driver_call* calls, size_t count);
int lane_fail_no_driver(const char* missing);
/* `error_name` is cuGetErrorName. */
int lane_fail_cuda(int (*error_name)(int, const char**), const char* call, int error,
                   const char* fix);

/* Ends the thread that keeps the promise of signals, and keeps it. For detach, before the socket is
 * closed. */
void lane_end_watcher(residentd_lane* lane);

/* Ends the use of the lane's memory by CUDA streams. For detach, when every signal has come and
 * before the memory is unmapped. */
void lane_end_cuda(residentd_lane* lane);

#endif /* RESIDENTD_LANE_STATE_H_ */
