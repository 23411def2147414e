#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "runtime/engine/control/engine_messages.h"

namespace resident {
namespace {

std::shared_ptr<const std::string> Bytes(size_t count, char with) {
  return std::make_shared<const std::string>(count, with);
}

TEST(GenerationTransferTest, TheReceivedGenerationEqualsTheOneSent) {
  Generation sent;
  sent.number = 7;
  const auto shared = Bytes(3 << 20, 'o');
  sent.operators = {{64, "resident_op_a", shared},
                    {66, "resident_op_b", nullptr},
                    {68, "resident_op_c", Bytes(17, 'c')},
                    {70, "resident_op_d", shared}};
  internal::Generation message;
  const auto fd = PackGeneration(sent, &message);
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_LT(message.ByteSizeLong(), 1000u);
  const auto received = UnpackGeneration(message, fd->get());
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ((*received)->number, 7u);
  ASSERT_EQ((*received)->operators.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const GenerationOperator& was = sent.operators[i];
    const GenerationOperator& is = (*received)->operators[i];
    EXPECT_EQ(is.slot, was.slot);
    EXPECT_EQ(is.symbol, was.symbol);
    ASSERT_EQ(is.object == nullptr, was.object == nullptr);
    if (is.object != nullptr) {
      EXPECT_EQ(*is.object, *was.object);
    }
  }
  EXPECT_EQ((*received)->operators[0].object, (*received)->operators[3].object);
}

TEST(GenerationTransferTest, BuiltInOperatorsAloneNeedNoDescriptor) {
  internal::Generation message;
  const auto fd = PackGeneration(Generation(), &message);
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_EQ(fd->get(), -1);
  const auto received = UnpackGeneration(message, -1);
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ((*received)->number, 1u);
  EXPECT_TRUE((*received)->operators.empty());
}

TEST(GenerationTransferTest, BytesThatDoNotMatchTheMessageAreRefused) {
  Generation sent;
  sent.operators = {{64, "resident_op_a", Bytes(1000, 'o')}};
  internal::Generation message;
  const auto fd = PackGeneration(sent, &message);
  ASSERT_TRUE(fd.ok()) << fd.status();
  message.set_object_bytes(0, 1001);
  EXPECT_EQ(UnpackGeneration(message, fd->get()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(UnpackGeneration(message, -1).status().code(), absl::StatusCode::kResourceExhausted);
  message.set_object_bytes(0, 1000);
  message.add_operators()->set_object(2);
  EXPECT_EQ(UnpackGeneration(message, fd->get()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace resident
