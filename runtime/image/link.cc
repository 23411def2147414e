#include "runtime/image/link.h"

#include <dlfcn.h>
#include <nvJitLink.h>

#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/resident/kernel_parameters.h"
#include "runtime/base/status_macros.h"
#include "runtime/image/cuda_library.h"

namespace resident {
namespace {

// nvJitLink.h maps names to their versions: the symbol is the name after that.
#define SYMBOL_NAME_EXPANDED(call) #call
#define SYMBOL_NAME(call) SYMBOL_NAME_EXPANDED(call)

// The functions of nvJitLink that are used, opened at run time.
struct JitLink {
  decltype(&::nvJitLinkCreate) create;
  decltype(&::nvJitLinkAddData) add_data;
  decltype(&::nvJitLinkComplete) complete;
  decltype(&::nvJitLinkGetLinkedCubinSize) cubin_size;
  decltype(&::nvJitLinkGetLinkedCubin) cubin;
  decltype(&::nvJitLinkGetErrorLogSize) log_size;
  decltype(&::nvJitLinkGetErrorLog) log;
  decltype(&::nvJitLinkDestroy) destroy;
  decltype(&::nvJitLinkVersion) version;
};

absl::StatusOr<JitLink> OpenJitLink() {
  ASSIGN_OR_RETURN(void* const library, OpenCudaLibrary("nvJitLink", "libnvJitLink.so.13"));
  JitLink link{};
#define LOAD(member, call)                                                                  \
  link.member = reinterpret_cast<decltype(link.member)>(dlsym(library, SYMBOL_NAME(call))); \
  if (link.member == nullptr) {                                                             \
    return absl::UnavailableError(absl::StrCat("nvJitLink has no ", SYMBOL_NAME(call)));    \
  }
  LOAD(create, nvJitLinkCreate)
  LOAD(add_data, nvJitLinkAddData)
  LOAD(complete, nvJitLinkComplete)
  LOAD(cubin_size, nvJitLinkGetLinkedCubinSize)
  LOAD(cubin, nvJitLinkGetLinkedCubin)
  LOAD(log_size, nvJitLinkGetErrorLogSize)
  LOAD(log, nvJitLinkGetErrorLog)
  LOAD(destroy, nvJitLinkDestroy)
  LOAD(version, nvJitLinkVersion)
#undef LOAD
  return link;
}

absl::StatusOr<const JitLink*> GetJitLink() {
  static const absl::StatusOr<JitLink>* const opened = new absl::StatusOr<JitLink>(OpenJitLink());
  if (!opened->ok()) return opened->status();
  return &opened->value();
}

}  // namespace

absl::StatusOr<std::string> JitLinkVersion() {
  ASSIGN_OR_RETURN(const auto link, GetJitLink());
  unsigned int major = 0;
  unsigned int minor = 0;
  link->version(&major, &minor);
  return absl::StrCat("nvJitLink ", major, ".", minor);
}

absl::StatusOr<std::string> LinkImage(const std::vector<LinkInput>& inputs, int architecture,
                                      uint32_t max_registers) {
  ASSIGN_OR_RETURN(const auto opened, GetJitLink());
  const JitLink& link = *opened;
  const std::string arch = absl::StrCat("-arch=sm_", architecture);
  const std::string registers = absl::StrCat("-maxrregcount=", max_registers);
  // nvJitLink's cache would open the driver, which starts a thread.
  const char* options[] = {arch.c_str(), registers.c_str(), "-Xptxas=--disable-optimizer-constants",
                           "-no-cache"};
  nvJitLinkHandle handle = nullptr;
  nvJitLinkResult result = link.create(&handle, static_cast<uint32_t>(std::size(options)), options);
  for (size_t i = 0; i < inputs.size() && result == NVJITLINK_SUCCESS; ++i) {
    const LinkInput& input = inputs[i];
    result = link.add_data(handle, input.is_ptx ? NVJITLINK_INPUT_PTX : NVJITLINK_INPUT_CUBIN,
                           input.bytes.data(), input.bytes.size() + (input.is_ptx ? 1 : 0),
                           input.name.c_str());
  }
  if (result == NVJITLINK_SUCCESS) result = link.complete(handle);
  std::string image;
  size_t size = 0;
  if (result == NVJITLINK_SUCCESS) result = link.cubin_size(handle, &size);
  if (result == NVJITLINK_SUCCESS) {
    image.resize(size);
    result = link.cubin(handle, image.data());
  }
  std::string log;
  if (result != NVJITLINK_SUCCESS && handle != nullptr &&
      link.log_size(handle, &size) == NVJITLINK_SUCCESS && size > 0) {
    log.resize(size);
    link.log(handle, log.data());
    log.resize(log.find('\0') == std::string::npos ? log.size() : log.find('\0'));
  }
  if (handle != nullptr) link.destroy(&handle);
  if (result != NVJITLINK_SUCCESS) {
    return absl::InternalError(
        absl::StrCat("nvJitLink failed for sm_", architecture, " (error ", result, "): ", log));
  }
  return image;
}

namespace {

// The version and target of the oldest GPU that has an image (cuda_image.bzl).
constexpr char kPtxHeader[] = ".version 9.0\n.target sm_80\n.address_size 64\n";

bool IsPtx(const std::string& unit) {
  return !absl::StartsWith(unit,
                           "\x7f"
                           "ELF");
}

}  // namespace

absl::StatusOr<std::string> LinkOperatorModule(const std::vector<std::string>& symbols,
                                               const std::string& unit, int architecture,
                                               uint32_t max_registers) {
  std::string entries = kPtxHeader;
  // The linker keeps what a kernel reaches. If a function is reached through a variable only, the
  // linker drops the functions that it calls, and leaves calls of address 0. Therefore there is a
  // kernel, which is never launched.
  std::string kernel = absl::StrCat(".visible .entry resident_reaches(.param .b64 x) {\n",
                                    "  .reg .b64 %x;\n  ld.param.b64 %x, [x];\n");
  for (const std::string& symbol : symbols) {
    absl::StrAppend(&entries, ".extern .func ", symbol,
                    "(.param .b64 state) .abi_preserve 2;\n.visible .global .align 8 .u64 ", symbol,
                    kEntrySuffix, " = ", symbol, ";\n");
    absl::StrAppend(&kernel, "  { .param .b64 state; st.param.b64 [state], %x;\n", "  call ",
                    symbol, ", (state); }\n");
  }
  absl::StrAppend(&entries, kernel, "  ret;\n}\n");
  return LinkImage({{"unit", unit, IsPtx(unit)}, {"entries", entries, /*is_ptx=*/true}},
                   architecture, max_registers);
}

}  // namespace resident
