// Expressions in a running daemon: installed over gRPC, run on the device, and compared
// with a float64 reference: mixed types, special values, strided and broadcast operands.
// The same on every engine.
#include <gtest/gtest.h>

#include <cstring>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "resident/v1/operators.grpc.pb.h"
#include "tests/daemon/messages.h"
#include "tests/expression/matches.h"
#include "tests/expression/operand.h"
#include "tests/expression/reference.h"

namespace resident::testing {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

class ExpressionsInTheDaemon : public DaemonTest {
 protected:
  ExpressionsInTheDaemon() : operators_(v1::Operators::NewStub(daemon_->Connect())) {
    std::cout << "seed " << seed_ << "\n";
  }

  // Installs the expression; returns the call's status, and the last message in `last`.
  grpc::Status Install(const std::string& name, const std::string& text,
                       v1::InstallResponse* last) {
    const auto context = client_.Context();
    const auto stream = operators_->Install(context.get());
    v1::InstallRequest request;
    request.mutable_header()->set_name(name);
    request.mutable_header()->set_expression(text);
    request.mutable_header()->set_wait_for(v1::VERSION_STATE_ACTIVE);
    stream->Write(request);
    stream->WritesDone();
    v1::InstallResponse response;
    while (stream->Read(&response)) *last = response;
    return stream->Finish();
  }

  // Copies the operands into buffers, runs the operator on them and copies the output back.
  void Run(const std::string& name, const ExpressionCase& test, std::vector<Operand>& operands) {
    while (buffers_.size() < operands.size()) buffers_.push_back(MustAllocate(kBufferFloats));
    v1::Batch batch = Tasks(name, 1);
    for (size_t k = 0; k < operands.size(); ++k) {
      Operand& operand = operands[k];
      ASSERT_LE(operand.storage_bytes(), 4 * kBufferFloats);
      const std::string bytes(reinterpret_cast<const char*>(operand.storage()),
                              operand.storage_bytes());
      ASSERT_TRUE(Upload(client_, buffers_[k], bytes).ok());
      v1::BufferColumn* column = Buffers(batch, {buffers_[k]});
      column->add_offsets(operand.first_byte());
      column->set_dtype(static_cast<v1::DType>(operand.dtype()));
      for (const int64_t dim : operand.shape()) column->add_shape(static_cast<uint64_t>(dim));
      for (const int64_t stride : operand.strides()) column->add_strides(stride);
    }
    for (const float scalar : test.scalars) Scalar(batch, {scalar});
    const RunOutcome outcome = client_.Run(batch);
    ASSERT_TRUE(outcome.all_ok()) << outcome.message();
    Operand& out = operands.back();
    std::string bytes;
    ASSERT_TRUE(
        Download(client_, buffers_[operands.size() - 1], &bytes, 0, out.storage_bytes()).ok());
    std::memcpy(out.storage(), bytes.data(), bytes.size());
    ASSERT_TRUE(Matches(test, operands));
  }

  void Randomize(Operand& x) {
    std::normal_distribution<double> normal(0, 3);
    for (int64_t i = 0; i < x.size(); ++i) x.Set(i, normal(random_));
  }
  void Specials(Operand& x, int64_t stride) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    const float kSpecials[] = {0.0f,  -0.0f, kInf,  -kInf, kNan,   3e38f,  -3e38f, 1.0f,
                               -1.0f, 0.5f,  -2.5f, 88.0f, -88.0f, 100.0f, -70.0f, 6e4f};
    for (int64_t i = 0; i < x.size(); ++i) {
      x.Set(i, kSpecials[i / stride % std::size(kSpecials)]);
    }
  }
  // Random operands of random types.
  std::vector<Operand> Make(int inputs, const std::vector<int64_t>& shape, Layout in, Layout out) {
    std::vector<Operand> operands;
    for (int k = 0; k < inputs; ++k) {
      operands.emplace_back(kDTypes[random_() % 3], shape, in);
      Randomize(operands.back());
    }
    operands.emplace_back(kDTypes[random_() % 3], shape, out);
    return operands;
  }

  static constexpr uint64_t kBufferFloats = 400'000;
  const std::unique_ptr<v1::Operators::Stub> operators_;
  std::vector<uint64_t> buffers_;
  const uint32_t seed_ = std::random_device()();
  std::mt19937 random_{seed_};
};

TEST_F(ExpressionsInTheDaemon, GiveCorrectResults) {
  const std::vector<ExpressionCase> cases = ExpressionCases();
  for (size_t c = 0; c < cases.size(); ++c) {
    const ExpressionCase& test = cases[c];
    const std::string name = "expression" + std::to_string(c);
    SCOPED_TRACE(name + ": " + test.text);
    v1::InstallResponse last;
    const grpc::Status status = Install(name, test.text, &last);
    ASSERT_TRUE(status.ok()) << status.error_message() << last.log();
    ASSERT_EQ(last.state(), v1::VERSION_STATE_ACTIVE) << last.message();

    for (const DType dtype : kDTypes) {
      // Dense operands of one type; the third shape makes a wide task.
      for (const std::vector<int64_t>& shape :
           {std::vector<int64_t>{1027}, std::vector<int64_t>{33, 31},
            std::vector<int64_t>{70'003}}) {
        auto operands = Make(test.inputs, shape, Layout::kDense, Layout::kDense);
        for (size_t k = 0; k < operands.size(); ++k) {
          operands[k] = Operand(dtype, shape, Layout::kDense);
          if (k + 1 < operands.size()) Randomize(operands[k]);
        }
        ASSERT_NO_FATAL_FAILURE(Run(name, test, operands));
      }
      auto specials = Make(test.inputs, {256}, Layout::kDense, Layout::kDense);
      specials.back() = Operand(dtype, {256}, Layout::kDense);
      for (int k = 0; k < test.inputs; ++k) {
        specials[k] = Operand(dtype, {256}, Layout::kDense);
        Specials(specials[k], k % 2 == 0 ? 1 : 16);
      }
      ASSERT_NO_FATAL_FAILURE(Run(name, test, specials));
    }
    for (const Layout in : {Layout::kShifted, Layout::kTransposed, Layout::kReversed}) {
      auto operands = Make(test.inputs, {9, 17, 5}, in, Layout::kDense);
      ASSERT_NO_FATAL_FAILURE(Run(name, test, operands));
      operands = Make(test.inputs, {64, 21}, in, Layout::kApart);
      ASSERT_NO_FATAL_FAILURE(Run(name, test, operands));
      operands = Make(test.inputs, {1029}, Layout::kDense, Layout::kShifted);
      ASSERT_NO_FATAL_FAILURE(Run(name, test, operands));
    }
    // Each input has another shape that broadcasts.
    auto operands = Make(test.inputs, {6, 70, 8}, Layout::kDense, Layout::kTransposed);
    const std::vector<std::vector<int64_t>> shapes = {{70, 1}, {6, 1, 8}, {1}, {8}, {6, 70, 1}};
    for (int k = 0; k < test.inputs; ++k) {
      operands[k] = Operand(kDTypes[k % 3], shapes[k % shapes.size()], Layout::kApart);
      Randomize(operands[k]);
    }
    ASSERT_NO_FATAL_FAILURE(Run(name, test, operands));
  }
  ExpectServes();
}

TEST_F(ExpressionsInTheDaemon, AMistakeIsRefusedWithItsPosition) {
  v1::InstallResponse last;
  const grpc::Status status = Install("mistake", "x * sgimoid(x)", &last);
  ExpectRefused(status, grpc::StatusCode::INVALID_ARGUMENT,
                {"column 5", "no function 'sgimoid'", "did you mean sigmoid"});
  ExpectServes();
}

}  // namespace
}  // namespace resident::testing
