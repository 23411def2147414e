// Confine: the words of a block's shared memory through which the kernel stops the operator that
// the block runs. The code of a stoppable version reads them at fixed addresses, because functions
// that it calls have no pointer to them. The kernels write them; operators do not know of them.
#ifndef RESIDENT_KERNELS_LAYOUT_CONFINE_H_
#define RESIDENT_KERNELS_LAYOUT_CONFINE_H_

#include "kernels/layout/platform.h"
#include "kernels/layout/task.h"

namespace resident {

inline constexpr u32 kConfinedWarps = 8;

// Where the lanes of a warp meet before an operation that waits for all of them.
struct MeetingWords {
  u32 arrivals;
  u32 site;
  u32 disagreement;
  u32 reserved;
};
static_assert(sizeof(MeetingWords) == 16, "");
static_assert(__builtin_offsetof(MeetingWords, arrivals) == 0, "");
static_assert(__builtin_offsetof(MeetingWords, site) == 4, "");
static_assert(__builtin_offsetof(MeetingWords, disagreement) == 8, "");

struct alignas(512) Confine {
  // For code whose accesses are confined, which there is not yet.
  u64 base;
  u64 load_mask;
  u64 store_mask;
  u64 reserved;
  // A StopReason: not 0 means that the operator is to return.
  u32 stop;
  alignas(128) MeetingWords meetings[kConfinedWarps];
};
static_assert(sizeof(Confine) == 512, "");
static_assert(__builtin_offsetof(Confine, base) == 0, "");
static_assert(__builtin_offsetof(Confine, load_mask) == 8, "");
static_assert(__builtin_offsetof(Confine, store_mask) == 16, "");
static_assert(__builtin_offsetof(Confine, stop) == 32, "");
static_assert(__builtin_offsetof(Confine, meetings) == 128, "");

// The address of a block's Confine in shared memory, in both kernels: their static shared memory
// begins there, behind what the system reserves. The kernels do not start if it is elsewhere.
// `architecture`: 90 for sm_90.
RESIDENT_HOST_DEVICE constexpr u32 ConfineAddress(u32 architecture) {
  return architecture >= 90 ? 1024 : 0;
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_LAYOUT_CONFINE_H_
