#include "tests/soak/decoder.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "tests/support/eventually.h"

namespace resident::soak {
namespace {

using testing::FromBytes;
using testing::ToBytes;
using Session = v1::GraphSession;
using Row = ExactModel::Row;

constexpr size_t kMaxBranches = 3;
constexpr std::chrono::milliseconds kRetry(5);
// Long enough for some quanta.
constexpr uint64_t kMaxDelayUs = 12'000;

Row ReadRow(const float* values) {
  Row row;
  std::copy(values, values + ExactModel::kDim, row.begin());
  return row;
}

template <typename Call>
grpc::Status Measure(Span* span, const Call& call) {
  span->sent = Clock::now();
  grpc::Status status = call();
  span->received = Clock::now();
  return status;
}

}  // namespace

Decoder::Decoder(const World& world, uint64_t seed)
    : world_(world), random_(seed), client_(*world.daemon, absl::StrCat("decoder ", seed)) {
  thread_ = std::thread([this] { DecodeUntilStopped(); });
}

void Decoder::Finish() {
  stop_.Notify();
  thread_.join();
}

void Decoder::Violation(const std::string& what) { world_.findings->Violation(what); }

void Decoder::Failed(const std::string& what, const grpc::Status& status, const Span& span) {
  const grpc::StatusCode code = status.error_code();
  const bool of_lost_engine = code == grpc::StatusCode::UNAVAILABLE ||
                              code == grpc::StatusCode::ABORTED ||
                              code == grpc::StatusCode::FAILED_PRECONDITION;
  if (of_lost_engine && world_.timeline->WasDisturbed(span)) {
    world_.findings->Count("failed with an engine: " + what);
  } else {
    Violation(absl::StrCat(what, " failed with code ", code, ": ", status.error_message()));
  }
}

void Decoder::DecodeUntilStopped() {
  while (!stop_.HasBeenNotified()) DoSomething();
  // What no complete run has shown yet is checked, too.
  for (size_t i = branches_.size(); i-- > 0;) {
    if (branches_[i].steps < ExactModel::kContext) Decode(i);
  }
  while (!branches_.empty()) Close(branches_.size() - 1);
  const size_t left = calls_.ListSessions().size();
  if (left != 0) Violation(absl::StrCat(left, " graph sessions are left"));
}

void Decoder::DoSomething() {
  if (branches_.empty()) return Open();
  const size_t branch = Below(branches_.size());
  const uint64_t chance = Below(100);
  if (branches_[branch].steps == ExactModel::kContext || chance < 3) return Close(branch);
  if (chance < 12 && branches_.size() < kMaxBranches) return Fork(branch);
  if (chance < 15 && branches_.size() < kMaxBranches) return Open();
  Decode(branch);
}

void Decoder::Open() {
  Branch branch;
  branch.salt = static_cast<uint32_t>(Below(ExactModel::kSalts));
  branch.tokens.push_back(static_cast<int>(Below(ExactModel::kVocab)));
  v1::OpenGraphSessionRequest request;
  request.set_graph_id(world_.graph_id);
  std::vector<float> text(ExactModel::kContext + 1);
  text[0] = static_cast<float>(branch.tokens[0]);
  testing::Bind(request, "text").set_data(ToBytes(text));
  (*request.mutable_scalars())["pos"] = 0;
  (*request.mutable_scalars())["position"] = 0;
  (*request.mutable_scalars())["rows"] = 1;
  Session session;
  Span span;
  const grpc::Status status = Measure(&span, [&] { return calls_.Open(request, &session); });
  if (!status.ok()) {
    Failed("opening a session", status, span);
    stop_.WaitForNotificationWithTimeout(absl::FromChrono(kRetry));
    return;
  }
  world_.findings->Count("sessions opened");
  branch.session = session.session_id();
  branch.seen = span.sent;
  branches_.push_back(std::move(branch));
}

bool Decoder::IsInterrupted(Branch& branch, const grpc::Status& status) {
  if (status.error_code() != grpc::StatusCode::FAILED_PRECONDITION ||
      status.error_message().find("was interrupted in step") == std::string::npos) {
    return false;
  }
  if (!branch.interrupted && !branch.uncertain) Violation("a session was interrupted by itself");
  branch.interrupted = true;
  return true;
}

void Decoder::Fork(size_t parent) {
  Branch& from = branches_[parent];
  Session session;
  Span span;
  const grpc::Status status = Measure(&span, [&] { return calls_.Fork(from.session, &session); });
  if (IsInterrupted(from, status)) {
    return world_.findings->Count("forks of interrupted sessions refused");
  }
  if (!status.ok()) {
    const bool busy = status.error_message().find("used by a run") != std::string::npos;
    if (busy && from.uncertain) return world_.findings->Count("forks of busy sessions refused");
    return Failed("a fork", status, {from.seen, span.received});
  }
  if (from.interrupted) Violation("an interrupted session was forked");
  world_.findings->Count("sessions forked");
  Branch fork = from;
  fork.session = session.session_id();
  fork.uncertain = false;
  fork.steps = static_cast<size_t>(session.scalars().at("pos"));
  if (fork.steps < from.steps || (fork.steps > from.steps && !from.uncertain)) {
    Violation(absl::StrCat("a fork at step ", fork.steps, " of a session at ", from.steps));
  }
  fork.salts.resize(fork.steps, from.salt);
  // From here on the two are different.
  fork.salt = static_cast<uint32_t>(Below(ExactModel::kSalts));
  branches_.push_back(std::move(fork));
}

void Decoder::Close(size_t branch) {
  const grpc::Status status = calls_.Close(branches_[branch].session);
  if (!status.ok()) Violation("closing a session: " + status.error_message());
  branches_.erase(branches_.begin() + static_cast<int64_t>(branch));
}

void Decoder::Decode(size_t index) {
  Branch& branch = branches_[index];
  const uint64_t left = ExactModel::kContext - branch.steps;
  v1::RunGraphRequest request;
  request.set_graph_session(branch.session);
  request.set_max_steps(1 + Below(Below(2) == 0 ? left : std::min<uint64_t>(left, 8)));
  request.set_repeat_interrupted(branch.interrupted && Below(4) > 0);
  (*request.mutable_scalars())["salt"] = branch.salt;
  const bool last = stop_.HasBeenNotified();
  if (!last && Below(4) == 0) request.set_timeout_us(1 + Below(kMaxDelayUs));
  if (last) request.set_repeat_interrupted(true);
  const RunEnd end = Stream(branch, request, /*cancel=*/!last && Below(4) == 0);
  if (!request.repeat_interrupted() && IsInterrupted(branch, end.status)) {
    return world_.findings->Count("runs of interrupted sessions refused");
  }
  if (branch.interrupted && !request.repeat_interrupted() && end.status.ok()) {
    Violation("an interrupted session continued without repeat_interrupted");
  }
  if (TakeEnd(branch, end)) return;
  world_.findings->Count("sessions lost with an engine");
  Close(index);
}

Decoder::RunEnd Decoder::Stream(Branch& branch, const v1::RunGraphRequest& request, bool cancel) {
  RunEnd end;
  end.cancelled = cancel;
  end.limited = request.timeout_us() != 0;
  const auto context = client_.Context();
  end.span.sent = Clock::now();
  const auto stream = calls_.stub().Run(context.get(), request);
  std::thread canceller;
  if (cancel) {
    canceller = std::thread([&, delay = std::chrono::microseconds(Below(kMaxDelayUs))] {
      std::this_thread::sleep_for(delay);
      context->TryCancel();
    });
  }
  v1::RunGraphResponse response;
  bool ended = false;
  while (stream->Read(&response)) {
    if (ended) Violation("an event after the result of a run");
    if (response.has_result()) {
      end.result = std::move(*response.mutable_result());
      ended = true;
      continue;
    }
    if (response.step().step() != end.records) {
      Violation(absl::StrCat("step ", response.step().step(), " after ", end.records, " steps"));
    }
    TakeRecord(branch, response.step(), end);
    ++end.records;
  }
  end.status = stream->Finish();
  end.span.received = Clock::now();
  if (canceller.joinable()) canceller.join();
  if (end.status.ok() && !ended) Violation("a run ended without a result");
  return end;
}

bool Decoder::TakeEnd(Branch& branch, const RunEnd& end) {
  if (!end.status.ok()) return AwaitEnd(branch, end);
  world_.findings->Count("runs: complete");
  branch.seen = end.span.sent;
  if (end.result.steps() != end.records) {
    Violation(absl::StrCat("a run of ", end.result.steps(), " steps sent ", end.records));
  }
  branch.interrupted = false;
  const auto pos = end.result.next_scalars().find("pos");
  if (pos == end.result.next_scalars().end() || pos->second != static_cast<double>(branch.steps)) {
    Violation(absl::StrCat("a session with ", branch.steps, " steps continues elsewhere"));
  }
  CheckStates(branch, end.result);
  CheckVersions(branch, end.first, end.result);
  return true;
}

bool Decoder::AwaitEnd(Branch& branch, const RunEnd& end) {
  const grpc::StatusCode code = end.status.error_code();
  const bool ours = (end.cancelled && code == grpc::StatusCode::CANCELLED) ||
                    (end.limited && code == grpc::StatusCode::DEADLINE_EXCEEDED);
  if (ours) {
    world_.findings->Count(end.cancelled ? "runs: cancelled" : "runs: late");
  } else {
    Failed("a run", end.status, {branch.seen, end.span.received});
  }
  // The call ends before the run does.
  Session session;
  const bool ended = testing::Eventually([&] {
    session = calls_.MustDescribeSession(branch.session);
    return session.state() != Session::STATE_BUSY;
  });
  if (!ended) Violation("a run that was cancelled does not end");
  if (session.state() == Session::STATE_LOST) {
    if (!world_.timeline->WasDisturbed({branch.seen, Clock::now()})) {
      Violation("a session was lost");
    }
    return false;
  }
  branch.seen = end.span.sent;
  const auto steps = static_cast<size_t>(session.scalars().at("pos"));
  if (steps < branch.steps || steps > ExactModel::kContext) {
    Violation(absl::StrCat("a session that has sent the records of ", branch.steps, " steps has ",
                           steps));
    return false;
  }
  world_.findings->Count("steps whose records were not delivered", steps - branch.steps);
  branch.steps = steps;
  branch.salts.resize(branch.steps, branch.salt);
  branch.uncertain |= end.cancelled && end.records == 0;
  branch.interrupted = session.state() == Session::STATE_INTERRUPTED;
  if (branch.interrupted) world_.findings->Count("runs: interrupted within a step");
  return true;
}

void Decoder::TakeVersion(const v1::GraphStep& step, RunEnd& end) {
  if (step.versions().empty()) {
    if (end.records == 0) Violation("the first record of a run names no versions");
    return;
  }
  end.version = 0;
  for (const v1::GraphVersion& version : step.versions()) {
    if (version.operator_() != ExactModel::kOperator) continue;
    // In quanta, one version executes both nodes of a step.
    if (end.version != 0 || version.tasks() != 2) Violation("a record names several versions");
    end.version = version.version();
  }
}

void Decoder::TakeRecord(Branch& branch, const v1::GraphStep& message, RunEnd& end) {
  if (message.records_size() != 3 || message.records(0).data().size() != sizeof(int64_t) ||
      message.records(1).data().size() != sizeof(Row) ||
      message.records(2).data().size() != sizeof(int32_t)) {
    return Violation("a record has another size");
  }
  TakeVersion(message, end);
  const Record record{.token = static_cast<int>(FromBytes<int64_t>(message.records(0).data())[0]),
                      .mixed = ReadRow(FromBytes<float>(message.records(1).data()).data()),
                      .version = end.version};
  const auto step = static_cast<size_t>(FromBytes<int32_t>(message.records(2).data())[0]);
  if (end.records == 0) end.first = step;
  if (step != branch.steps) {
    if (step < branch.steps || end.records > 0 || !branch.uncertain) {
      return Violation(absl::StrCat("a record of step ", step, " after ", branch.steps));
    }
    world_.findings->Count("steps of runs that were cancelled before they began",
                           step - branch.steps);
  }
  branch.steps = step + 1;
  branch.salts.resize(branch.steps, branch.salt);
  world_.findings->Count("steps");
  if (step != branch.rows.size()) {
    branch.early[step] = record;
    return;
  }
  const Span span{end.span.sent, Clock::now()};
  Extend(branch, record.token, nullptr, &record, &span);
}

void Decoder::Extend(Branch& branch, int next, const Row* row, const Record* record,
                     const Span* span) {
  const size_t step = branch.rows.size();
  for (uint32_t version = 1; version <= ExactModel::kVersions; ++version) {
    const ExactModel::Step computed =
        world_.model->Compute(version, branch.salts[step], branch.tokens[step], branch.sum);
    if (computed.next != next || (row != nullptr && computed.row != *row) ||
        (record != nullptr && computed.mixed != record->mixed)) {
      continue;
    }
    if (record != nullptr && record->version != version) {
      Violation(absl::StrCat("a record of version ", version, " names version ", record->version));
    }
    if (span != nullptr && !world_.timeline->MayHaveServed(0, version, *span)) {
      Violation(absl::StrCat("version ", version, " computed a step while it was not active"));
    }
    world_.findings->Count(absl::StrCat("steps checked: of version ", version));
    branch.rows.push_back(computed.row);
    branch.versions.push_back(version);
    branch.tokens.push_back(next);
    for (int i = 0; i < ExactModel::kDim; ++i) branch.sum[i] += computed.row[i];
    return;
  }
  Violation(absl::StrCat("no version gives step ", step, " of a session, with the token ", next));
  // The following steps would be wrong as well: they are not checked.
  branch.rows.push_back({});
  branch.versions.push_back(0);
  branch.tokens.push_back(next);
}

void Decoder::CheckStates(Branch& branch, const v1::GraphResult& result) {
  if (result.outputs_size() != 2) return Violation("a result has no states");
  const std::vector<float> text = FromBytes<float>(result.outputs(0).data());
  const std::vector<float> cache = FromBytes<float>(result.outputs(1).data());
  if (text.size() != ExactModel::kContext + 1 ||
      cache.size() != size_t{ExactModel::kContext} * ExactModel::kDim) {
    return Violation("a result has other sizes");
  }
  while (branch.rows.size() < branch.steps) {
    const size_t step = branch.rows.size();
    const Row row = ReadRow(cache.data() + step * ExactModel::kDim);
    const auto early = branch.early.find(step);
    const bool known = early != branch.early.end();
    Extend(branch, known ? early->second.token : static_cast<int>(text[step + 1]), &row,
           known ? &early->second : nullptr, nullptr);
  }
  branch.early.clear();
  for (size_t step = 0; step < ExactModel::kContext; ++step) {
    const Row row = ReadRow(cache.data() + step * ExactModel::kDim);
    const bool exists = step < branch.steps;
    if (row != (exists ? branch.rows[step] : Row{})) {
      return Violation(absl::StrCat("row ", step, " of a session with ", branch.steps, " steps"));
    }
    const float token = exists ? static_cast<float>(branch.tokens[step + 1]) : 0;
    if (text[step + 1] != token) {
      return Violation(absl::StrCat("token ", step + 1, " of a session with ", branch.steps));
    }
  }
  if (text[0] != static_cast<float>(branch.tokens[0])) Violation("the first token has changed");
  world_.findings->Count("states checked");
}

void Decoder::CheckVersions(const Branch& branch, size_t first, const v1::GraphResult& result) {
  // The graph calls the operator twice in each step.
  std::map<uint32_t, uint64_t> expected;
  for (size_t step = first; step < branch.steps; ++step) expected[branch.versions[step]] += 2;
  std::map<uint32_t, uint64_t> counted;
  for (const v1::GraphVersion& version : result.versions()) {
    if (version.operator_() == ExactModel::kOperator) counted[version.version()] = version.tasks();
  }
  if (counted != expected) Violation("a result counts other versions than those of its rows");
}

}  // namespace resident::soak
