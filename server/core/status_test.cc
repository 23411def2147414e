#include "server/core/status.h"

#include <string>

#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "runtime/model/errors.h"

namespace resident {
namespace {

const std::string kAdd = "add";
const std::string kY = "y";

google::rpc::ErrorInfo ParseInfo(const grpc::Status& status) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), static_cast<int>(status.error_code()));
  EXPECT_EQ(details.details_size(), 1);
  if (details.details_size() == 1) {
    EXPECT_TRUE(details.details(0).UnpackTo(&info)) << details.details(0).type_url();
  }
  return info;
}

TEST(StatusTest, AnArgumentErrorHasAnErrorInfoForPrograms) {
  const grpc::Status status = ToGrpc(errors::ArgumentShape({kAdd, 1, kY}, "[2]", "N", "3", "x"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const google::rpc::ErrorInfo info = ParseInfo(status);
  EXPECT_EQ(info.reason(), "SHAPE_MISMATCH");
  EXPECT_EQ(info.domain(), "residentd");
  EXPECT_EQ(info.metadata().at("operator"), "add");
  EXPECT_EQ(info.metadata().at("argument"), "y");
  EXPECT_EQ(info.metadata().at("index"), "1");
  EXPECT_EQ(info.metadata().at("got"), "[2]");
  EXPECT_EQ(info.metadata().at("expected"), "N = 3");
}

TEST(StatusTest, AnErrorWithoutAReasonHasNoDetails) {
  EXPECT_EQ(ToGrpc(absl::NotFoundError("no such buffer")).error_details(), "");
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
}

TEST(StatusTest, LongMessagesAndDetailsFitIntoHeaders) {
  const std::string name(5000, 'n');
  const grpc::Status status =
      ToGrpc(errors::ArgumentShape({name, 0, name}, name, name, name, name));
  EXPECT_LE(status.error_message().size(), kMaxStatusMessageBytes + 16);
  EXPECT_LE(status.error_details().size(), kMaxStatusDetailBytes);
  EXPECT_EQ(ParseInfo(status).reason(), "SHAPE_MISMATCH");
}

}  // namespace
}  // namespace resident
