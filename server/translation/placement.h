// Placement: which device runs a batch, and its engine at this moment.
//
// Thread safety: functions without state of their own.
#ifndef RESIDENT_SERVER_TRANSLATION_PLACEMENT_H_
#define RESIDENT_SERVER_TRANSLATION_PLACEMENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "server/translation/batch_translator.h"

namespace resident {

struct Placement {
  uint32_t device = 0;
  std::shared_ptr<EngineSession> session;
};

// `wanted`: the device asked for, or that of the buffers; none: the one with the
// fewest tasks queued and in flight. Errors: NOT_FOUND (no such device), UNAVAILABLE
// (no engine).
absl::StatusOr<Placement> Place(const std::vector<ServingDevice>& devices,
                                std::optional<uint32_t> wanted);

}  // namespace resident

#endif  // RESIDENT_SERVER_TRANSLATION_PLACEMENT_H_
