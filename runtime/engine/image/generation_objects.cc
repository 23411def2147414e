#include "runtime/engine/image/generation_objects.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/layout/ring_layout.h"
#include "kernels/ops/builtin.h"
#include "runtime/engine/image/embedded.h"

#ifdef RESIDENT_HAVE_CUDA
#define DECLARE(arch, source)                                                        \
  extern const char _binary_first_generation_##source##_sm##arch##_cubin_gz_start[]; \
  extern const char _binary_first_generation_##source##_sm##arch##_cubin_gz_end[];
extern "C" {
RESIDENT_CUDA_OBJECTS(DECLARE)
extern const char _binary_first_generation_ptx_gz_start[];
extern const char _binary_first_generation_ptx_gz_end[];
}
#undef DECLARE
#endif

namespace resident {
namespace {

#ifdef RESIDENT_HAVE_CUDA

struct Object {
  int architecture;
  int source;
  const char* begin;
  const char* end;
};

#define OBJECT(arch, source)                                                          \
  Object{arch, source, _binary_first_generation_##source##_sm##arch##_cubin_gz_start, \
         _binary_first_generation_##source##_sm##arch##_cubin_gz_end},
const Object kObjects[] = {RESIDENT_CUDA_OBJECTS(OBJECT)};
#undef OBJECT

constexpr int kRelinkedSources[] = RESIDENT_CUDA_RELINKED_SOURCES;

bool IsRelinked(int source) {
  return std::find(std::begin(kRelinkedSources), std::end(kRelinkedSources), source) !=
         std::end(kRelinkedSources);
}

// Unpacked once, and there for good.
std::vector<LinkInput> PtxInputs() {
  static const std::string* const texts = new std::string(
      UnpackEmbedded(_binary_first_generation_ptx_gz_start, _binary_first_generation_ptx_gz_end));
  std::vector<LinkInput> inputs;
  int source = 0;
  for (size_t at = 0; at < texts->size(); ++source) {
    const std::string_view text(texts->c_str() + at);
    if (IsRelinked(source)) {
      inputs.push_back({absl::StrCat("kernel-", source, ".ptx"), text, /*is_ptx=*/true});
    }
    at += text.size() + 1;
  }
  return inputs;
}

std::string_view Unpacked(const Object& object) {
  static absl::Mutex mu;
  static auto* const unpacked = new std::map<const char*, std::string>;  // Under mu.
  absl::MutexLock lock(&mu);
  const auto [found, added] = unpacked->try_emplace(object.begin);
  if (added) found->second = UnpackEmbedded(object.begin, object.end);
  return found->second;
}

#endif

// `resident::kJumpTable`, as the kernel declares it.
constexpr char kTableSymbol[] = "_ZN8resident10kJumpTableE";

}  // namespace

GenerationObjects FirstGenerationObjects(int major, int minor) {
  GenerationObjects objects;
#ifdef RESIDENT_HAVE_CUDA
  const int wanted = major * 10 + minor;
  for (const Object& object : kObjects) {
    if (object.architecture / 10 == major && object.architecture <= wanted) {
      objects.architecture = std::max(objects.architecture, object.architecture);
    }
  }
  for (const Object& object : kObjects) {
    if (object.architecture != objects.architecture) continue;
    objects.inputs.push_back(
        {absl::StrCat("kernel-", object.source, ".cubin"), Unpacked(object), /*is_ptx=*/false});
  }
  if (objects.inputs.empty()) objects = {wanted, PtxInputs()};
#endif
  return objects;
}

std::string JumpTablePtx(const std::vector<GenerationOperator>& operators) {
  std::vector<std::string> table(kMaxOperatorSlots);
  uint32_t slot = 0;
#define BUILTIN(symbol, name, summary, signature, split) \
  table[slot] = "resident_operator_" #symbol;            \
  slot += 2;
  RESIDENT_BUILTIN_OPERATORS(BUILTIN)
  RESIDENT_TEST_OPERATORS(BUILTIN)
#undef BUILTIN
  for (const GenerationOperator& added : operators) table[added.slot] = added.symbol;

  // A function may stand in several slots, and is declared once.
  std::vector<std::string> declared;
  for (const std::string& symbol : table) {
    if (!symbol.empty()) declared.push_back(symbol);
  }
  std::sort(declared.begin(), declared.end());
  declared.erase(std::unique(declared.begin(), declared.end()), declared.end());

  // The version and target of the oldest GPU that there are images for (cuda_image.bzl).
  std::string ptx = ".version 8.0\n.target sm_80\n.address_size 64\n\n";
  for (const std::string& symbol : declared) {
    absl::StrAppend(&ptx, ".extern .func ", symbol, "(.param .b64 ", symbol,
                    "_param_0, .param .b64 ", symbol, "_param_1);\n");
  }
  absl::StrAppend(&ptx, "\n.visible .const .align 8 .u64 ", kTableSymbol, "[", kMaxOperatorSlots,
                  "] = {");
  for (uint32_t i = 0; i < table.size(); ++i) {
    absl::StrAppend(&ptx, i == 0 ? "" : ", ", table[i].empty() ? "0" : table[i]);
  }
  absl::StrAppend(&ptx, "};\n");
  return ptx;
}

}  // namespace resident
