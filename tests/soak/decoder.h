// Decoder: a client that decodes with ExactModel in graph sessions: runs of random length, some of
// which it cancels at random moments, forks, and new sessions when the engine was lost. It computes
// each token itself, with each version of the operator, and checks
//
//   * every record when it arrives: that it is the next one, that the version which it names
//     computed it and may have served, and the token,
//   * after each complete run the whole state, with the steps whose records were not delivered
//     because their run was cancelled,
//   * that the result counts the tasks of each version as the rows show them.
//
// Thread safety: the constructor starts a thread; Finish may be called once.
#ifndef RESIDENT_TESTS_SOAK_DECODER_H_
#define RESIDENT_TESTS_SOAK_DECODER_H_

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/daemon/client.h"
#include "tests/daemon/daemon.h"
#include "tests/graph/loaded_graphs.h"
#include "tests/soak/exact_model.h"
#include "tests/soak/findings.h"
#include "tests/soak/timeline.h"

namespace resident::soak {

class Decoder {
 public:
  struct World {
    const testing::Daemon* daemon;
    const ExactModel* model;
    std::string graph_id;
    // Operator 0 is that of the model.
    const Timeline* timeline;
    Findings* findings;
  };

  // Decodes until Finish.
  Decoder(const World& world, uint64_t seed);
  // Stops after the present run, and closes the sessions.
  void Finish();

 private:
  struct Record {
    int token = 0;
    ExactModel::Row mixed{};
    // The version of the operator that it names.
    uint32_t version = 0;
  };
  // A graph session, and what it must contain.
  struct Branch {
    std::string session;
    uint32_t salt = 0;
    // When the session existed for the last time, at least.
    Clock::time_point seen;
    // Whether the next run has to repeat a step.
    bool interrupted = false;
    // Whether a run was cancelled before it sent a record. The daemon may begin and end such a run
    // later, because the cancellation overtakes it: the session can be further than it seems to be.
    bool uncertain = false;
    // Steps that are complete, as far as this client knows; the first rows.size() of them are
    // known.
    size_t steps = 0;
    // By step: the salt, the row, and the version that computed it. The tokens are those that the
    // steps read.
    std::vector<uint32_t> salts;
    std::vector<ExactModel::Row> rows;
    std::vector<uint32_t> versions;
    std::vector<int> tokens;
    ExactModel::Row sum{};
    // By step: a record that came before the steps before it are known.
    std::map<size_t, Record> early;
  };
  // A run that has ended.
  struct RunEnd {
    grpc::Status status;
    v1::GraphResult result;
    Span span;
    // The step of the first record, and the number of records.
    size_t first = 0;
    size_t records = 0;
    // The version of the operator that the last record named which had versions; 0: none.
    uint32_t version = 0;
    // Whether it was to be cancelled, or had a deadline.
    bool cancelled = false;
    bool limited = false;
  };

  void DecodeUntilStopped();
  // One of the things that a client does, chosen at random.
  void DoSomething();
  void Open();
  void Fork(size_t parent);
  void Close(size_t branch);
  // Runs it once. Lost branches are removed.
  void Decode(size_t branch);
  RunEnd Stream(Branch& branch, const v1::RunGraphRequest& request, bool cancel);
  // False: the branch is lost.
  bool TakeEnd(Branch& branch, const RunEnd& end);
  bool AwaitEnd(Branch& branch, const RunEnd& end);
  // Whether a call was refused because a step of the session is not complete.
  bool IsInterrupted(Branch& branch, const grpc::Status& status);
  void TakeRecord(Branch& branch, const v1::GraphStep& message, RunEnd& end);
  // Takes the version of the operator from a step, if that names versions.
  void TakeVersion(const v1::GraphStep& step, RunEnd& end);
  // Adds the next step if a version gives the token that follows, and what else is not null.
  void Extend(Branch& branch, int next, const ExactModel::Row* row, const Record* record,
              const Span* span);
  void CheckStates(Branch& branch, const v1::GraphResult& result);
  void CheckVersions(const Branch& branch, size_t first, const v1::GraphResult& result);

  void Violation(const std::string& what);
  // A call failed that may only fail if an engine was lost meanwhile.
  void Failed(const std::string& what, const grpc::Status& status, const Span& span);
  uint64_t Below(uint64_t limit) { return random_() % limit; }

  const World world_;
  std::mt19937_64 random_;
  absl::Notification stop_;
  const testing::Client client_;
  const testing::GraphCalls calls_{*world_.daemon, client_};
  std::vector<Branch> branches_;
  std::thread thread_;  // Uses all members above.
};

}  // namespace resident::soak

#endif  // RESIDENT_TESTS_SOAK_DECODER_H_
