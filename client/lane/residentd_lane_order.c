/* Order by memory: which ORDERED submissions need AFTER_ALL.
 *
 * What was read and written since the last barrier is kept as bitmaps of 64 granules, one pair for
 * each block of memory that was used, in a hash table. A barrier empties the table by a new epoch,
 * so that it costs the same however much was used. */
#include <stdlib.h>
#include <string.h>

#include "client/lane/lane_state.h"

enum {
  kGranuleShift = 9,               /* 512 bytes. */
  kBlockShift = kGranuleShift + 6, /* 32 KiB: a bitmap has 64 bits. */
  kTableShift = 13,
  kTableEntries = 1 << kTableShift,
  kMaxBlocks = kTableEntries / 2,
  kMaxValues = 65536,
};

/* A buffer has no more. */
static const uint64_t kMaxSpanBytes = (uint64_t)1 << kLaneOffsetBits;

/* A block that was used in `epoch`. */
struct block {
  uint64_t epoch;
  uint64_t number; /* The place, in units of blocks. */
  uint64_t read, written;
};

/* What set_access told of a call. */
struct access {
  uint64_t span_bytes[kLaneWords];
  uint8_t mode[kLaneWords];
  uint8_t told; /* A bit for each word. */
};

struct lane_order {
  struct block* blocks; /* kTableEntries. */
  uint64_t epoch;
  uint32_t used;
  /* The last submission uses all memory. */
  bool all;
  /* The ordered submissions are below it. */
  uint64_t end;
  struct access* calls;
  uint32_t call_space;
};

static int fail_memory(void) {
  return lane_fail(RESIDENTD_LANE_SYSTEM, "out of memory. Fix: raise the limit on memory");
}

/* OK: lane->order exists. */
static int make_order(residentd_lane* lane) {
  if (lane->order != NULL) return RESIDENTD_LANE_OK;
  struct lane_order* const order = calloc(1, sizeof(*order));
  if (order == NULL) return fail_memory();
  order->blocks = calloc(kTableEntries, sizeof(*order->blocks));
  if (order->blocks == NULL) {
    free(order);
    return fail_memory();
  }
  order->epoch = 1;
  order->all = true; /* Ordered submissions before it. */
  order->end = lane->next;
  lane->order = order;
  return RESIDENTD_LANE_OK;
}

void lane_end_order(residentd_lane* lane) {
  struct lane_order* const order = lane->order;
  if (order == NULL) return;
  free(order->blocks);
  free(order->calls);
  free(order);
  lane->order = NULL;
}

int residentd_lane_set_access(residentd_lane* lane, uint16_t call, uint32_t word,
                              uint64_t span_bytes, int mode) {
  if (word >= kLaneWords || mode < RESIDENTD_LANE_ACCESS_NONE ||
      mode > RESIDENTD_LANE_ACCESS_ELEMENTS) {
    return lane_fail(RESIDENTD_LANE_INVALID,
                     "word %u with mode %d. Fix: pass a word below %d and one of "
                     "RESIDENTD_LANE_ACCESS_*",
                     word, mode, kLaneWords);
  }
  const int code = make_order(lane);
  if (code != RESIDENTD_LANE_OK) return code;
  struct lane_order* const order = lane->order;
  if (call >= order->call_space) {
    uint32_t space = order->call_space == 0 ? 16 : order->call_space;
    while (space <= call) space *= 2;
    struct access* const calls = realloc(order->calls, space * sizeof(*calls));
    if (calls == NULL) return fail_memory();
    memset(calls + order->call_space, 0, (space - order->call_space) * sizeof(*calls));
    order->calls = calls;
    order->call_space = space;
  }
  struct access* const access = &order->calls[call];
  access->span_bytes[word] = span_bytes < kMaxSpanBytes ? span_bytes : kMaxSpanBytes;
  access->mode[word] = (uint8_t)mode;
  access->told |= (uint8_t)(1u << word);
  return RESIDENTD_LANE_OK;
}

static void empty(struct lane_order* order) {
  ++order->epoch;
  order->used = 0;
  order->all = false;
}

void lane_order_unknown(residentd_lane* lane) {
  if (lane->order == NULL) return;
  lane->order->all = true;
  lane->order->end = lane->next;
}

void lane_order_ended(residentd_lane* lane, uint64_t sequence) {
  if (lane->order != NULL && lane->order->end <= sequence) empty(lane->order);
}

/* The entry of a block, or the free one where it belongs. The table is at most half full. */
static inline struct block* find(const struct lane_order* order, uint64_t number) {
  uint64_t at = number * 0x9e3779b97f4a7c15u >> (64 - kTableShift);
  while (true) {
    struct block* const block = &order->blocks[at];
    if (block->epoch != order->epoch || block->number == number) return block;
    at = (at + 1) & (kTableEntries - 1);
  }
}

/* Memory from a place on; both ends in granules. */
struct extent {
  uint64_t first, last;
};

static inline struct extent extent_of(uint64_t place, uint64_t span_bytes) {
  /* What is not in the buffer is refused by the daemon. */
  const uint64_t left = kMaxSpanBytes - (place & (kMaxSpanBytes - 1));
  const uint64_t last = place + (span_bytes < left ? span_bytes : left) - 1;
  return (struct extent){place >> kGranuleShift, last >> kGranuleShift};
}

/* The bits of a block that are in the extent. */
static inline uint64_t bits_of(const struct extent* extent, uint64_t number) {
  uint64_t bits = ~(uint64_t)0;
  if (number == extent->first >> 6) bits &= ~(uint64_t)0 << (extent->first & 63);
  if (number == extent->last >> 6) bits &= ~(uint64_t)0 >> (63 - (extent->last & 63));
  return bits;
}

/* A visit of a submission's memory: marks it, or looks for a reason to wait. */
struct visit {
  struct lane_order* order;
  bool mark;
  uint32_t left; /* Blocks that may be added. */
  /* The block that was visited last. */
  uint64_t number;
  struct block* block;
};

static inline struct visit begin_visit(struct lane_order* order, bool mark) {
  return (struct visit){order, mark, kMaxBlocks - order->used, UINT64_MAX, NULL};
}

/* False: it has to wait, or no block is left. */
static inline bool visit_extent(struct visit* visit, const struct extent extent, int mode) {
  struct lane_order* const order = visit->order;
  const uint64_t end = extent.last >> 6;
  for (uint64_t number = extent.first >> 6; number <= end; ++number) {
    if (number != visit->number) {
      visit->number = number;
      visit->block = find(order, number);
      if (visit->block->epoch != order->epoch) {
        if (visit->left-- == 0) return false;
        if (visit->mark) {
          *visit->block = (struct block){order->epoch, number, 0, 0};
          ++order->used;
        }
      }
    }
    struct block* const block = visit->block;
    const uint64_t bits = bits_of(&extent, number);
    if (visit->mark) {
      if ((mode & RESIDENTD_LANE_ACCESS_READ) != 0) block->read |= bits;
      if ((mode & RESIDENTD_LANE_ACCESS_WRITE) != 0) block->written |= bits;
    } else if (block->epoch == order->epoch) {
      uint64_t conflicts = block->written;
      if ((mode & RESIDENTD_LANE_ACCESS_WRITE) != 0) conflicts |= block->read;
      if ((conflicts & bits) != 0) return false;
    }
  }
  return true;
}

static inline bool visit_column(struct visit* visit, const residentd_lane_column* column,
                                uint32_t count, uint64_t span_bytes, int mode) {
  if (column->values == NULL) {
    /* The stride may be negative. */
    const uint64_t end = column->base + (count - 1) * column->stride;
    const bool rises = (int64_t)(end - column->base) >= 0;
    const uint64_t low = rises ? column->base : end;
    const uint64_t between = rises ? end - column->base : column->base - end;
    return visit_extent(visit, extent_of(low, between + span_bytes), mode);
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (!visit_extent(visit, extent_of(column->values[i], span_bytes), mode)) return false;
  }
  return true;
}

static bool visit_columns(struct visit* visit, const struct access* access, uint32_t count,
                          const residentd_lane_column* columns, int n) {
  /* The number of elements, if a word is that. */
  uint64_t elements = UINT64_MAX, element_bytes = 0;
  for (int i = 0; i < n; ++i) {
    if (access->mode[i] != RESIDENTD_LANE_ACCESS_ELEMENTS) continue;
    elements = columns[i].values == NULL ? columns[i].base : columns[i].values[0];
    element_bytes = access->span_bytes[i];
  }
  for (int i = 0; i < n; ++i) {
    const int mode = access->mode[i];
    if ((mode & RESIDENTD_LANE_ACCESS_BOTH) == 0) continue;
    uint64_t span_bytes = access->span_bytes[i];
    if (element_bytes != 0) {
      span_bytes =
          elements < kMaxSpanBytes / element_bytes ? elements * element_bytes : kMaxSpanBytes;
    }
    if (span_bytes != 0 && !visit_column(visit, &columns[i], count, span_bytes, mode)) return false;
  }
  return true;
}

/* What was told of the call; null: not enough, or its memory is too much. */
static const struct access* find_access(const struct lane_order* order, uint16_t call,
                                        uint32_t count, const residentd_lane_column* columns,
                                        int n) {
  if (call >= order->call_space || n == 0) return NULL;
  const struct access* const access = &order->calls[call];
  if ((~(uint32_t)access->told & ((1u << n) - 1)) != 0) return NULL;
  uint64_t values = 0;
  for (int i = 0; i < n; ++i) {
    if (columns[i].values != NULL && access->mode[i] != RESIDENTD_LANE_ACCESS_NONE) values += count;
  }
  return values > kMaxValues ? NULL : access;
}

int lane_order_columns(residentd_lane* lane, uint16_t call, uint32_t count,
                       const residentd_lane_column* columns, int n, int flags) {
  struct lane_order* const order = lane->order;
  if ((flags & RESIDENTD_LANE_ORDERED) == 0) {
    if ((flags & RESIDENTD_LANE_AFTER_ALL) != 0 && order != NULL) empty(order);
    return flags;
  }
  flags &= ~RESIDENTD_LANE_ORDERED;
  if (order == NULL) return flags | RESIDENTD_LANE_AFTER_ALL;
  const struct access* const access = find_access(order, call, count, columns, n);
  struct visit visit = begin_visit(order, false);
  if (access == NULL || order->all || (flags & RESIDENTD_LANE_AFTER_ALL) != 0 ||
      !visit_columns(&visit, access, count, columns, n)) {
    flags |= RESIDENTD_LANE_AFTER_ALL;
    empty(order);
  }
  visit = begin_visit(order, true);
  order->all = access == NULL || !visit_columns(&visit, access, count, columns, n);
  order->end = lane->next + 1;
  return flags;
}

int lane_order_words(residentd_lane* lane, uint16_t call, const uint64_t* words, int n, int flags) {
  residentd_lane_column columns[kLaneWords];
  /* The last word is no word of the call. */
  if ((flags & RESIDENTD_LANE_DEADLINE) != 0 && n == kLaneWords) --n;
  for (int i = 0; i < n; ++i) columns[i] = (residentd_lane_column){words[i], 0, NULL};
  return lane_order_columns(lane, call, 1, columns, n, flags);
}
