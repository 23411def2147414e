
#include "runtime/compile/compiler.h"

#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/sdk/operator.h"
#include "resident/internal/compile.pb.h"
#include "runtime/base/limits.h"
#include "runtime/base/process/frames.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/compile_job.h"
#include "runtime/compile/compile_process.h"
#include "runtime/compile/errors.h"
#include "runtime/compile/host_compiler.h"
#include "runtime/compile/object_cache.h"
#include "runtime/compile/process_pool.h"
#include "runtime/compile/ptx/ptx_rules.h"
#include "runtime/compile/unit.h"
#include "runtime/compile/work_folder.h"

namespace resident {
namespace {

namespace fs = std::filesystem;

// Increase it when compiler options, inspection or the format of an entry change.
constexpr char kCacheVersion[] = "5";
// Two processes, because the checked and the plain build are compiled at the same time.
constexpr size_t kAhead = 2;

CompileResult Failed(absl::Status status) {
  CompileResult result;
  result.compiled = std::move(status);
  return result;
}

CompileSteps ReadSteps(const internal::CompileResponse& response) {
  CompileSteps steps;
  for (const internal::CompileStep& step : response.steps()) {
    steps.emplace_back(step.step(), std::chrono::nanoseconds(step.duration_ns()));
  }
  return steps;
}

CompileResult ToResult(internal::CompileResponse response) {
  CompileResult result;
  result.compiled = GetStatus(response.compiled());
  result.inspected = GetStatus(response.inspected());
  result.log = response.log();
  result.symbol = response.symbol();
  result.steps = ReadSteps(response);
  result.resources = {response.registers(), response.stack_bytes(), response.shared_bytes(),
                      response.code_bytes()};
  // 0: a response of a failed job.
  if (response.isolation() != 0) {
    result.isolation = static_cast<Isolation>(response.isolation());
  }
  result.isolation_reason = response.isolation_reason();
  const internal::CompileRewrites& rewrites = response.rewrites();
  result.rewritten = {rewrites.loops(),          rewrites.counted_loops(), rewrites.short_loops(),
                      rewrites.endless_loops(),  rewrites.looks(),         rewrites.barriers(),
                      rewrites.warp_operations()};
  result.object = std::make_shared<const std::string>(std::move(*response.mutable_object()));
  return result;
}

internal::CompileRequest ToRequest(const CompileJob& job) {
  internal::CompileRequest request;
  internal::CompileSource* const source = request.mutable_source();
  source->set_target(job.target);
  for (const auto& [name, text] : job.files) (*source->mutable_files())[name] = text;
  source->set_main_file(job.main_file);
  source->set_function(job.function);
  source->set_content_hash(job.content_hash);
  source->set_checked(job.checked);
  source->set_allow_spills(job.allow_spills);
  source->set_scratch_bytes(job.scratch_bytes);
  source->set_isolation(static_cast<uint32_t>(job.isolation));
  return request;
}

// The keys of one unit's results in the cache. `content`: the hash of everything but the level. A
// job that names no level shares the results of those that do, so that a restart finds them.
class ResultKeys {
 public:
  ResultKeys(std::string content, Isolation wanted)
      : content_(std::move(content)), wanted_(wanted) {}

  // Where a result for the job may be.
  std::vector<std::string> Wanted() const {
    if (wanted_ != Isolation::kUnspecified) return {Key(wanted_)};
    return {Key(Isolation::kStoppable), Key(Isolation::kUnspecified)};
  }
  // The key of a result that has the level.
  std::string For(Isolation level) const {
    const bool stoppable = wanted_ == Isolation::kUnspecified && level == Isolation::kStoppable;
    return Key(stoppable ? level : wanted_);
  }
  // Whether the result also is that of a job that wants a trusted unit, and its key.
  bool IsTrustedToo(Isolation level) const {
    return wanted_ == Isolation::kUnspecified && level == Isolation::kTrusted;
  }
  std::string Trusted() const { return Key(Isolation::kTrusted); }

 private:
  // How the unit is isolated: by which rules, and for which layout.
  std::string Key(Isolation isolation) const {
    const bool rewritten = isolation != Isolation::kTrusted;
    return Sha256()
        .Field(content_)
        .Field(absl::StrCat(static_cast<int>(isolation), " ", rewritten ? PtxRulesHash() : ""))
        .Hex();
  }

  const std::string content_;
  const Isolation wanted_;
};

class CompilerImpl : public Compiler {
 public:
  CompilerImpl(const CompilerOptions& options, std::unique_ptr<WorkFolder> work_folder,
               std::unique_ptr<ObjectCache> cache)
      : options_(options),
        work_folder_(std::move(work_folder)),
        cache_(std::move(cache)),
        cuda_(MakeOptions(Toolchain::kCuda), CountAhead(Toolchain::kCuda)) {
    if (CountAhead(Toolchain::kHost) > 0) (void)Host();
    cuda_.Refill();
  }

  ~CompilerImpl() override = default;

  CompileResult Compile(const CompileJob& job) override;
  CompileResult CompileObject(const ObjectJob& job) override;
  Counters counters() const override {
    return {hits_.load(), misses_.load(), killed_.load(), cache_ ? cache_->bytes() : 0};
  }

 private:
  // The host compiler, set when it has been found, and its processes.
  struct HostTools {
    HostTools(HostCompiler found, const CompileProcessOptions& options, size_t ahead)
        : compiler(std::move(found)), pool(options, ahead) {}
    const HostCompiler compiler;
    ProcessPool pool;
  };

  CompileProcessOptions MakeOptions(Toolchain toolchain) const {
    CompileProcessOptions options;
    options.toolchain = toolchain;
    options.work_folder = work_folder_->path();
    options.limits = options_.limits;
    options.program = options_.program;
    return options;
  }

  // How many processes of the toolchain are started ahead.
  size_t CountAhead(Toolchain toolchain) const {
    for (const std::string& name : options_.ahead) {
      const auto target = CompileTarget::Find(name);
      if (target.ok() && target->toolchain == toolchain) return kAhead;
    }
    return 0;
  }

  absl::StatusOr<std::shared_ptr<HostTools>> Host();
  CompileResult RunInPool(ProcessPool* pool, const ResultKeys& keys,
                          const internal::CompileRequest& request,
                          const std::function<bool()>& cancelled);

  std::optional<internal::CompileResponse> FromCache(const ResultKeys& keys);
  void IntoCache(const ResultKeys& keys, internal::CompileResponse response);
  void CountEnd(const absl::Status& status) {
    if (absl::IsDeadlineExceeded(status) || absl::IsResourceExhausted(status)) ++killed_;
  }

  const CompilerOptions options_;
  const std::unique_ptr<WorkFolder> work_folder_;  // Outlives the processes.
  const std::unique_ptr<ObjectCache> cache_;
  std::atomic<uint64_t> hits_{0};
  std::atomic<uint64_t> misses_{0};
  std::atomic<uint64_t> killed_{0};

  absl::Mutex running_mu_;
  uint32_t running_ ABSL_GUARDED_BY(running_mu_) = 0;

  absl::Mutex host_mu_;
  std::shared_ptr<HostTools> host_ ABSL_GUARDED_BY(host_mu_);

  ProcessPool cuda_;
};

absl::StatusOr<std::shared_ptr<CompilerImpl::HostTools>> CompilerImpl::Host() {
  absl::MutexLock lock(&host_mu_);
  if (host_ != nullptr) return host_;
  ASSIGN_OR_RETURN(auto found, FindHostCompiler(options_.host_compiler));
  CompileProcessOptions options = MakeOptions(Toolchain::kHost);
  options.host = found;
  host_ = std::make_shared<HostTools>(std::move(found), options, CountAhead(Toolchain::kHost));
  host_->pool.Refill();
  return host_;
}

std::optional<internal::CompileResponse> CompilerImpl::FromCache(const ResultKeys& keys) {
  if (cache_ == nullptr) return std::nullopt;
  for (const std::string& key : keys.Wanted()) {
    internal::CompileResponse response;
    const std::optional<std::string> found = cache_->Get(key);
    if (!found || !response.ParseFromString(*found)) continue;
    ++hits_;
    return response;
  }
  ++misses_;
  return std::nullopt;
}

void CompilerImpl::IntoCache(const ResultKeys& keys, internal::CompileResponse response) {
  if (cache_ == nullptr) return;
  if (response.compiled().code() != 0 || response.inspected().code() != 0) return;
  // These durations do not apply to a result that is read from the cache.
  response.clear_steps();
  const auto level = static_cast<Isolation>(response.isolation());
  // A result that cannot be cached is still returned.
  (void)cache_->Put(keys.For(level), response.SerializeAsString());
  if (!keys.IsTrustedToo(level)) return;
  response.clear_isolation_reason();
  (void)cache_->Put(keys.Trusted(), response.SerializeAsString());
}

CompileResult CompilerImpl::RunInPool(ProcessPool* pool, const ResultKeys& keys,
                                      const internal::CompileRequest& request,
                                      const std::function<bool()>& cancelled) {
  {
    absl::MutexLock lock(&running_mu_);
    const auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(running_mu_) {
      return running_ < options_.max_processes;
    };
    while (!running_mu_.AwaitWithTimeout(absl::Condition(&free), absl::Milliseconds(20))) {
      if (cancelled && cancelled()) return Failed(errors::InstallWithdrawn());
    }
    ++running_;
  }
  auto process = pool->Take();
  absl::StatusOr<internal::CompileResponse> response =
      process.ok() ? (*process)->Call(request, cancelled) : process.status();
  {
    absl::MutexLock lock(&running_mu_);
    --running_;
  }
  // It ends while the result is used.
  pool->Return(process.ok() ? *std::move(process) : nullptr);
  CountEnd(response.ok() ? GetStatus(response->compiled()) : response.status());
  if (!response.ok()) return Failed(response.status());
  IntoCache(keys, *response);
  return ToResult(*std::move(response));
}

CompileResult CompilerImpl::Compile(const CompileJob& job) {
  if (absl::Status status = CheckSources(job); !status.ok()) return Failed(status);
  const auto target = CompileTarget::Find(job.target);
  if (!target.ok()) return Failed(target.status());
  std::string tool;
  ProcessPool* pool = &cuda_;
  std::shared_ptr<HostTools> host;
  if (target->toolchain == Toolchain::kCuda) {
    auto found = cuda_.compiler();
    if (!found.ok()) return Failed(found.status());
    tool = *std::move(found);
  } else {
    auto found = Host();
    if (!found.ok()) return Failed(found.status());
    host = *std::move(found);
    tool = absl::StrCat(host->compiler.path, " ", host->compiler.version);
    pool = &host->pool;
  }
  Sha256 hash;
  hash.Field(kCacheVersion).Field("source").Field(SdkHash()).Field(job.target).Field(tool);
  for (const auto& [name, text] : job.files) hash.Field(name).Field(text);
  hash.Field(job.main_file).Field(job.function).Field(job.content_hash);
  hash.Field(absl::StrCat(job.checked, " ", job.allow_spills, " ", job.scratch_bytes));
  const ResultKeys keys(hash.Hex(), job.isolation);
  if (auto found = FromCache(keys)) {
    CompileResult result = ToResult(*std::move(found));
    result.cached = true;
    return result;
  }
  return RunInPool(pool, keys, ToRequest(job), job.cancelled);
}

CompileResult CompilerImpl::CompileObject(const ObjectJob& job) {
  const auto target = CompileTarget::Find(job.target);
  if (!target.ok()) return Failed(target.status());
  if (target->toolchain != Toolchain::kCuda) {
    return Failed(absl::InvalidArgumentError(
        "an object cannot be installed for a CPU. Fix: send the source"));
  }
  if (job.bytes.size() > kMaxInstallObjectBytes) {
    return Failed(absl::InvalidArgumentError(
        absl::StrCat("the object has ", job.bytes.size(), " bytes; the limit is ",
                     kMaxInstallObjectBytes, ". Fix: send a smaller one")));
  }
  auto tool = cuda_.compiler();
  if (!tool.ok()) return Failed(tool.status());
  const ResultKeys keys(Sha256()
                            .Field(kCacheVersion)
                            .Field("object")
                            .Field(absl::StrCat(RESIDENT_SDK_VERSION))
                            .Field(job.target)
                            .Field(*tool)
                            .Field(job.bytes)
                            .Hex(),
                        job.isolation);
  if (auto found = FromCache(keys)) {
    CompileResult result = ToResult(*std::move(found));
    result.cached = true;
    return result;
  }
  internal::CompileRequest request;
  request.mutable_object()->set_target(job.target);
  request.mutable_object()->set_object(job.bytes);
  request.mutable_object()->set_isolation(static_cast<uint32_t>(job.isolation));
  return RunInPool(&cuda_, keys, request, job.cancelled);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Compiler>> Compiler::Create(const CompilerOptions& options) {
  std::unique_ptr<ObjectCache> cache;
  std::string parent;
  if (options.cache_dir.empty()) {
    const char* const temporary = getenv("TMPDIR");
    parent = temporary == nullptr ? "/tmp" : temporary;
  } else {
    ASSIGN_OR_RETURN(auto opened, ObjectCache::Open(options.cache_dir, options.cache_mib << 20));
    cache = std::move(opened);
    parent = options.cache_dir + "/work";
    std::error_code error;
    fs::create_directories(parent, error);
    if (error) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot make ", parent, ": ", error.message(), ". Fix: make it writable"));
    }
  }
  ASSIGN_OR_RETURN(auto work_folder, WorkFolder::Create(parent));
  return std::unique_ptr<Compiler>(
      std::make_unique<CompilerImpl>(options, std::move(work_folder), std::move(cache)));
}

}  // namespace resident
