#include <string_view>
#include <utility>
#include <vector>

#include "kernels/ops/builtin.h"
#include "tests/units/link_units.h"
#include "tests/units/trials.h"

#define DECLARE(suffix)                                \
  extern const char _binary_trials_##suffix##_start[]; \
  extern const char _binary_trials_##suffix##_end[];
extern "C" {
DECLARE(so)
DECLARE(checked_so)
#ifdef RESIDENT_HAVE_CUDA
DECLARE(ptx)
DECLARE(checked_ptx)
#endif
}
#undef DECLARE

namespace resident::testing {
namespace {

constexpr uint32_t kFirstSlot = kFirstInstalledSlot;

constexpr const char* kTrials[] = {
    "twice",
    "axpy",
    "row_sums",
    "element_past_the_end",
    "raw_write_past_the_end",
    "raw_write_before_the_start",
    "store_to_null",
    "load_from_nowhere",
    "write_to_input",
    "element_unwritten",
    "nothing_written",
    "poison_written",
    "wrong_result",
    "never_returns",
    "never_returns_for_13",
    "fails",
    "particular",
    "trap",
    "leaves",
    "fixed_split",
    "aligned_only",
    "wrong_element_type",
    "missing_argument",
    "order_matters",
    "divergent_barrier",
    "scratch_past_the_end",
};

std::string_view Between(const char* begin, const char* end) {
  return {begin, static_cast<size_t>(end - begin)};
}

// All operators in one build, for an engine of this architecture.
std::shared_ptr<const std::string> Object(bool checked, const std::vector<std::string>& symbols,
                                          uint32_t architecture) {
  if (architecture == 0) {
    return std::make_shared<std::string>(
        checked ? Between(_binary_trials_checked_so_start, _binary_trials_checked_so_end)
                : Between(_binary_trials_so_start, _binary_trials_so_end));
  }
#ifdef RESIDENT_HAVE_CUDA
  std::string_view ptx =
      checked ? Between(_binary_trials_checked_ptx_start, _binary_trials_checked_ptx_end)
              : Between(_binary_trials_ptx_start, _binary_trials_ptx_end);
  ptx.remove_suffix(1);  // The zero byte that ends the text.
  return LinkUnit(symbols, std::string(ptx), architecture);
#else
  ExitWithError("a build without CUDA");
#endif
}

}  // namespace

uint32_t TrialSlot(const std::string& name) {
  for (uint32_t i = 0; i < std::size(kTrials); ++i) {
    if (name == kTrials[i]) return kFirstSlot + 2 * i;
  }
  ExitWithError("no operator " + name);
}

uint32_t CheckedTrialSlot(const std::string& name) { return TrialSlot(name) + 1; }

std::shared_ptr<const Generation> TrialsGeneration(const std::string& compile_target) {
  const uint32_t architecture = FindArchitecture(compile_target);
  static std::pair<uint32_t, std::shared_ptr<const Generation>> made;
  if (made.second != nullptr && made.first == architecture) return made.second;
  auto generation = std::make_shared<Generation>();
  generation->number = 2;
  for (const bool checked : {false, true}) {
    std::vector<std::string> symbols;
    for (const char* name : kTrials) {
      symbols.push_back(std::string(checked ? "resident_opc_" : "resident_op_") + name);
    }
    const auto object = Object(checked, symbols, architecture);
    for (size_t i = 0; i < symbols.size(); ++i) {
      const uint32_t slot = checked ? CheckedTrialSlot(kTrials[i]) : TrialSlot(kTrials[i]);
      generation->operators.push_back({slot, symbols[i], object});
    }
  }
  made = {architecture, generation};
  return generation;
}

}  // namespace resident::testing
