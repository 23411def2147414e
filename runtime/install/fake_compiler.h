// FakeCompiler: a Compiler that runs nothing. It keeps what it was asked, and every job
// succeeds unless it is cancelled.
//
// Thread safety: as Compiler.
#ifndef RESIDENT_RUNTIME_INSTALL_FAKE_COMPILER_H_
#define RESIDENT_RUNTIME_INSTALL_FAKE_COMPILER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "runtime/compile/compiler.h"

namespace resident {

class FakeCompiler final : public Compiler {
 public:
  std::vector<LinkJob> links() const {
    absl::MutexLock lock(&mu_);
    return links_;
  }

  CompileResult Compile(const CompileJob& job) override { return Unit(job.cancelled); }
  CompileResult TakeObject(const ObjectJob& job) override { return Unit(job.cancelled); }
  LinkResult Link(const LinkJob& job) override {
    absl::MutexLock lock(&mu_);
    links_.push_back(job);
    LinkResult result;
    result.image = std::make_shared<const std::string>("image");
    return result;
  }
  std::string SandboxReport() const override { return ""; }
  Counters counters() const override { return {}; }

 private:
  static CompileResult Unit(const std::function<bool()>& cancelled) {
    CompileResult result;
    if (cancelled && cancelled()) result.compiled = absl::CancelledError("cancelled");
    result.symbol = "resident_op_0123456789abcdef";
    result.object = std::make_shared<const std::string>("unit");
    return result;
  }

  mutable absl::Mutex mu_;
  std::vector<LinkJob> links_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_INSTALL_FAKE_COMPILER_H_
