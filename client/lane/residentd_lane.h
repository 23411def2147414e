/* libresidentd_lane: submits tasks to residentd through memory that this process shares with it.
 *
 * A lane is opened over gRPC (`residentctl lane`, the C++ client, the Python package), which proves
 * who the caller is; this library then uses it without a system call for each task.
 * docs/local_lane.md begins with a whole program and describes all of this.
 *
 *   residentd_lane* lane = NULL;
 *   int status = residentd_lane_attach(socket, token, &lane);
 *   const uint64_t words[] = {residentd_lane_place_at(0, 0), residentd_lane_place_at(1, 0),
 *                             residentd_lane_place_at(2, 0)};
 *   residentd_lane_completion done;
 *   if (status == RESIDENTD_LANE_OK) status = residentd_lane_call(lane, call, words, 3, -1, &done);
 *   if (status != RESIDENTD_LANE_OK) puts(residentd_lane_last_error());
 *   else if (done.status != RESIDENTD_LANE_STATUS_OK) puts(residentd_lane_explain(lane, &done));
 *   residentd_lane_detach(lane);
 *
 * Submissions have the numbers 0, 1, 2, ... and are answered in any order, each once. A lane has a
 * fixed number of slots: submission s needs the slot of submission s - slots, which must have
 * ended, and whose completion can no longer be read from then on.
 *
 * Threads: a lane is for one thread at a time; use one lane for each thread. Lanes are independent.
 * A child process that fork() made cannot use a lane of its parent (RESIDENTD_LANE_FORKED); it may
 * detach it, which does not end the parent's lane.
 *
 * Memory ordering: data that was written before a submission is visible to its task. What a task
 * wrote to memory that this process shares with the daemon is visible once its completion was
 * returned by residentd_lane_await or residentd_lane_call, or residentd_lane_completed returned a
 * larger number. */
#ifndef RESIDENTD_LANE_H_
#define RESIDENTD_LANE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Incremented when this interface changes in an incompatible way. */
#define RESIDENTD_LANE_VERSION 1

/* What functions return. residentd_lane_last_error() says what was wrong. */
#define RESIDENTD_LANE_OK 0
/* All slots are in use, or the data area is: wait until submissions have ended, then try again. */
#define RESIDENTD_LANE_FULL (-1)
#define RESIDENTD_LANE_TIMEOUT (-2)
/* The daemon's process ended, or the lane was never answered: what was not answered may have run.
 */
#define RESIDENTD_LANE_LOST (-3)
/* The daemon closed the lane, or drains. */
#define RESIDENTD_LANE_CLOSED (-4)
/* A wrong argument. */
#define RESIDENTD_LANE_INVALID (-5)
/* The lane belongs to the process that called fork(). */
#define RESIDENTD_LANE_FORKED (-6)
/* The daemon refused the lane. */
#define RESIDENTD_LANE_NOT_ACCEPTED (-7)
/* The system refused a call, such as connect or mmap. */
#define RESIDENTD_LANE_SYSTEM (-8)

/* Flags of submissions. */
/* It starts when all earlier submissions of the lane have ended. Otherwise tasks run in any order.
 */
#define RESIDENTD_LANE_AFTER_ALL 1
/* words[6] is its deadline: a time of CLOCK_MONOTONIC in nanoseconds. At most 6 words are then
 * free. */
#define RESIDENTD_LANE_DEADLINE 2
/* If it ends OK, its completion has neither device_ns nor version. It is answered with less work.
 */
#define RESIDENTD_LANE_QUIET 4
/* AFTER_ALL is added if the submission needs it: because of memory that earlier ORDERED submissions
 * use (residentd_lane_set_access). */
#define RESIDENTD_LANE_ORDERED 8

/* residentd_lane_set_access: what a task does with the memory of a word. */
#define RESIDENTD_LANE_ACCESS_NONE 0 /* The word is a value. */
#define RESIDENTD_LANE_ACCESS_READ 1
#define RESIDENTD_LANE_ACCESS_WRITE 2
#define RESIDENTD_LANE_ACCESS_BOTH 3
#define RESIDENTD_LANE_ACCESS_ELEMENTS 4 /* The word is the number of elements. */

#define RESIDENTD_LANE_MAX_WORDS 7
#define RESIDENTD_LANE_STREAM_WORDS 32

/* residentd_lane_completion: status. Those below 64 are resident.v1.TaskStatus. */
#define RESIDENTD_LANE_STATUS_OK 0
#define RESIDENTD_LANE_STATUS_INVALID_ARGUMENT 1
#define RESIDENTD_LANE_STATUS_DEADLINE_EXCEEDED 2
#define RESIDENTD_LANE_STATUS_CANCELLED 3
#define RESIDENTD_LANE_STATUS_ABORTED 4
#define RESIDENTD_LANE_STATUS_UNAVAILABLE 5
#define RESIDENTD_LANE_STATUS_INTERNAL 6
/* The daemon refused the submission, and nothing of it ran; `detail` is one of the reasons below.
 */
#define RESIDENTD_LANE_STATUS_REFUSED 64

/* residentd_lane_completion: detail of a refused submission. */
#define RESIDENTD_LANE_REFUSED_CALL 1
#define RESIDENTD_LANE_REFUSED_KIND 2
#define RESIDENTD_LANE_REFUSED_FLAGS 3
#define RESIDENTD_LANE_REFUSED_BUFFER 4
#define RESIDENTD_LANE_REFUSED_BOUNDS 5
#define RESIDENTD_LANE_REFUSED_ALIGNMENT 6
#define RESIDENTD_LANE_REFUSED_VALUE 7
#define RESIDENTD_LANE_REFUSED_RANGE 8
#define RESIDENTD_LANE_REFUSED_LOST_BUFFER 9
#define RESIDENTD_LANE_REFUSED_PERMISSION 10
#define RESIDENTD_LANE_REFUSED_QUARANTINED 11
#define RESIDENTD_LANE_REFUSED_PREPARE_AGAIN 12
#define RESIDENTD_LANE_REFUSED_STREAM 13

/* residentd_lane_completion: flags. */
/* The daemon joined the task with others that waited; `device_ns` is their average. */
#define RESIDENTD_LANE_JOINED 1
/* With the status ABORTED, UNAVAILABLE, CANCELLED or DEADLINE_EXCEEDED: it may have run, in part.
 * Without it, it did not run. */
#define RESIDENTD_LANE_MAY_HAVE_RUN 2

typedef struct residentd_lane residentd_lane;

/* How a submission ended. */
typedef struct residentd_lane_completion {
  int64_t sequence;
  /* Time on the device, nanoseconds; of a range that of all tasks together, at most 2^32 - 1. */
  uint32_t device_ns;
  /* Of the operator that served; 0: none, or unknown (QUIET). */
  uint32_t version;
  /* What the operator set; of a refused submission the reason; of a range the number of tasks that
   * did not end OK, 65535 for more. */
  uint16_t detail;
  uint8_t status;
  uint8_t flags;
} residentd_lane_completion;

/* One word of each task of a range: task i has base + i * stride, or values[i] if `values` is not
 * null. Values are copied during the call, unless they are in the memory of residentd_lane_data. */
typedef struct residentd_lane_column {
  uint64_t base;
  uint64_t stride;
  const uint64_t* values;
} residentd_lane_column;

/* Returns RESIDENTD_LANE_VERSION of the library, which must equal that of the header. */
int residentd_lane_version(void);

/* Describes the last error of this thread. Valid until the next error on this thread. */
const char* residentd_lane_last_error(void);

/* Attaches to a lane that was opened: `socket` is OpenLaneResponse.local_address and `token` its
 * token, which is valid once and for 30 seconds. Both null: the environment variables
 * RESIDENTD_LANE_SOCKET and RESIDENTD_LANE_TOKEN, which `residentctl lane` sets for the program
 * that it runs. Waits up to 10 seconds for the daemon. Errors: NOT_ACCEPTED (the daemon's message),
 * INVALID, LOST (no daemon), SYSTEM. */
int residentd_lane_attach(const char* socket, const char* token, residentd_lane** out);

/* Ends the lane: what the daemon has not taken is dropped, what is in the ring runs to its end.
 * Null: nothing. */
void residentd_lane_detach(residentd_lane* lane);

/* Slots of the lane: how many submissions can be unanswered. */
uint32_t residentd_lane_slots(const residentd_lane* lane);

/* The number of the next submission. */
int64_t residentd_lane_next(const residentd_lane* lane);

/* Every submission below the returned number has ended. */
int64_t residentd_lane_completed(residentd_lane* lane);

/* A place: where a tensor of a submission begins. `buffer` is the index that Bind returned. */
static inline uint64_t residentd_lane_place_at(uint32_t buffer, uint64_t offset_bytes) {
  return (uint64_t)buffer << 48 | offset_bytes;
}

/* Tells the library that the bound buffer `buffer` is mapped at an address of this process, so that
 * residentd_lane_place finds it; `bytes` 0: it is no longer. INVALID: `buffer` is over 65,535. */
int residentd_lane_map(residentd_lane* lane, uint32_t buffer, void* address, uint64_t bytes);
/* Maps the buffer, whose memory `residentctl lane` passed to this program, and returns its
 * address; `bytes`, unless it is null, gets its size. Null: there is no such memory. The same
 * address each time; residentd_lane_place finds it; detach unmaps it. */
void* residentd_lane_memory(residentd_lane* lane, uint32_t buffer, uint64_t* bytes);
/* The place of a tensor of `bytes` at an address in memory of the two functions above. INVALID: it
 * is in none. */
int residentd_lane_place(residentd_lane* lane, const void* address, uint64_t bytes,
                         uint64_t* place);

/* Submits one task of the prepared call `call` with its `n` words. Returns its number, or FULL,
 * LOST, CLOSED, INVALID or FORKED. A full fence and one store; a system call only if the daemon
 * sleeps. */
int64_t residentd_lane_submit(residentd_lane* lane, uint16_t call, const uint64_t* words, int n,
                              int flags);

/* Submits `count` tasks of one call as one submission, with a column for each of the call's `n`
 * words. Places by stride are all in one buffer, and a word that is the number of elements has the
 * stride 0. Not for tasks that are divided between workers, or that have more than 11 arguments.
 * FULL if the data area has no space for the columns; INVALID if it never has. A wrong value
 * refuses all tasks. */
int64_t residentd_lane_submit_range(residentd_lane* lane, uint16_t call, uint32_t count,
                                    const residentd_lane_column* columns, int n, int flags);

/* The data area of ranges: memory for values that need not be copied. The library puts what it
 * copies into its last `reserve` bytes, which this call sets (at first: all of it). Null: there is
 * none. REQUIRES: no range is unanswered. */
uint64_t* residentd_lane_data(residentd_lane* lane, uint64_t reserve, uint64_t* bytes);

/* Waits until the submission has ended. `timeout_ns` < 0: without limit; 0: does not wait. Polls
 * for 20 microseconds, then sleeps. `completion` may be null. Any number of times for one
 * submission, as long as its slot was not used again. Returns OK if it has ended (with any status),
 * TIMEOUT, LOST, CLOSED, INVALID or FORKED. */
int residentd_lane_await(residentd_lane* lane, int64_t sequence, int64_t timeout_ns,
                         residentd_lane_completion* completion);

/* Submits one task and waits for it. If the lane is full it waits for a slot, too. After TIMEOUT
 * the task may still run; completion->sequence is its number, or -1 if it was not submitted. */
int residentd_lane_call(residentd_lane* lane, uint16_t call, const uint64_t* words, int n,
                        int64_t timeout_ns, residentd_lane_completion* completion);

/* Submissions below `sequence` that have not ended end as CANCELLED: those that have not reached
 * the ring do not run, and those that run are stopped, between their chunks or within an operator
 * that can be stopped. Submissions that the daemon found at once get their completions together,
 * when the last of them has ended. */
void residentd_lane_cancel_below(residentd_lane* lane, int64_t sequence);

/* Tells the library what each task of a prepared call does with word `word`, so that ORDERED
 * submissions of the call are ordered by memory. `mode` is one of RESIDENTD_LANE_ACCESS_*:
 *
 *   READ, WRITE, BOTH  the word is a place, and the task uses `span_bytes` from its offset on
 *   NONE               the word is a value; `span_bytes` is not used
 *   ELEMENTS           the word is the number of elements, of `span_bytes` each: it takes the place
 *                      of the spans of the call's places
 *
 * A task that reads or writes what an earlier ORDERED submission writes, or writes what one reads,
 * starts when all earlier submissions have ended; others start at once. The library keeps what was
 * read and written since the last submission with AFTER_ALL, in granules of 512 bytes of each
 * buffer: tasks that share a granule are ordered, too. Memory that is bound as two buffers is not
 * recognized as the same, and memory of arguments that do not vary is not known: let them vary. A
 * range is one submission: its own tasks run in any order, and a place by stride counts as
 * everything between its first and its last task.
 *
 * Only ORDERED submissions are kept: others, and those of residentd_lane_call, are not waited for,
 * unless AFTER_ALL is added. residentd_lane_cancel_below of a part of what was submitted ends the
 * order of the rest. Limits, beyond which AFTER_ALL is added although it may not be needed: 4,096
 * blocks of 32 KiB in use since the last one; submissions that use more by themselves, ranges with
 * more than 65,536 values of places, and submissions with a word of which nothing was told are
 * taken to write all memory; so are those without words. Awaits and signals of stream words do not
 * end what is kept, because they do not wait for earlier tasks; residentd_lane_stream_begin does,
 * if everything ordered was submitted before the last residentd_lane_stream_end of that stream.
 *
 * Tell each word of a call, before its first ORDERED submission and again when the daemon has given
 * the number to another call. About 80 ns for a submission of three small tensors. The first call
 * takes 256 KiB. Errors: INVALID (no such word or mode), SYSTEM (memory). */
int residentd_lane_set_access(residentd_lane* lane, uint16_t call, uint32_t word,
                              uint64_t span_bytes, int mode);

/* Orders submissions by words that other writers share, such as CUDA streams. Submissions after an
 * await are not read before (int32)(word - value) >= 0, where the word is `stream` of the client's
 * page, which residentd_lane_set_stream stores. A signal stores `value` to word `stream` of the
 * daemon's page when all earlier submissions have ended. `stream` is below 32, and the values of a
 * word only rise (modulo 2^32). Return values as of submit, and SYSTEM.
 *
 * A signal always comes. If the daemon ends or closes the lane, and when the lane is detached, a
 * thread of this library, which the first signal starts, stores the values that have not come. */
int64_t residentd_lane_submit_await(residentd_lane* lane, uint32_t stream, uint32_t value);
int64_t residentd_lane_submit_signal(residentd_lane* lane, uint32_t stream, uint32_t value);
void residentd_lane_set_stream(residentd_lane* lane, uint32_t stream, uint32_t value);
uint32_t residentd_lane_get_signal(const residentd_lane* lane, uint32_t stream);
/* Tasks that did not end OK before the signals to the word so far, since the lane was opened; a
 * refused submission counts as one. One more if the library stored a value in the daemon's place:
 * what happened before that signal is unknown. */
uint32_t residentd_lane_get_failed(const residentd_lane* lane, uint32_t stream);

/* Orders the lane's submissions with the work of a CUDA stream (a CUstream or cudaStream_t): those
 * after begin are not read before what was enqueued on the stream has ended, and what is enqueued
 * on the stream after end does not begin before all submissions up to end have ended. The processor
 * waits for neither:
 *
 *   produce<<<..., stream>>>(x);
 *   residentd_lane_stream_begin(lane, stream);
 *   residentd_lane_submit(lane, add, words, 3, RESIDENTD_LANE_QUIET);
 *   residentd_lane_stream_end(lane, stream);
 *   consume<<<..., stream>>>(out);
 *
 * Each stream has a pair of stream words of the lane, from word 31 downwards, so that at most 32
 * streams of one context are possible; do not use these words otherwise. Destroy a stream when it
 * is idle. `residentd_lane_get_failed` of word 31 - i is that of the i-th stream that was used.
 * CUDA does not know of this order: do not call these functions while the stream is captured into a
 * graph (INVALID). The driver is opened at the first call, which registers two pages of the lane
 * with the stream's context (SYSTEM: there is no driver, or its error). Detach waits for all work
 * of that context. Return OK, and otherwise as submit; after FULL nothing was enqueued. */
int residentd_lane_stream_begin(residentd_lane* lane, void* cuda_stream);
int residentd_lane_stream_end(residentd_lane* lane, void* cuda_stream);

/* Memory of a GPU that this process and the daemon share: an allocator, for instance for
 * torch.cuda.memory.CUDAPluggableAllocator. Each allocation is a segment, of which residentd_lane_
 * pool_export makes a descriptor; the daemon imports that (Buffers.ImportCuda). These functions
 * need no lane, and any thread may call them at any time. They open the driver at the first
 * allocation. In a child that fork() made they do nothing: FORKED, or null. */

/* A segment. `id` is never used again in this process, although its address may be. */
typedef struct residentd_lane_segment {
  uint64_t id;
  uint64_t address;        /* For the device. */
  uint64_t bytes;          /* Of the allocation: what ImportCuda needs as allocation_bytes. */
  uint8_t device_uuid[16]; /* As the driver returns it (cuDeviceGetUuid). */
  int32_t device;          /* The ordinal that pool_alloc was given. */
} residentd_lane_segment;

/* Returns the device's address of at least `bytes` bytes of the GPU with the driver's ordinal
 * `device`, which only that GPU can access. `stream` is not used. Null: last_error has the reason.
 * At most 65,536 segments; those that were freed, but not popped by pool_freed, count. */
void* residentd_lane_pool_alloc(size_t bytes, int device, void* stream);
/* Frees a segment by the address that pool_alloc returned. Waits for the work of the context in
 * which it was allocated, as cudaFree does, and unmaps it; the memory itself exists as long as the
 * daemon has it imported, so that tasks that use it are not disturbed. Null, or an unknown address:
 * nothing (last_error). `bytes`, `device` and `stream` are not used. */
void residentd_lane_pool_free(void* address, size_t bytes, int device, void* stream);
/* Finds the segment in which an address is. OK; INVALID: it is in none. */
int residentd_lane_pool_find(const void* address, residentd_lane_segment* segment);
/* A new descriptor of a segment's memory, which the caller closes; it is not passed to programs
 * that this one runs. Or an error: INVALID (no such segment, or it was freed), SYSTEM. */
int residentd_lane_pool_export(uint64_t id);
/* Writes the ids of at most `n` segments that were exported and have been freed, in this order, and
 * forgets them; returns their number, 0 if there are none, or INVALID (`n` < 0). The caller frees
 * the daemon's buffers of these segments. An id is there before the segment's address can be used
 * again. */
int residentd_lane_pool_freed(uint64_t* ids, int n);
/* A number that rises (release) when pool_freed has another id: who keeps addresses of segments
 * loads it (acquire) before an address is used. Valid as long as the process. */
const uint64_t* residentd_lane_pool_changes(void);

/* Says in words how a submission ended: the daemon's text if it is still the latest refusal of the
 * lane, otherwise what the status or the reason means. Valid until the next call on this thread. */
const char* residentd_lane_explain(residentd_lane* lane,
                                   const residentd_lane_completion* completion);

#ifdef __cplusplus
}
#endif

#endif /* RESIDENTD_LANE_H_ */
