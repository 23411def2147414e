// RunOperator with blocks of RESIDENT_EMULATED_THREADS threads of the host.
//
// A tensor has pages of its own. Its elements end at the end of a page, or for every other tensor
// begin at the beginning of one, and the guard beyond cannot be accessed while an operator runs: an
// access ends the test. (Of the guard behind the elements, up to 15 bytes can be read, because
// tensors begin at multiples of 16 bytes.)
//
// In the checked build, a task ends with kOutOfBounds after an access through a Tensor to what is
// not an element, after a use of an argument as what it is not, and after an access to more than
// the block's memory. Its violation is printed.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <set>
#include <vector>

#include "kernels/ops/builtin.h"
#include "kernels/ops/emulated_task.h"
#include "kernels/ops/jump_table.h"
#include "kernels/ops/tensor_cores.h"
#include "runtime/model/signature.h"
#include "tests/conformance/operator_runner.h"

namespace resident::testing {
namespace {

// Pages of tensors that no operator may access.
class GuardPages {
 public:
  static GuardPages& Get() {
    static GuardPages* const pages = new GuardPages;
    return *pages;
  }

  TensorMemory Allocate(uint64_t bytes, uint64_t guard_bytes) {
    // The pages of the elements, and one for each guard.
    const uint64_t pages = RoundUp(bytes - 2 * guard_bytes) + 2 * page_;
    if (guard_bytes > page_) Fail("a guard is larger than a page");
    void* const mapped =
        mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) Fail("out of memory");
    auto* const first = static_cast<uint8_t*>(mapped);
    at_end_ = !at_end_;
    uint8_t* const guard = at_end_ ? first + pages - page_ : first;
    uint8_t* const memory =
        at_end_ ? guard - (bytes - guard_bytes + 15) / 16 * 16 : first + page_ - guard_bytes;
    guards_.insert(guard);
    return {reinterpret_cast<uint64_t>(memory),
            std::shared_ptr<uint8_t>(memory, [this, first, pages, guard](uint8_t*) {
              guards_.erase(guard);
              munmap(first, pages);
            })};
  }

  void SetAccess(bool permitted) {
    for (uint8_t* const guard : guards_) {
      if (mprotect(guard, page_, permitted ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) {
        Fail("mprotect");
      }
    }
  }

 private:
  [[noreturn]] static void Fail(const char* what) {
    std::perror(what);
    std::abort();
  }
  uint64_t RoundUp(uint64_t bytes) const { return (bytes + page_ - 1) / page_ * page_; }

  const uint64_t page_ = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::set<uint8_t*> guards_;
  bool at_end_ = false;
};

[[noreturn]] void Abort(const char* what, const std::string& name) {
  std::fprintf(stderr, "%s %s\n", what, name.c_str());
  std::abort();
}

#if RESIDENT_CHECKED
const char* FindSignature(const std::string& name) {
  for (const BuiltinOperator& op : kBuiltinOperators) {
    if (name == op.name) return op.signature;
  }
  for (const BuiltinOperator& op : kTestOperators) {
    if (name == op.name) return op.signature;
  }
  Abort("no operator", name);
}

// The checks of a task: a CheckContext, and its violations.
class Checks {
 public:
  Checks(const std::string& name, const std::vector<TestArgument>& arguments, uint32_t chunks)
      : chunks_(chunks),
        memory_(1 +
                (chunks * sizeof(Violation) + sizeof(CheckContext) - 1) / sizeof(CheckContext)) {
    const auto signature = Signature::Parse(FindSignature(name));
    if (!signature.ok() || arguments.size() > signature->parameters().size()) {
      Abort("other arguments than those of the signature:", name);
    }
    context()->argument_count = static_cast<u32>(arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) {
      const TestArgument& argument = arguments[i];
      context()->scalar[i] = !argument.tensor;
      context()->dtypes[i] =
          argument.tensor ? argument.tensor->dtype() : signature->parameters()[i].dtypes[0];
    }
  }

  CheckContext* context() { return memory_.data(); }

  void PrintViolations() {
    for (uint32_t chunk = 0; chunk < chunks_; ++chunk) {
      const Violation& violation = context()->violations()[chunk];
      if (violation.kind == ViolationKind::kNone) continue;
      std::fprintf(
          stderr, "chunk %u: violation of kind %d, argument %d, dimension %d: %lld of %lld\n",
          chunk, static_cast<int>(violation.kind), violation.argument, violation.dimension,
          static_cast<long long>(violation.index), static_cast<long long>(violation.limit));
    }
  }

 private:
  const uint32_t chunks_;
  // The first element is the context; the violations are in the memory of the others.
  std::vector<CheckContext> memory_;
};
#endif

}  // namespace

bool Emulated() { return true; }
uint64_t EmulatedTensorCoreProducts() { return emulated::Products::count; }

TensorMemory AllocateTensor(uint64_t bytes, uint64_t guard_bytes) {
  return GuardPages::Get().Allocate(bytes, guard_bytes);
}

Outcome RunOperator(const std::string& name, const std::vector<TestArgument>& arguments,
                    uint32_t chunks) {
  const std::optional<unsigned> slot = FindBuiltinSlot(name);
  if (!slot) Abort("no operator", name);
  const OperatorFunction function = FindBuiltinFunction(*slot, /*test_operators=*/true);
  if (chunks == 0) chunks = 1;
  std::vector<Argument> bits;
  for (const TestArgument& argument : arguments) bits.push_back(argument.argument);
#if RESIDENT_CHECKED
  Checks checks(name, arguments, chunks);
  const CheckContext* const context = checks.context();
#else
  const CheckContext* const context = nullptr;
#endif
  GuardPages::Get().SetAccess(false);
  const u32 ended = RunEmulated(function, bits, chunks, context);
  GuardPages::Get().SetAccess(true);
  const auto status = static_cast<CompletionStatus>(ended & 0xffff);
#if RESIDENT_CHECKED
  if (status == CompletionStatus::kOutOfBounds) checks.PrintViolations();
#endif
  return {status, static_cast<uint16_t>(ended >> 16)};
}

}  // namespace resident::testing
