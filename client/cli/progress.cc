#include "client/cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace resident::cli {
namespace {

constexpr absl::Duration kShownAfter = absl::Milliseconds(500);
constexpr absl::Duration kRedrawEvery = absl::Milliseconds(100);
constexpr int kBarWidth = 40;

}  // namespace

std::string ProgressLine(const std::string& label, uint64_t done, uint64_t total, int width) {
  const double part =
      total == 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const int filled = static_cast<int>(part * width);
  return absl::StrCat(label, "  [", std::string(filled, '#'), std::string(width - filled, '.'),
                      absl::StrFormat("] %3.0f%%", part * 100));
}

Progress::Progress(std::string label, uint64_t total)
    : label_(std::move(label)),
      total_(total),
      enabled_(isatty(STDERR_FILENO) == 1),
      start_(absl::Now()) {}

Progress::~Progress() {
  if (visible_) std::fprintf(stderr, "\r\x1b[K");
}

void Progress::Advance(uint64_t by) { Set(done_ + by); }

void Progress::Set(uint64_t done) {
  done_ = done;
  if (enabled_) Draw();
}

void Progress::Draw() {
  const absl::Time now = absl::Now();
  if (now - start_ < kShownAfter || now - drawn_ < kRedrawEvery) return;
  drawn_ = now;
  visible_ = true;
  std::fprintf(stderr, "\r\x1b[K%s", ProgressLine(label_, done_, total_, kBarWidth).c_str());
  std::fflush(stderr);
}

}  // namespace resident::cli
