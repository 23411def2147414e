// FakeCompiler: a Compiler that runs nothing. Every job succeeds unless it is cancelled.
//
// Thread safety: see Compiler.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_FAKE_COMPILER_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_FAKE_COMPILER_H_

#include <functional>
#include <memory>
#include <string>

#include "runtime/compile/compiler.h"

namespace resident {

class FakeCompiler final : public Compiler {
 public:
  // Every unit is stoppable if the job allows it, unless this is set: the reason why none is.
  std::string not_stoppable;

  CompileResult Compile(const CompileJob& job) override {
    return Unit(job.cancelled, job.checked ? Isolation::kTrusted : job.isolation);
  }
  CompileResult CompileObject(const ObjectJob& job) override {
    return Unit(job.cancelled, job.isolation);
  }
  Counters counters() const override { return {}; }

 private:
  CompileResult Unit(const std::function<bool()>& cancelled, Isolation isolation) const {
    CompileResult result;
    if (isolation != Isolation::kTrusted && !not_stoppable.empty()) {
      result.isolation_reason = not_stoppable;
    } else if (isolation != Isolation::kTrusted) {
      result.isolation = Isolation::kStoppable;
    }
    if (cancelled && cancelled()) result.compiled = absl::CancelledError("cancelled");
    result.symbol = "resident_op_0123456789abcdef";
    result.object = std::make_shared<const std::string>("unit");
    return result;
  }
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_FAKE_COMPILER_H_
