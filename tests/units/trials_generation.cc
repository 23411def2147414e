#include <string_view>
#include <utility>
#include <vector>

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

// Above the slots of built-in and test operators.
constexpr uint32_t kFirstSlot = 64;

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

std::vector<LinkInput> Units() {
  std::vector<LinkInput> units;
#ifdef RESIDENT_HAVE_CUDA
  // Each text ends with a zero byte, which is not part of it.
  for (std::string_view ptx :
       {Between(_binary_trials_ptx_start, _binary_trials_ptx_end),
        Between(_binary_trials_checked_ptx_start, _binary_trials_checked_ptx_end)}) {
    ptx.remove_suffix(1);
    units.push_back({"trials.ptx", ptx, /*is_ptx=*/true});
  }
#endif
  return units;
}

}  // namespace

uint32_t TrialSlot(const std::string& name) {
  for (uint32_t i = 0; i < std::size(kTrials); ++i) {
    if (name == kTrials[i]) return kFirstSlot + 2 * i;
  }
  Die("no operator " + name);
}

uint32_t CheckedTrialSlot(const std::string& name) { return TrialSlot(name) + 1; }

std::shared_ptr<const Generation> TrialsGeneration(uint32_t architecture) {
  static std::pair<uint32_t, std::shared_ptr<const Generation>> made;
  if (made.second != nullptr && made.first == architecture) return made.second;
  std::shared_ptr<const std::string> serving, checked;
  if (architecture == 0) {
    serving =
        std::make_shared<std::string>(Between(_binary_trials_so_start, _binary_trials_so_end));
    checked = std::make_shared<std::string>(
        Between(_binary_trials_checked_so_start, _binary_trials_checked_so_end));
  }
  auto generation = std::make_shared<Generation>();
  generation->number = 2;
  for (const std::string name : kTrials) {
    generation->operators.push_back({TrialSlot(name), "resident_op_" + name, serving});
    generation->operators.push_back({CheckedTrialSlot(name), "resident_opc_" + name, checked});
  }
  if (architecture != 0) generation->image = LinkUnits(*generation, architecture, Units());
  made = {architecture, generation};
  return generation;
}

}  // namespace resident::testing
