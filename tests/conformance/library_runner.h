// LibraryDevice: the device on which tests use libresident_ops, memory that it and the host can
// access, and a stream. RESIDENT_TEST_ENGINE=cuda: the first GPU; otherwise the CPU.
//
// The process ends with a message if the GPU cannot be used.
#ifndef RESIDENT_TESTS_CONFORMANCE_LIBRARY_RUNNER_H_
#define RESIDENT_TESTS_CONFORMANCE_LIBRARY_RUNNER_H_

#include <cstdint>

#include "library/resident_ops.h"

namespace resident::testing {

class LibraryDevice {
 public:
  LibraryDevice();

  // For resident_ops_create.
  int32_t number() const { return number_; }
  bool gpu() const { return number_ != RESIDENT_OPS_CPU; }
  void* stream() const { return stream_; }

  // Waits for the stream.
  void Synchronize() const;
  // Returns false if the context has an error.
  bool TrySynchronize() const;
  // Memory at one address for the host and the device; it is never freed.
  uint8_t* Allocate(uint64_t bytes) const;

 private:
  int32_t number_ = RESIDENT_OPS_CPU;
  void* stream_ = nullptr;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_CONFORMANCE_LIBRARY_RUNNER_H_
