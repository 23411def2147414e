#include "runtime/operators/registry/native_form.h"

#include <gtest/gtest.h>

#include <memory>

#include "absl/time/clock.h"
#include "runtime/operators/registry/operator_version.h"

namespace resident {
namespace {

using State = NativeForm::State;

std::shared_ptr<const OperatorVersion> Code() { return std::make_shared<OperatorVersion>(); }

TEST(NativeForm, ServesOnceItIsMade) {
  NativeForm form;
  EXPECT_EQ(form.view().state, State::kOff);
  EXPECT_EQ(form.Use(false).code, nullptr);
  ASSERT_TRUE(form.Begin());
  EXPECT_FALSE(form.Begin());
  EXPECT_EQ(form.Use(false).code, nullptr);
  EXPECT_FALSE(form.WaitUntilDecided(absl::Now()));
  const auto code = Code();
  form.Serve(code, std::nullopt);
  EXPECT_TRUE(form.WaitUntilDecided(absl::Now()));
  EXPECT_EQ(form.Use(false).code, code);
  EXPECT_EQ(form.Use(true).code, code);
  EXPECT_FALSE(form.Begin());
}

TEST(NativeForm, ServesOnlyTheModeThatItWasMadeFor) {
  NativeForm form;
  form.Begin();
  form.Serve(Code(), false);
  EXPECT_NE(form.Use(false).code, nullptr);
  EXPECT_EQ(form.Use(true).code, nullptr);
}

TEST(NativeForm, OneOfManyUsesIsCompared) {
  NativeForm form;
  form.Begin();
  form.Serve(Code(), std::nullopt);
  uint64_t compared = 0;
  for (uint64_t i = 0; i < 2 * NativeForm::kUsesOfComparison; ++i) {
    compared += form.Use(false).compare;
  }
  EXPECT_EQ(compared, 2u);
}

TEST(NativeForm, ARefusedOneCanBeTriedAgain) {
  NativeForm form;
  form.Begin();
  form.Refuse("too long");
  EXPECT_EQ(form.view().state, State::kRefused);
  EXPECT_EQ(form.view().reason, "too long");
  EXPECT_TRUE(form.Begin());
}

TEST(NativeForm, AnEvictedOneReleasesItsCodeAndIsMadeAgain) {
  NativeForm form;
  EXPECT_FALSE(form.Evict());
  form.Begin();
  auto code = Code();
  const std::weak_ptr<const OperatorVersion> watched = code;
  form.Serve(std::move(code), std::nullopt);
  EXPECT_TRUE(form.Evict());
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(form.Use(false).code, nullptr);
  EXPECT_TRUE(form.Begin());
}

TEST(NativeForm, AQuarantinedOneIsNotMadeAgainAndItsCodeIsMarked) {
  NativeForm form;
  EXPECT_FALSE(form.Quarantine("it never served"));
  form.Begin();
  const auto code = Code();
  form.Serve(code, std::nullopt);
  EXPECT_TRUE(form.Quarantine("a fault"));
  EXPECT_FALSE(form.Quarantine("another fault"));
  EXPECT_EQ(form.view().reason, "a fault");
  EXPECT_EQ(code->state.load(), VersionState::kQuarantined);
  EXPECT_FALSE(form.Begin());
}

}  // namespace
}  // namespace resident
