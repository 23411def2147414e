// The options of the Open Inference Protocol (server/flags.cc has their flags).
//
// Thread safety: a value.
#ifndef RESIDENT_SERVER_INFERENCE_INFERENCE_OPTIONS_H_
#define RESIDENT_SERVER_INFERENCE_INFERENCE_OPTIONS_H_

#include <chrono>

namespace resident {

struct InferenceOptions {
  // --oip: whether the service is registered.
  bool enabled = true;
  // --oip_unload: whether RepositoryModelUnload may remove operators.
  bool unload = false;
  // --oip_region_idle: regions of shared memory end after this time without a request; 0: never.
  std::chrono::milliseconds region_idle{std::chrono::hours(1)};
};

}  // namespace resident

#endif  // RESIDENT_SERVER_INFERENCE_INFERENCE_OPTIONS_H_
