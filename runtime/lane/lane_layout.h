/* The memory that a local lane's client and the daemon share, and the packets of the socket over
 * which it is passed. Plain C11, which C++ also accepts: the client's library is C.
 * docs/local_lane.md describes lanes; this header is the format.
 *
 * The daemon creates one memory object for each lane (memfd), seals it with F_SEAL_SHRINK,
 * F_SEAL_GROW and F_SEAL_SEAL, and passes its descriptor. Both sides map all of it:
 *
 *   offset                bytes        written by
 *   0                     4,096        client    lane_client_page
 *   4,096                 4,096        daemon    lane_daemon_page
 *   8,192                 slots * 64   client    lane_slot
 *   8,192 + slots * 64    slots * 16   daemon    lane_completion
 *   8,192 + slots * 80    data_bytes   client    records and values of ranges
 *
 * `slots` is a power of two from kLaneMinSlots to kLaneMaxSlots. Submission s (0, 1, 2, ...) is in
 * slot s % slots, and so is its completion. The daemon reads submissions in this order, each once.
 * It reads submission s only when every submission below s - slots + 1 has ended, so that a slot
 * never holds two submissions that have not ended.
 *
 * Trust: the client may write any byte at any time. The daemon loads each word that it uses once,
 * checks this copy and uses only this copy. It never reads what it wrote itself. The client trusts
 * the daemon.
 *
 * Memory ordering:
 *
 * Submission: the client stores `words`, then `head` with release. The daemon loads `head` with
 * acquire, then `words`. What the client wrote before `head`, in this memory or in memory that it
 * shares with the device, is visible to the task.
 *
 * Completion: the daemon stores `tail`, then `head` with release; later `completed` with release. A
 * client that loads `head` or `completed` with acquire sees what the task wrote to memory that the
 * client shares. Memory of the device is visible to later tasks.
 *
 * Doorbell: the client stores `head`, executes a full fence, loads `asleep`, and if it is 1 sends
 * one byte on the socket. The daemon stores `asleep` = 1, executes a full fence, and looks at the
 * next slot once more before it stops polling.
 *
 * Sleep: the client stores `sleeping` = 1, executes a full fence, loads `wakes`, looks for its
 * completion, and calls futex(FUTEX_WAIT, &wakes, the loaded value). The daemon stores completions
 * and `completed`, executes a full fence, and if `sleeping` is 1 adds 1 to `wakes` and calls
 * futex(FUTEX_WAKE). The futex is not private to a process. */
#ifndef RESIDENT_RUNTIME_LANE_LANE_LAYOUT_H_
#define RESIDENT_RUNTIME_LANE_LANE_LAYOUT_H_

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum {
  kLanePageBytes = 4096,
  kLaneMinSlots = 64,
  kLaneMaxSlots = 65536,
  kLaneDefaultSlots = 4096,
  kLaneWords = 7,
  kLaneStreamWords = 32,
  kLaneMaxDataBytes = 64 << 20,
  kLaneRefusalBytes = 248,
  /* A place's offset has this many bits; above it is the index of the buffer. */
  kLaneOffsetBits = 48,
};

/* lane_slot: the kind of a submission. 4 is reserved for runs of a loaded graph. */
enum {
  /* One task of the prepared call `call`; words[0 .. n - 1] are the call's words. */
  kLaneTask = 0,
  /* Many tasks of the prepared call: words[0] tasks, whose words are described by lane_range_column
   * records, one for each word of the call, at offset words[1] of the data area (a multiple of 8).
   */
  kLaneRange = 1,
  /* Later submissions are not read before (int32)(client page's stream[words[0]] - words[1]) >= 0.
   * `call` is 0. */
  kLaneAwait = 2,
  /* When every earlier submission has ended, the daemon stores the low half of words[1] to its
   * page's stream[words[0]]. `call` is 0. */
  kLaneSignal = 3,
};

/* lane_slot: flags of a submission. Other bits are refused. */
enum {
  /* It starts when all earlier submissions of the lane have ended. Otherwise tasks run in any
     order. */
  kLaneAfterAll = 1,
  /* words[6] is its deadline, a time of CLOCK_MONOTONIC in nanoseconds. */
  kLaneDeadline = 2,
  /* If it ends OK, no completion is written; only `completed` moves. */
  kLaneQuiet = 4,
};

/* lane_completion: status. */
enum {
  /* 0 to 6 are those of resident.v1.TaskStatus. Of a range: that of the first task that did not end
   * OK. */
  kLaneOk = 0,
  kLaneInvalidArgument = 1,
  kLaneDeadlineExceeded = 2,
  kLaneCancelled = 3,
  kLaneAborted = 4,
  kLaneUnavailable = 5,
  kLaneInternal = 6,
  /* The daemon did not accept the submission; nothing of it ran. `detail` is a lane_refusal. */
  kLaneRefused = 64,
};

/* lane_completion: flags. */
enum {
  /* The task was joined with others into a range; `device_ns` is the average of that range. */
  kLaneJoined = 1,
  /* With kLaneAborted and kLaneUnavailable: it may have run. Without it, it did not run. */
  kLaneMayHaveRun = 2,
};

/* lane_completion: detail of kLaneRefused. */
enum lane_refusal {
  /* No such prepared call, or it was released. */
  kLaneRefusedCall = 1,
  kLaneRefusedKind = 2,
  kLaneRefusedFlags = 3,
  /* No such buffer in the lane's table. */
  kLaneRefusedBuffer = 4,
  /* The tensor is not inside of the buffer. */
  kLaneRefusedBounds = 5,
  /* The offset is not a multiple of the element's size. */
  kLaneRefusedAlignment = 6,
  /* A scalar or a number of elements outside of the limits of Prepare. */
  kLaneRefusedValue = 7,
  /* The number of tasks of a range, or the place of its records or values. */
  kLaneRefusedRange = 8,
  /* The buffer's contents were lost with an engine; bind it again. */
  kLaneRefusedLostBuffer = 9,
  /* The policy does not let the caller use the operator (any more). */
  kLaneRefusedPermission = 10,
  /* The pinned version is quarantined. */
  kLaneRefusedQuarantined = 11,
  /* The pinned version was removed, or the operator was removed and installed again: prepare the
   * call again. */
  kLaneRefusedPrepareAgain = 12,
  /* Await, Signal: no such stream word. */
  kLaneRefusedStream = 13,
};

/* lane_daemon_page: state. */
enum {
  kLaneOpen = 1,
  /* The daemon drains: what it has not read ends as kLaneUnavailable, without kLaneMayHaveRun. */
  kLaneDraining = 2,
  kLaneClosed = 3,
};

/* One cache line carries payload and readiness.
 *   head   bits 0-31   stamp: the low half of the sequence number, plus 1 (modulo 2^32)
 *          bits 32-47  call: the number of a prepared call
 *          bits 48-55  kind
 *          bits 56-63  flags
 *   words  what changes from call to call:
 *          a place   the index in the lane's table of buffers in bits 48-63; below it the byte
 *                    offset of the tensor's first element (index 0 in each dimension)
 *          a value   a scalar: its bits in the low bytes, in the dtype of the operator's
 *                    parameter; the other bytes are ignored
 *          elements  the number of elements of each tensor */
typedef struct lane_slot {
  uint64_t head;
  uint64_t words[kLaneWords];
} lane_slot;

/*   head   bits 0-31   stamp, as in the submission
 *          bits 32-39  status
 *          bits 40-47  flags
 *          bits 48-63  detail. Of kLaneRefused: the reason. Of a task: what the operator set. Of a
 *                      range: the number of tasks that did not end OK, 65535 for more.
 *   tail   bits 0-31   device_ns: time on the device, in nanoseconds, at most 2^32 - 1
 *          bits 32-63  version of the operator that served; 0: none */
typedef struct lane_completion {
  uint64_t head;
  uint64_t tail;
} lane_completion;

/* One word of each task of a range: task i has base + i * stride (modulo 2^64), or, if `values` is
 * not 0, element i of the uint64_t array at offset `values` of the data area, a multiple of 8; base
 * and stride are then 0. */
typedef struct lane_range_column {
  uint64_t base;
  uint64_t stride;
  uint64_t values;
} lane_range_column;

typedef struct lane_client_page {
  /* Submissions below it that have not reached the ring end as kLaneCancelled. Only rises. */
  uint64_t cancel_below;
  /* 1: the client waits on `wakes`. */
  uint32_t sleeping;
  uint32_t reserved[13];
  /* Written by the client's CUDA streams (low half) or by the client. */
  uint64_t stream[kLaneStreamWords];
} lane_client_page;

typedef struct lane_daemon_page {
  /* 1: the daemon does not poll; send one byte on the socket after a submission. */
  uint32_t asleep;
  uint32_t state;
  /* The futex of a client that sleeps. */
  uint32_t wakes;
  uint32_t reserved0[13];
  /* Every submission below it has ended, and its completion is written. Only rises. */
  uint64_t completed;
  uint64_t reserved1[7];
  /* What Signal stored; for waits of the client's CUDA streams (low half). */
  uint64_t stream[kLaneStreamWords];
  /* Tasks that did not end OK before each Signal to the word, since the lane was opened; modulo
   * 2^32. */
  uint32_t stream_failed[kLaneStreamWords];
  /* The latest refusal: its submission, and what was wrong, with a terminating 0. The daemon stores
   * UINT64_MAX to `refused`, then the text, then the sequence number with release. */
  uint64_t refused;
  char refusal[kLaneRefusalBytes];
} lane_daemon_page;

/* The local socket (SOCK_SEQPACKET). The client sends kLaneMagic and the token of Lanes.Open as
 * text. The daemon answers with one packet: a lane_welcome whose `code` is 0, with the lane's
 * memory as SCM_RIGHTS; or 4 bytes with another code of google.rpc.Code, and behind them the
 * message as text. Afterwards the connection stays open as the lane: bytes from the client are the
 * doorbell, and the end of the connection is the end of the lane. The daemon sends nothing more. */
#define kLaneMagic "residln1"
typedef struct lane_welcome {
  uint32_t code;
  uint32_t layout_hash;
  uint32_t slots;
  uint32_t reserved; /* 0 */
  uint64_t data_bytes;
} lane_welcome;

static_assert(sizeof(lane_slot) == 64, "one cache line");
static_assert(offsetof(lane_slot, head) == 0, "");
static_assert(offsetof(lane_slot, words) == 8, "");
static_assert(sizeof(lane_completion) == 16, "");
static_assert(offsetof(lane_completion, head) == 0, "");
static_assert(offsetof(lane_completion, tail) == 8, "");
static_assert(sizeof(lane_range_column) == 24, "");
static_assert(offsetof(lane_range_column, base) == 0, "");
static_assert(offsetof(lane_range_column, stride) == 8, "");
static_assert(offsetof(lane_range_column, values) == 16, "");
static_assert(sizeof(lane_client_page) <= kLanePageBytes, "");
static_assert(offsetof(lane_client_page, cancel_below) == 0, "");
static_assert(offsetof(lane_client_page, sleeping) == 8, "");
static_assert(offsetof(lane_client_page, stream) == 64, "");
static_assert(sizeof(lane_daemon_page) <= kLanePageBytes, "");
static_assert(offsetof(lane_daemon_page, asleep) == 0, "");
static_assert(offsetof(lane_daemon_page, state) == 4, "");
static_assert(offsetof(lane_daemon_page, wakes) == 8, "");
static_assert(offsetof(lane_daemon_page, completed) == 64, "");
static_assert(offsetof(lane_daemon_page, stream) == 128, "");
static_assert(offsetof(lane_daemon_page, stream_failed) == 384, "");
static_assert(offsetof(lane_daemon_page, refused) == 512, "");
static_assert(offsetof(lane_daemon_page, refusal) == 520, "");
static_assert(sizeof(lane_welcome) == 24, "");
static_assert(offsetof(lane_welcome, code) == 0, "");
static_assert(offsetof(lane_welcome, layout_hash) == 4, "");
static_assert(offsetof(lane_welcome, slots) == 8, "");
static_assert(offsetof(lane_welcome, data_bytes) == 16, "");

static inline uint32_t lane_stamp(uint64_t sequence) { return (uint32_t)sequence + 1; }

static inline uint64_t lane_slot_head(uint64_t sequence, uint16_t call, uint8_t kind,
                                      uint8_t flags) {
  return (uint64_t)lane_stamp(sequence) | (uint64_t)call << 32 | (uint64_t)kind << 48 |
         (uint64_t)flags << 56;
}
/* The stamp of a slot's or a completion's head. */
static inline uint32_t lane_head_stamp(uint64_t head) { return (uint32_t)head; }
static inline uint16_t lane_head_call(uint64_t head) { return (uint16_t)(head >> 32); }
static inline uint8_t lane_head_kind(uint64_t head) { return (uint8_t)(head >> 48); }
static inline uint8_t lane_head_flags(uint64_t head) { return (uint8_t)(head >> 56); }

static inline uint64_t lane_completion_head(uint64_t sequence, uint8_t status, uint8_t flags,
                                            uint16_t detail) {
  return (uint64_t)lane_stamp(sequence) | (uint64_t)status << 32 | (uint64_t)flags << 40 |
         (uint64_t)detail << 48;
}
static inline uint64_t lane_completion_tail(uint32_t device_ns, uint32_t version) {
  return (uint64_t)device_ns | (uint64_t)version << 32;
}

static inline uint64_t lane_place(uint16_t buffer, uint64_t offset) {
  return (uint64_t)buffer << kLaneOffsetBits | offset;
}
static inline uint16_t lane_place_buffer(uint64_t place) {
  return (uint16_t)(place >> kLaneOffsetBits);
}
static inline uint64_t lane_place_offset(uint64_t place) {
  return place & (((uint64_t)1 << kLaneOffsetBits) - 1);
}

/* Offsets in the memory, in bytes. */
static inline uint64_t lane_slots_offset(void) { return 2 * kLanePageBytes; }
static inline uint64_t lane_completions_offset(uint32_t slots) {
  return lane_slots_offset() + (uint64_t)slots * sizeof(lane_slot);
}
static inline uint64_t lane_data_offset(uint32_t slots) {
  return lane_completions_offset(slots) + (uint64_t)slots * sizeof(lane_completion);
}
/* Size of the memory. */
static inline uint64_t lane_bytes(uint32_t slots, uint64_t data_bytes) {
  return lane_data_offset(slots) + data_bytes;
}

/* Differs between two builds that could interpret the memory differently. kLaneVersion is
 * incremented when a meaning changes without a size or an offset. */
enum { kLaneVersion = 1 };
static inline uint32_t lane_layout_hash(void) {
  const uint64_t fields[] = {
      kLaneVersion,
      kLanePageBytes,
      kLaneWords,
      kLaneStreamWords,
      kLaneRefusalBytes,
      kLaneOffsetBits,
      sizeof(lane_slot),
      sizeof(lane_completion),
      sizeof(lane_range_column),
      offsetof(lane_client_page, cancel_below),
      offsetof(lane_client_page, sleeping),
      offsetof(lane_client_page, stream),
      offsetof(lane_daemon_page, asleep),
      offsetof(lane_daemon_page, state),
      offsetof(lane_daemon_page, wakes),
      offsetof(lane_daemon_page, completed),
      offsetof(lane_daemon_page, stream),
      offsetof(lane_daemon_page, stream_failed),
      offsetof(lane_daemon_page, refused),
      offsetof(lane_daemon_page, refusal),
  };
  uint64_t hash = 14695981039346656037ULL; /* FNV-1a. */
  for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); ++i) {
    hash = (hash ^ fields[i]) * 1099511628211ULL;
  }
  return (uint32_t)(hash ^ hash >> 32);
}

#endif /* RESIDENT_RUNTIME_LANE_LANE_LAYOUT_H_ */
