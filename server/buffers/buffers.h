// Buffers: what the calls of resident.v1.Buffers share, and what limits clients' shared memory. The
// table of the buffers themselves is Core::buffers.
//
// Thread safety: that of each member; the structure itself does not change after its construction.
#ifndef RESIDENT_SERVER_BUFFERS_BUFFERS_H_
#define RESIDENT_SERVER_BUFFERS_BUFFERS_H_

#include <memory>
#include <string>

#include "runtime/base/limits.h"
#include "server/connections/passed_descriptors.h"
#include "server/core/core.h"
#include "server/core/shared_slots.h"

namespace resident {

struct BuffersOptions {
  bool allow_shared_memory = true;
  // Whether shared memory may be imported by its name, which does not prove that the caller may use
  // it. True only if callers have no identities and are on this machine.
  bool named_shared_memory = false;
  // --load_dir: the folder of the files that Buffers.LoadFile may read; empty: none.
  std::string load_dir = {};
};

struct Buffers {
  // The core must outlive it.
  explicit Buffers(Core& the_core, const BuffersOptions& options = {})
      : core(the_core),
        allow_shared_memory(options.allow_shared_memory),
        named_shared_memory(options.named_shared_memory),
        load_dir(options.load_dir) {}
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  Core& core;
  const bool allow_shared_memory;
  const bool named_shared_memory;
  const std::string load_dir;
  // For calls of Buffers.LoadFile.
  SharedSlots load_slots{{.what = "calls of Buffers.LoadFile"}, kMaxLoads};
  // For buffers in clients' shared memory, each of which holds a descriptor.
  SharedSlots shared_memory_slots{{.what = "buffers in shared memory"}, kMaxSharedBuffers};
  // Descriptors from the local socket, whose threads may outlive this object.
  const std::shared_ptr<PassedDescriptors> passed_descriptors =
      std::make_shared<PassedDescriptors>();
};

}  // namespace resident

#endif  // RESIDENT_SERVER_BUFFERS_BUFFERS_H_
