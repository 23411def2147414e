// RefuseCalls: a kernel that lacks a system call, as far as the calling thread and what it
// starts can tell: the calls fail with ENOSYS. There is no way back.
//
//   std::thread([] {
//     ASSERT_TRUE(RefuseCalls({SYS_landlock_create_ruleset}));
//     ...
//   }).join();
#ifndef RESIDENT_TESTS_SUPPORT_REFUSE_CALLS_H_
#define RESIDENT_TESTS_SUPPORT_REFUSE_CALLS_H_

#include <vector>

namespace resident::testing {

// False: this kernel has no seccomp filters.
bool RefuseCalls(const std::vector<int>& calls);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_SUPPORT_REFUSE_CALLS_H_
