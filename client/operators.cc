#include "client/operators.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cassert>

#include "client/connection.h"
#include "runtime/base/status_macros.h"

namespace resident::client {
namespace {

// Size of the pieces of a file. It is well below any limit of message sizes.
constexpr size_t kFilePieceBytes = 1u << 20;

std::string String(std::string_view text) { return std::string(text); }

}  // namespace

// --- Example, Installation ---------------------------------------------------------

Example& Example::Bytes(v1::DType dtype, std::string_view data, const Shape& shape) {
  v1::ExampleValue& value = *message_.add_values();
  value.set_dtype(dtype);
  value.mutable_shape()->Add(shape.begin(), shape.end());
  value.set_data(data.data(), data.size());
  return *this;
}

Example& Example::Tolerance(double relative, double absolute) {
  message_.set_relative_tolerance(relative);
  message_.set_absolute_tolerance(absolute);
  return *this;
}

Installation Installation::Source(std::string_view name, std::string_view main_file,
                                  std::map<std::string, std::string> files) {
  Installation installation;
  installation.header_.set_name(String(name));
  installation.header_.set_main_file(String(main_file));
  installation.files_ = std::move(files);
  return installation;
}

Installation Installation::Expression(std::string_view name, std::string_view expression) {
  Installation installation;
  installation.header_.set_name(String(name));
  installation.header_.set_expression(String(expression));
  return installation;
}

Installation Installation::Bytecode(std::string_view name, std::string_view program) {
  Installation installation;
  installation.header_.set_name(String(name));
  installation.header_.set_bytecode(String(program));
  return installation;
}

Installation Installation::Object(std::string_view name, std::string_view file_name,
                                  std::string object) {
  Installation installation;
  installation.header_.set_name(String(name));
  installation.header_.set_object_file(String(file_name));
  installation.files_[String(file_name)] = std::move(object);
  return installation;
}

Installation& Installation::Signature(std::string_view text) {
  header_.set_signature(String(text));
  return *this;
}

Installation& Installation::Split(std::string_view rule) {
  header_.set_split(String(rule));
  return *this;
}

Installation& Installation::Summary(std::string_view text) {
  header_.set_summary(String(text));
  return *this;
}

Installation& Installation::Add(Example example) {
  examples_.push_back(std::move(example));
  return *this;
}

Installation& Installation::TaskTimeLimit(absl::Duration limit) {
  header_.mutable_limits()->set_task_time_ms(
      static_cast<uint32_t>(absl::ToInt64Milliseconds(limit)));
  return *this;
}

Installation& Installation::ExpectRevision(uint64_t revision) {
  header_.set_expected_revision(revision);
  return *this;
}

Installation& Installation::Label(std::string_view label) {
  header_.set_label(label.data(), label.size());
  return *this;
}

Installation& Installation::WaitFor(v1::VersionState state) {
  header_.set_wait_for(state);
  return *this;
}

Installation& Installation::Isolation(v1::Isolation level) {
  header_.set_isolation(level);
  return *this;
}

Installation& Installation::Force() {
  header_.mutable_context()->set_drift(true);
  return *this;
}

// --- Watcher -------------------------------------------------------------------------

class Watcher::Impl {
 public:
  explicit Impl(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
  ~Impl() {
    if (reader_ == nullptr) return;
    context_.TryCancel();
    v1::OperatorEvent unread;
    while (Next(&unread)) {
    }
    Finish().IgnoreError();
  }

  absl::Status Open(const v1::WatchRequest& request) {
    RETURN_IF_ERROR(
        connection_->Prepare(context_, /*needs_session=*/false, absl::InfiniteDuration()));
    reader_ = connection_->operators->Watch(&context_, request);
    // The daemon sends every event from here on.
    reader_->WaitForInitialMetadata();
    return absl::OkStatus();
  }

  bool Next(v1::OperatorEvent* event) {
    if (ended_) return false;
    v1::WatchResponse response;
    ended_ = !reader_->Read(&response);
    if (!ended_) event->Swap(response.mutable_event());
    return !ended_;
  }

  absl::Status Finish() {
    assert(ended_);
    if (!finished_) status_ = connection_->FromCall(reader_->Finish());
    finished_ = true;
    return status_;
  }

  void Cancel() { context_.TryCancel(); }

 private:
  const std::shared_ptr<Connection> connection_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::WatchResponse>> reader_;
  bool ended_ = false;
  bool finished_ = false;
  absl::Status status_;
};

Watcher::Watcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Watcher::~Watcher() = default;
bool Watcher::Next(v1::OperatorEvent* event) { return impl_->Next(event); }
absl::Status Watcher::Finish() { return impl_->Finish(); }
void Watcher::Cancel() { impl_->Cancel(); }

// --- Operators -----------------------------------------------------------------------

Operators::Operators(const Client& client) : connection_(client.connection_) {}

absl::StatusOr<v1::InstallResponse> Operators::Install(const Installation& installation,
                                                       const Progress& progress) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection->Prepare(context, /*needs_session=*/false));
  const auto stream = connection->operators->Install(&context);
  v1::InstallRequest request;
  *request.mutable_header() = installation.header_;
  bool open = stream->Write(request);  // If it fails, Finish() returns the error.
  for (auto file = installation.files_.begin(); open && file != installation.files_.end(); ++file) {
    size_t sent = 0;
    do {
      const size_t piece = std::min(kFilePieceBytes, file->second.size() - sent);
      request.mutable_file()->set_name(file->first);
      request.mutable_file()->set_data(file->second.data() + sent, piece);
      open = stream->Write(request);
      sent += piece;
    } while (open && sent < file->second.size());
  }
  for (size_t i = 0; open && i < installation.examples_.size(); ++i) {
    *request.mutable_example() = installation.examples_[i].message();
    open = stream->Write(request);
  }
  if (open) stream->WritesDone();
  v1::InstallResponse response;
  v1::InstallResponse last;
  bool more = true;
  while (stream->Read(&response)) {
    if (more && progress && !progress(response)) {
      more = false;
      context.TryCancel();
    }
    last.Swap(&response);
  }
  RETURN_IF_ERROR(connection->FromCall(stream->Finish()));
  return last;
}

absl::StatusOr<v1::ActivateResponse> Operators::Activate(const std::string& name,
                                                         const ChangeOptions& options) {
  v1::ActivateRequest request;
  request.set_name(name);
  request.set_version(options.version);
  if (options.expected_revision) request.set_expected_revision(*options.expected_revision);
  request.set_force(options.force);
  *request.mutable_bake() = options.bake;
  *request.mutable_context() = options.context;
  if (options.force) request.mutable_context()->set_drift(true);
  return CallNode(connection_, &Connection::operators, &v1::Operators::Stub::Activate, request);
}

absl::StatusOr<v1::RollbackResponse> Operators::Rollback(
    const std::string& name, std::optional<uint64_t> expected_revision) {
  v1::RollbackRequest request;
  request.set_name(name);
  if (expected_revision) request.set_expected_revision(*expected_revision);
  return CallNode(connection_, &Connection::operators, &v1::Operators::Stub::Rollback, request);
}

absl::StatusOr<v1::RemoveResponse> Operators::Remove(const std::string& name,
                                                     const ChangeOptions& options) {
  v1::RemoveRequest request;
  request.set_name(name);
  *request.mutable_context() = options.context;
  if (options.force) request.mutable_context()->set_drift(true);
  if (options.expected_revision) request.set_expected_revision(*options.expected_revision);
  return CallNode(connection_, &Connection::operators, &v1::Operators::Stub::Remove, request);
}

absl::StatusOr<v1::PromoteResponse> Operators::Promote(const std::string& name,
                                                       double shadow_percent,
                                                       double traffic_percent,
                                                       const ChangeOptions& options) {
  v1::PromoteRequest request;
  request.set_name(name);
  request.set_version(options.version);
  if (options.expected_revision) request.set_expected_revision(*options.expected_revision);
  request.set_shadow_percent(shadow_percent);
  request.set_traffic_percent(traffic_percent);
  *request.mutable_bake() = options.bake;
  *request.mutable_context() = options.context;
  return CallNode(connection_, &Connection::operators, &v1::Operators::Stub::Promote, request);
}

absl::StatusOr<std::unique_ptr<Watcher>> Operators::Watch(uint64_t after_revision,
                                                          const std::string& name) {
  v1::WatchRequest request;
  request.set_after_revision(after_revision);
  request.set_name(name);
  ASSIGN_OR_RETURN(std::shared_ptr<Connection> connection, connection_->Node());
  auto impl = std::make_unique<Watcher::Impl>(std::move(connection));
  RETURN_IF_ERROR(impl->Open(request));
  return std::unique_ptr<Watcher>(new Watcher(std::move(impl)));
}

absl::StatusOr<v1::AuditResponse> Operators::Audit(const std::string& name, uint32_t count,
                                                   uint64_t before_revision) {
  v1::AuditRequest request;
  request.set_name(name);
  request.set_count(count);
  request.set_before_revision(before_revision);
  return CallNode(connection_, &Connection::operators, &v1::Operators::Stub::Audit, request);
}

absl::StatusOr<v1::SummaryResponse> Operators::Summary() {
  return CallNode(connection_, &Connection::operators, &v1::Operators::Stub::Summary,
                  v1::SummaryRequest());
}

absl::StatusOr<v1::ClaimResponse> Operators::Claim(const v1::ClaimRequest& request) {
  return CallNode(connection_, &Connection::operators, &v1::Operators::Stub::Claim, request);
}

absl::Status Operators::Release(const v1::ReleaseRequest& request) {
  return CallNode(connection_, &Connection::operators, &v1::Operators::Stub::Release, request)
      .status();
}

}  // namespace resident::client
