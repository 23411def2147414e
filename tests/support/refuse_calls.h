// RefuseCalls: simulates a kernel without certain system calls for the calling thread and
// its children: the calls fail with ENOSYS. This cannot be undone.
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
