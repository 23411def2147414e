// Tensors with more than 2^32 elements. On the CPU engine it needs 14 GiB of memory and minutes, so
// that it is not part of `make test`: bazel test //tests/integration:large_tensors_test
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/daemon/messages.h"

namespace resident::testing {
namespace {

constexpr uint64_t kElements = (uint64_t{1} << 32) + 65'539;
// Places at which an index or a size of 31 or 32 bits would go wrong, and the ends.
constexpr uint64_t kPlaces[] = {0, (uint64_t{1} << 31) - 50, (uint64_t{1} << 32) - 50,
                                kElements - 100};

class LargeTensorsTest : public ::testing::Test {
 protected:
  // `shape` empty: one element without dimensions.
  uint64_t MustAllocate(v1::DType dtype, const std::vector<uint64_t>& shape) {
    v1::AllocateRequest request;
    request.set_dtype(dtype);
    request.mutable_shape()->Add(shape.begin(), shape.end());
    v1::AllocateResponse response;
    const grpc::Status status =
        client_.buffers().Allocate(client_.Context().get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.buffer().id();
  }
  // Runs a batch that takes longer than the contexts of Client allow.
  void MustRun(const v1::Batch& batch) {
    grpc::ClientContext context;
    context.AddMetadata("resident-session", client_.session());
    v1::RunRequest request;
    *request.mutable_batch() = batch;
    v1::RunResponse response;
    const grpc::Status status = client_.executor().Run(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.result().status_size(), 0) << response.result().errors(0).message();
  }

  const Daemon daemon_{{"--device_memory_mib=14000", "--task_time_limit=600s"}};
  const Client client_{daemon_};
};

std::string RandomBytes(size_t size) {
  std::mt19937 random(std::random_device{}());
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

TEST_F(LargeTensorsTest, EveryPartIsCopied) {
  const uint64_t x = MustAllocate(v1::DTYPE_U8, {kElements});
  const uint64_t out = MustAllocate(v1::DTYPE_U8, {kElements});
  const std::string data = RandomBytes(100);
  for (const uint64_t place : kPlaces) ASSERT_TRUE(Upload(client_, x, data, place).ok());
  v1::Batch copy = Tasks("copy", 1);
  Buffers(copy, {x});
  Buffers(copy, {out});
  MustRun(copy);
  for (const uint64_t place : kPlaces) {
    std::string got;
    ASSERT_TRUE(Download(client_, out, &got, place, data.size()).ok());
    EXPECT_EQ(got, data) << "at " << place;
  }
}

TEST_F(LargeTensorsTest, AReductionFindsAnElementBehindTheFirst32Bits) {
  const uint64_t x = MustAllocate(v1::DTYPE_F16, {kElements});
  const uint64_t out = MustAllocate(v1::DTYPE_I64, {});
  v1::Batch fill = Tasks("fill", 1);
  Buffers(fill, {x});
  Scalar(fill, {-1});
  MustRun(fill);
  const uint64_t largest = kElements - 7;
  ASSERT_TRUE(Upload(client_, x, std::string("\x00\x3c", 2), 2 * largest).ok());  // 1.0.
  v1::Batch argmax = Tasks("argmax", 1);
  Buffers(argmax, {x});
  Buffers(argmax, {out});
  Integer(argmax, {1});  // Over dimension 0.
  MustRun(argmax);
  std::string got;
  ASSERT_TRUE(Download(client_, out, &got).ok());
  uint64_t index = 0;
  ASSERT_EQ(got.size(), sizeof(index));
  std::memcpy(&index, got.data(), sizeof(index));
  EXPECT_EQ(index, largest);
}

}  // namespace
}  // namespace resident::testing
