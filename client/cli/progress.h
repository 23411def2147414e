// A progress bar on stderr for long work. It is shown after half a second, only on a
// terminal, and erased when the work is done.
//
//   Progress progress("checking", vectors.size());
//   for (...) { ...; progress.Advance(1); }
#ifndef RESIDENT_CLIENT_CLI_PROGRESS_H_
#define RESIDENT_CLIENT_CLI_PROGRESS_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace resident::cli {

// The total of a Progress that is measured as a fraction.
inline constexpr uint64_t kProgressSteps = 1000;

class Progress {
 public:
  // `total` has the same unit as the argument of Advance.
  Progress(std::string label, uint64_t total);
  ~Progress();
  Progress(const Progress&) = delete;

  void Advance(uint64_t by);
  // For work measured in another way, e.g. by time.
  void Set(uint64_t done);

 private:
  void Draw();

  const std::string label_;
  const uint64_t total_;
  const bool enabled_;
  const absl::Time start_;
  uint64_t done_ = 0;
  absl::Time drawn_;
  bool visible_ = false;
};

// The bar itself, e.g. "checking  [#####.....]  50%". For tests.
std::string ProgressLine(const std::string& label, uint64_t done, uint64_t total, int width);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_PROGRESS_H_
