// Builders of the messages that tests send, and the shared daemon they send them to.
//
// Thread safety: functions without state.
//
//   v1::Batch batch = Tasks("add", 2);
//   Inline(batch, {3}, {1, 2, 3, 4, 5, 6});
//   Inline(batch, {3}, {1, 1, 1});        // Shared by both tasks.
//   Returned(batch, {3});
#ifndef RESIDENT_TESTS_DAEMON_MESSAGES_H_
#define RESIDENT_TESTS_DAEMON_MESSAGES_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "resident/v1/executor.pb.h"
#include "tests/daemon/client.h"

namespace resident::testing {

v1::Batch Tasks(const std::string& operator_name, uint32_t count);

// Each appends a column.
v1::InlineColumn* Inline(v1::Batch& batch, const std::vector<uint64_t>& shape,
                         const std::vector<float>& values);
v1::BufferColumn* Buffers(v1::Batch& batch, const std::vector<uint64_t>& ids);
v1::ReturnedColumn* Returned(v1::Batch& batch, const std::vector<uint64_t>& shape);
void Scalar(v1::Batch& batch, std::initializer_list<double> values);
void Integer(v1::Batch& batch, std::initializer_list<int64_t> values);

// A batch of `add` of one float each, complete and correct.
v1::Batch SmallAdd(uint64_t id = 0);

// One task that returns `floats` floats, on the first device.
v1::Batch Fill(uint64_t id, uint64_t floats);

// FLUX programs; each is its bytecode.
v1::Batch Programs(const std::vector<std::string>& programs);

// Output `column` of a result, as floats.
std::vector<float> Floats(const v1::BatchResult& result, int column = 0);
std::vector<int32_t> Integers(const std::string& bytes);

// Writes or reads all of a buffer.
grpc::Status Upload(const Client& client, uint64_t id, const std::string& bytes,
                    uint64_t offset = 0);
grpc::Status Download(const Client& client, uint64_t id, std::string* bytes, uint64_t offset = 0,
                      uint64_t size = 0);

// Sends the batches over one stream, each after the answer to the previous one; returns the
// answers.
std::vector<v1::BatchResult> SubmitSequentially(const Client& client,
                                                const std::vector<v1::Batch>& batches);

// All tests of a suite share one daemon; each test has its own client.
class DaemonTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = std::make_unique<Daemon>(); }
  static void TearDownTestSuite() { daemon_.reset(); }

  DaemonTest() : client_(*daemon_) {}

  // Allocates a buffer of floats.
  uint64_t MustAllocate(uint64_t floats);
  // Checks that the daemon still runs tasks correctly.
  void ExpectServes();

  static inline std::unique_ptr<Daemon> daemon_;
  Client client_;
};

// Expects a status of this code, whose message contains all of these parts and a "Fix: ".
void ExpectRefused(const grpc::Status& status, grpc::StatusCode code,
                   const std::vector<std::string>& parts);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_DAEMON_MESSAGES_H_
