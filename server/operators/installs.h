// Installs: what the calls that install operators, or watch them, share.
//
// Thread safety: that of each member; the structure itself does not change after its construction.
#ifndef RESIDENT_SERVER_OPERATORS_INSTALLS_H_
#define RESIDENT_SERVER_OPERATORS_INSTALLS_H_

#include "runtime/base/limits.h"
#include "server/core/core.h"
#include "server/core/shared_slots.h"

namespace resident {

struct Installs {
  // The core must outlive it.
  explicit Installs(Core& the_core)
      : core(the_core),
        install_slots({.what = "installs under way", .flag = "--max_installs", .quota = "installs"},
                      the_core.limits.max_installs) {}
  Installs(const Installs&) = delete;
  Installs& operator=(const Installs&) = delete;

  Core& core;
  // For concurrent installs.
  SharedSlots install_slots;
  // For Operators.Watch streams.
  SharedSlots watch_slots{{.what = "Operators.Watch streams", .quota = "watches"}, kMaxWatchers};
};

}  // namespace resident

#endif  // RESIDENT_SERVER_OPERATORS_INSTALLS_H_
