// Outputs whose shape the daemon infers, and what a client needs for inferring it itself: the
// parameters of an operator in structured form.
#include <grpcpp/create_channel.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "resident/v1/operators.grpc.pb.h"
#include "tests/daemon/client.h"
#include "tests/daemon/messages.h"

namespace resident::testing {
namespace {

using ::testing::ElementsAre;

class InferredOutputsTest : public DaemonTest {
 protected:
  v1::BatchResult MustRun(const v1::Batch& batch) {
    const RunOutcome outcome = client_.Run(batch);
    EXPECT_TRUE(outcome.all_ok()) << outcome.call.error_message() << outcome.message();
    return outcome.result;
  }
  v1::Operator Describe(const std::string& name) {
    const auto stub = v1::Operators::NewStub(
        grpc::CreateChannel(daemon_->address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    v1::DescribeOperatorRequest request;
    request.set_name(name);
    v1::DescribeOperatorResponse response;
    const grpc::Status status = stub->Describe(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.operator_();
  }
};

void Infer(v1::Batch& batch) {
  batch.mutable_tasks()->add_arguments()->mutable_returned()->set_infer_shape(true);
}

TEST_F(InferredOutputsTest, BroadcastInputsGiveTheShapeAndTheResultNamesIt) {
  v1::Batch batch = Tasks("add", 2);
  Inline(batch, {2, 1}, {1, 2, 10, 20});
  Inline(batch, {3}, {1, 2, 3});
  Infer(batch);
  const v1::BatchResult result = MustRun(batch);
  EXPECT_EQ(Floats(result), (std::vector<float>{2, 3, 4, 3, 4, 5, 11, 12, 13, 21, 22, 23}));
  ASSERT_EQ(result.output_types_size(), 1);
  EXPECT_EQ(result.output_types(0).dtype(), v1::DTYPE_F32);
  EXPECT_THAT(result.output_types(0).shape(), ElementsAre(2, 3));
}

TEST_F(InferredOutputsTest, AMatrixProductTakesItsSizesFromBothInputs) {
  v1::Batch batch = Tasks("gemv", 1);
  Inline(batch, {2, 3}, {1, 2, 3, 4, 5, 6});
  Inline(batch, {2, 3}, {1, 0, 1, 0, 1, 1});
  Inline(batch, {2}, {0, 100});
  Infer(batch);
  const v1::BatchResult result = MustRun(batch);
  EXPECT_EQ(Floats(result), (std::vector<float>{4, 105, 10, 111}));
  EXPECT_THAT(result.output_types(0).shape(), ElementsAre(2, 2));
}

TEST_F(InferredOutputsTest, ADTypeThatIsSentIsKept) {
  v1::Batch batch = Tasks("add", 1);
  Inline(batch, {2}, {1, 2});
  Inline(batch, {2}, {1, 2});
  Infer(batch);
  batch.mutable_tasks()->mutable_arguments(2)->mutable_returned()->set_dtype(v1::DTYPE_BF16);
  const v1::BatchResult result = MustRun(batch);
  EXPECT_EQ(result.output_types(0).dtype(), v1::DTYPE_BF16);
  EXPECT_EQ(result.outputs(0).size(), 4u);
}

TEST_F(InferredOutputsTest, AResultWithoutInferredShapesHasNoTypes) {
  EXPECT_EQ(MustRun(SmallAdd()).output_types_size(), 0);
}

TEST_F(InferredOutputsTest, AnOutputThatCannotBeInferredIsRefused) {
  v1::Batch fill = Tasks("fill", 1);
  Infer(fill);
  Scalar(fill, {1});
  ExpectRefused(client_.Run(fill).call, grpc::StatusCode::INVALID_ARGUMENT,
                {"'out'", "cannot be inferred"});
}

TEST_F(InferredOutputsTest, AShapeBesideInferShapeIsRefused) {
  v1::Batch batch = Tasks("copy", 1);
  Inline(batch, {2}, {1, 2});
  Returned(batch, {2})->set_infer_shape(true);
  ExpectRefused(client_.Run(batch).call, grpc::StatusCode::INVALID_ARGUMENT,
                {"'out'", "infer_shape"});
}

TEST_F(InferredOutputsTest, ARefusedArgumentIsNamedInTheErrorsDetails) {
  v1::Batch batch = Tasks("add", 1);
  Inline(batch, {2}, {1, 2});
  Inline(batch, {3}, {1, 2, 3});
  Infer(batch);
  const grpc::Status status = client_.Run(batch).call;
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  ASSERT_EQ(details.details_size(), 1);
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "SHAPE_MISMATCH");
  EXPECT_EQ(info.metadata().at("operator"), "add");
  EXPECT_EQ(info.metadata().at("argument"), "y");
  EXPECT_EQ(info.metadata().at("got"), "[3]");
}

TEST_F(InferredOutputsTest, ParametersHaveShapesStridesAndDefaults) {
  const v1::Operator add = Describe("add");
  ASSERT_EQ(add.parameters_size(), 4);
  ASSERT_EQ(add.parameters(0).shape_size(), 1);
  EXPECT_EQ(add.parameters(0).shape(0).broadcast(), "S");
  EXPECT_TRUE(add.parameters(0).strided());
  EXPECT_EQ(add.parameters(2).shape(0).spread(), "S");
  EXPECT_EQ(add.parameters(3).name(), "alpha");
  EXPECT_EQ(add.parameters(3).default_case(), v1::Parameter::kDefaultF64);
  EXPECT_EQ(add.parameters(3).default_f64(), 1);

  const v1::Operator rows = Describe("sum_rows");
  ASSERT_EQ(rows.parameters_size(), 2);
  ASSERT_EQ(rows.parameters(0).shape_size(), 2);
  EXPECT_EQ(rows.parameters(0).shape(0).name(), "R");
  EXPECT_EQ(rows.parameters(0).shape(1).name(), "C");
  EXPECT_FALSE(rows.parameters(0).strided());
  EXPECT_EQ(rows.parameters(0).default_case(), v1::Parameter::DEFAULT_NOT_SET);

  const v1::Operator causal = Describe("attention");
  ASSERT_GE(causal.parameters_size(), 7);
  EXPECT_EQ(causal.parameters(6).name(), "causal");
  EXPECT_EQ(causal.parameters(6).default_case(), v1::Parameter::kDefaultI64);
}

}  // namespace
}  // namespace resident::testing
