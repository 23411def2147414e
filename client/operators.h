// This header changes a daemon's operators: it installs, activates, rolls back, removes and watches
// them.
//
//   resident::client::Operators operators(*client);
//   auto swish = resident::client::Installation::Expression("swish", "x * sigmoid(x)");
//   swish.Add(resident::client::Example().Value(std::vector<float>{0}).Value(
//       std::vector<float>{0}));
//   auto installed = operators.Install(swish);   // compiled, validated, loaded
//   auto active = operators.Activate("swish");   // serves from now on
//   auto back = operators.Rollback("swish");     // the previous version serves again
//
// Built-in operators cannot be changed. Client::ListOperators and Client::DescribeOperator
// return the current operators.
//
// Errors: the status code and message of the daemon, unchanged;
// proto/resident/v1/operators.proto documents the codes. ABORTED: another change happened
// before (see ChangeOptions::expected_revision).
//
// Thread safety: Operators may be used from several threads. A Watcher belongs to one
// thread at a time, except for Cancel. Installation and Example belong to one thread at a
// time.
#ifndef RESIDENT_CLIENT_OPERATORS_H_
#define RESIDENT_CLIENT_OPERATORS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/residentd_client.h"
#include "resident/v1/operators.pb.h"

namespace resident::client {

// Inputs with their expected outputs. If outputs have only a type and a shape, the outputs of
// the active version are expected. There is one value for each parameter of the signature, in
// its order.
class Example {
 public:
  // A tensor: the value of an input, or the expected value of an output. No shape: a vector.
  template <std::ranges::contiguous_range Range>
  Example& Value(const Range& values, Shape shape = {}) {
    using T = std::ranges::range_value_t<Range>;
    if (shape.empty()) shape = {std::ranges::size(values)};
    return Bytes(DTypeOf<T>(),
                 {reinterpret_cast<const char*>(std::ranges::data(values)),
                  std::ranges::size(values) * sizeof(T)},
                 shape);
  }
  // A tensor that is read and written: its initial value, and its expected value.
  template <std::ranges::contiguous_range Range>
  Example& InOut(const Range& first, const Range& expected, Shape shape = {}) {
    if (shape.empty()) shape = {std::ranges::size(first)};
    Value(first, shape);
    message_.mutable_values()->rbegin()->mutable_data()->append(
        reinterpret_cast<const char*>(std::ranges::data(expected)),
        std::ranges::size(expected) * sizeof(std::ranges::range_value_t<Range>));
    return *this;
  }
  // Like Value, for any type: dense little-endian elements.
  Example& Bytes(v1::DType dtype, std::string_view data, const Shape& shape);
  // A scalar parameter's value.
  template <typename T>
  Example& Scalar(T value) {
    return Bytes(DTypeOf<T>(), {reinterpret_cast<const char*>(&value), sizeof value}, {});
  }
  // An output without an expected value.
  Example& Output(v1::DType dtype, const Shape& shape) { return Bytes(dtype, {}, shape); }
  // |out - expected| <= absolute + relative * |expected|. Without it: the type's default.
  Example& Tolerance(double relative, double absolute = 0);

  v1::InstallExample& message() { return message_; }
  const v1::InstallExample& message() const { return message_; }

 private:
  v1::InstallExample message_;
};

// A version to install. Can be installed any number of times.
class Installation {
 public:
  // Source that uses the operator SDK. `files` maps names, as in #include, to contents;
  // `main_file` is the one that is compiled.
  static Installation Source(std::string_view name, std::string_view main_file,
                             std::map<std::string, std::string> files);
  // An elementwise formula, for example "x * sigmoid(x)".
  static Installation Expression(std::string_view name, std::string_view expression);
  // A FLUX program.
  static Installation Bytecode(std::string_view name, std::string_view program);
  // PTX or a relocatable cubin; the daemon must allow it.
  static Installation Object(std::string_view name, std::string_view file_name, std::string object);

  Installation& Signature(std::string_view text);
  Installation& Split(std::string_view rule);
  Installation& Summary(std::string_view text);
  Installation& Add(Example example);
  // A task that runs longer counts as hanging.
  Installation& TaskTimeLimit(absl::Duration limit);
  // The revision that the operator must have; 0: it must not exist yet.
  Installation& ExpectRevision(uint64_t revision);
  // A name under which tasks can run the version (TaskBatch::Label).
  Installation& Label(std::string_view label);
  // VERSION_STATE_VALIDATED, _LOADED (the default) or _ACTIVE.
  Installation& WaitFor(v1::VersionState state);
  // ISOLATION_UNSPECIFIED (the default): the daemon's --isolation.
  Installation& Isolation(v1::Isolation level);
  // Also if the set of the daemon's --operators_dir lists the operator.
  Installation& Force();

  v1::InstallHeader& header() { return header_; }
  const v1::InstallHeader& header() const { return header_; }

 private:
  friend class Operators;
  Installation() = default;

  v1::InstallHeader header_;
  std::map<std::string, std::string> files_;
  std::vector<Example> examples_;
};

struct ChangeOptions {
  // 0: the standby version.
  uint32_t version = 0;
  // The revision that the operator must have.
  std::optional<uint64_t> expected_revision = std::nullopt;
  // Activate: allows a quarantined version. Activate and Remove: allow an operator that the set of
  // the daemon's --operators_dir lists.
  bool force = false;
  // When the version is rolled back.
  v1::BakeOptions bake = {};
  // The roll-out that the change belongs to.
  v1::ChangeContext context = {};
};

// Receives changes of operators as they happen.
class Watcher {
 public:
  Watcher(const Watcher&) = delete;
  // Cancels.
  ~Watcher();

  // Waits for the next event. Returns false if the stream has ended; see Finish().
  bool Next(v1::OperatorEvent* event);
  // Returns the status of the stream; CANCELLED after Cancel. REQUIRES: Next has returned false.
  absl::Status Finish();
  // Ends the stream. Any thread.
  void Cancel();

 private:
  friend class Operators;
  class Impl;
  explicit Watcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class Operators {
 public:
  // Receives each state of the version, including the last one. Return false to withdraw the
  // installation, which then ends CANCELLED.
  using Progress = std::function<bool(const v1::InstallResponse&)>;

  // Shares the client's connection, and may outlive it.
  explicit Operators(const Client& client);

  // Returns at the state that the installation waits for. If a version is refused, it returns
  // the reason as an error; `progress` gets the compilers' log with the state REJECTED. If it
  // is interrupted before the version is loaded, nothing is installed.
  absl::StatusOr<v1::InstallResponse> Install(const Installation& installation,
                                              const Progress& progress = {});

  absl::StatusOr<v1::ActivateResponse> Activate(const std::string& name,
                                                const ChangeOptions& options = {});
  absl::StatusOr<v1::RollbackResponse> Rollback(
      const std::string& name, std::optional<uint64_t> expected_revision = std::nullopt);
  // Returns when the operator's last task has ended.
  absl::StatusOr<v1::RemoveResponse> Remove(const std::string& name,
                                            const ChangeOptions& options = {});
  // Percentages are 0 to 100; both 0 ends the trial.
  absl::StatusOr<v1::PromoteResponse> Promote(const std::string& name, double shadow_percent,
                                              double traffic_percent,
                                              const ChangeOptions& options = {});

  // Watches events after a revision (0: after this call returns), of one operator or (empty)
  // of all.
  absl::StatusOr<std::unique_ptr<Watcher>> Watch(uint64_t after_revision = 0,
                                                 const std::string& name = "");
  // Returns past events, newest first: at most `count` (0: 100) before a revision (0: all).
  absl::StatusOr<v1::AuditResponse> Audit(const std::string& name = "", uint32_t count = 0,
                                          uint64_t before_revision = 0);
  // Returns which versions of installed operators are in the kernel, to compare daemons.
  absl::StatusOr<v1::SummaryResponse> Summary();

  // Reserves names for a plan, or renews a claim; ends it.
  absl::StatusOr<v1::ClaimResponse> Claim(const v1::ClaimRequest& request);
  absl::Status Release(const v1::ReleaseRequest& request);

 private:
  std::shared_ptr<Connection> connection_;
};

}  // namespace resident::client

#endif  // RESIDENT_CLIENT_OPERATORS_H_
