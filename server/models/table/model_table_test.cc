#include "server/models/table/model_table.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/workload/workload.h"

namespace resident {
namespace {

class FakeModel final : public ServedModel {
 public:
  FakeModel(std::string hash, int* destroyed = nullptr)
      : stored_{.content_hash = std::move(hash)}, destroyed_(destroyed) {}
  ~FakeModel() override {
    if (destroyed_ != nullptr) ++*destroyed_;
  }
  const std::string& content_hash() const override { return stored_.content_hash; }
  const StoredModel::Version& stored() const override { return stored_; }
  std::unique_ptr<Workload> MakeWorkload(const v1::Batch&, uint32_t) const override {
    return nullptr;
  }
  void Describe(v1::ModelVersion*) const override {}

 private:
  const StoredModel::Version stored_;
  int* const destroyed_;
};

class ModelTableTest : public testing::Test {
 protected:
  uint32_t Add(const std::string& name, const std::string& hash) {
    const auto added = table_.Add(name, std::make_shared<FakeModel>(hash), /*loaded_ms=*/7, "ann");
    EXPECT_TRUE(added.ok()) << added.status();
    return added.ok() ? added->version : 0;
  }
  uint32_t Serving(const std::string& name) {
    const auto found = table_.Find(name, 0);
    return found.ok() ? found->version : 0;
  }
  std::vector<std::pair<uint32_t, ModelTable::State>> States(const std::string& name) {
    std::vector<std::pair<uint32_t, ModelTable::State>> states;
    const ModelTable::Model model = table_.Describe(name).value();
    for (const auto& version : model.versions) {
      states.emplace_back(version.version, version.state);
    }
    return states;
  }
  template <typename Result>
  static absl::StatusCode Code(const Result& result) {
    return result.status().code();
  }

  using State = ModelTable::State;
  using Pair = std::pair<uint32_t, State>;
  ModelTable table_;
};

TEST_F(ModelTableTest, AVersionServesOnceItIsActive) {
  EXPECT_EQ(Code(table_.Find("rank", 0)), absl::StatusCode::kNotFound);
  EXPECT_EQ(Add("rank", "a"), 1u);
  EXPECT_EQ(Code(table_.Find("rank", 0)), absl::StatusCode::kUnavailable);
  EXPECT_EQ(table_.Find("rank", 1)->version, 1u);  // Named.
  EXPECT_EQ(Code(table_.Find("rank", 2)), absl::StatusCode::kNotFound);
  EXPECT_EQ(table_.Activate("rank", 0, std::nullopt)->version, 1u);
  EXPECT_EQ(Serving("rank"), 1u);
  EXPECT_TRUE(table_.Has("rank"));
  EXPECT_FALSE(table_.Has("ran"));
}

TEST_F(ModelTableTest, AShareIsEvenAndEndsWithTheNextChangeOfWhatServes) {
  for (const char* hash : {"a", "b", "c"}) Add("rank", hash);
  EXPECT_EQ(Code(table_.Share("rank", 2, 10, std::nullopt)), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(table_.Activate("rank", 1, std::nullopt).ok());
  EXPECT_EQ(Code(table_.Share("none", 2, 10, std::nullopt)), absl::StatusCode::kNotFound);
  EXPECT_EQ(Code(table_.Share("rank", 4, 10, std::nullopt)), absl::StatusCode::kNotFound);
  EXPECT_EQ(Code(table_.Share("rank", 1, 10, std::nullopt)), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Code(table_.Share("rank", 2, -1, std::nullopt)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Code(table_.Share("rank", 2, 10, 77)), absl::StatusCode::kAborted);
  const auto shared = table_.Share("rank", 3, 25, std::nullopt);
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_EQ(shared->version, 1u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Serving("rank"), i % 4 == 3 ? 3u : 1u);
  EXPECT_EQ(table_.Store("rank")->share_version, 3u);
  EXPECT_EQ(table_.Store("rank")->share_percent, 25);
  // The active version is activated: nothing changes, but the share ends.
  EXPECT_GT(table_.Activate("rank", 1, std::nullopt)->revision, shared->revision);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Serving("rank"), 1u);
  ASSERT_TRUE(table_.Share("rank", 3, 100, std::nullopt).ok());
  EXPECT_EQ(Serving("rank"), 3u);
  ASSERT_TRUE(table_.Remove("rank", 3, std::nullopt).ok());
  EXPECT_EQ(Serving("rank"), 1u);
  EXPECT_EQ(table_.Describe("rank")->share_version, 0u);
}

TEST_F(ModelTableTest, ActivateAndRollbackExchangeTwoVersions) {
  for (const char* hash : {"a", "b", "c"}) Add("rank", hash);
  ASSERT_TRUE(table_.Activate("rank", 1, std::nullopt).ok());
  EXPECT_EQ(Code(table_.Rollback("rank", std::nullopt)), absl::StatusCode::kFailedPrecondition);
  auto change = table_.Activate("rank", 0, std::nullopt);  // The one that was loaded last.
  ASSERT_TRUE(change.ok());
  EXPECT_EQ(change->version, 3u);
  EXPECT_EQ(change->previous_version, 1u);
  EXPECT_EQ(States("rank"),
            (std::vector<Pair>{{1, State::kPrevious}, {2, State::kLoaded}, {3, State::kActive}}));
  change = table_.Rollback("rank", std::nullopt);
  ASSERT_TRUE(change.ok());
  EXPECT_EQ(change->version, 1u);
  EXPECT_EQ(States("rank"),
            (std::vector<Pair>{{1, State::kActive}, {2, State::kLoaded}, {3, State::kPrevious}}));
  ASSERT_TRUE(table_.Activate("rank", 2, std::nullopt).ok());
  EXPECT_EQ(States("rank"),
            (std::vector<Pair>{{1, State::kPrevious}, {2, State::kActive}, {3, State::kLoaded}}));
  // The active one again changes nothing.
  const uint64_t revision = table_.Describe("rank")->revision;
  EXPECT_EQ(table_.Activate("rank", 2, std::nullopt)->revision, revision);
}

TEST_F(ModelTableTest, AChangeWithAnotherRevisionIsRefused) {
  Add("rank", "a");
  const uint64_t revision = table_.Describe("rank")->revision;
  ASSERT_TRUE(table_.Activate("rank", 1, revision).ok());
  EXPECT_EQ(Code(table_.Activate("rank", 1, revision)), absl::StatusCode::kAborted);
  EXPECT_EQ(Code(table_.Rollback("rank", revision)), absl::StatusCode::kAborted);
  EXPECT_EQ(Code(table_.Remove("rank", 0, revision)), absl::StatusCode::kAborted);
  EXPECT_EQ(Serving("rank"), 1u);
}

TEST_F(ModelTableTest, EqualContentIsOneVersion) {
  EXPECT_EQ(Add("rank", "a"), 1u);
  EXPECT_EQ(Add("rank", "b"), 2u);
  const auto again = table_.Add("rank", std::make_shared<FakeModel>("a"), 9, "bob");
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->already_loaded);
  EXPECT_EQ(again->version, 1u);
  EXPECT_EQ(Add("other", "a"), 1u);
}

TEST_F(ModelTableTest, RemoveOfAVersionAndOfAModel) {
  for (const char* hash : {"a", "b"}) Add("rank", hash);
  ASSERT_TRUE(table_.Activate("rank", 1, std::nullopt).ok());
  ASSERT_TRUE(table_.Activate("rank", 2, std::nullopt).ok());
  EXPECT_EQ(Code(table_.Remove("rank", 2, std::nullopt)), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Code(table_.Remove("rank", 9, std::nullopt)), absl::StatusCode::kNotFound);
  ASSERT_TRUE(table_.Remove("rank", 1, std::nullopt).ok());
  EXPECT_EQ(Code(table_.Rollback("rank", std::nullopt)), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Serving("rank"), 2u);
  ASSERT_TRUE(table_.Remove("rank", 0, std::nullopt).ok());
  EXPECT_FALSE(table_.Has("rank"));
  EXPECT_EQ(Code(table_.Remove("rank", 0, std::nullopt)), absl::StatusCode::kNotFound);
  // Numbers are not used again.
  EXPECT_EQ(Add("rank", "a"), 3u);
}

TEST_F(ModelTableTest, ARequestKeepsTheVersionThatItFound) {
  int destroyed = 0;
  ASSERT_TRUE(table_.Add("rank", std::make_shared<FakeModel>("a", &destroyed), 7, "ann").ok());
  ASSERT_TRUE(table_.Activate("rank", 1, std::nullopt).ok());
  auto found = table_.Find("rank", 0);
  ASSERT_TRUE(found.ok());
  ASSERT_TRUE(table_.Remove("rank", 0, std::nullopt).ok());
  EXPECT_EQ(destroyed, 0);
  found->served = nullptr;
  EXPECT_EQ(destroyed, 1);
}

TEST_F(ModelTableTest, ModelsAndVersionsHaveLimits) {
  for (size_t i = 0; i < ModelTable::kMaxVersions; ++i) Add("rank", std::to_string(i));
  EXPECT_EQ(Code(table_.Add("rank", std::make_shared<FakeModel>("x"), 7, "ann")),
            absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(table_.Remove("rank", 1, std::nullopt).ok());
  Add("rank", "x");
  for (size_t i = 1; i < ModelTable::kMaxModels; ++i) Add("m" + std::to_string(i), "a");
  EXPECT_EQ(Code(table_.Add("one.more", std::make_shared<FakeModel>("x"), 7, "ann")),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(table_.List().size(), ModelTable::kMaxModels);
}

TEST_F(ModelTableTest, WhatIsStoredRestoresTheTable) {
  for (const char* hash : {"a", "b", "c"}) Add("rank", hash);
  ASSERT_TRUE(table_.Activate("rank", 1, std::nullopt).ok());
  ASSERT_TRUE(table_.Activate("rank", 3, std::nullopt).ok());
  ASSERT_TRUE(table_.Remove("rank", 2, std::nullopt).ok());
  EXPECT_FALSE(table_.Store("other").has_value());
  const std::optional<StoredModel> stored = table_.Store("rank");
  ASSERT_TRUE(stored.has_value());
  ModelTable restored;
  std::vector<std::shared_ptr<const ServedModel>> versions;
  for (const StoredModel::Version& version : stored->versions) {
    versions.push_back(std::make_shared<FakeModel>(version.content_hash));
  }
  restored.Restore(*stored, std::move(versions));
  const ModelTable::Model before = table_.Describe("rank").value();
  const ModelTable::Model after = restored.Describe("rank").value();
  EXPECT_EQ(after.revision, before.revision);
  ASSERT_EQ(after.versions.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(after.versions[i].version, before.versions[i].version);
    EXPECT_EQ(after.versions[i].state, before.versions[i].state);
    EXPECT_EQ(after.versions[i].loaded_by, "ann");
    EXPECT_EQ(after.versions[i].loaded_ms, 7);
  }
  EXPECT_EQ(restored.Find("rank", 0)->version, 3u);
  EXPECT_EQ(restored.Rollback("rank", std::nullopt)->version, 1u);
  // Numbers and revisions continue.
  const auto added = restored.Add("rank", std::make_shared<FakeModel>("d"), 7, "ann");
  ASSERT_TRUE(added.ok());
  EXPECT_EQ(added->version, 4u);
  EXPECT_GT(added->revision, before.revision);
}

TEST_F(ModelTableTest, NothingIsAddedAfterTheEnd) {
  Add("rank", "a");
  table_.Close();
  EXPECT_TRUE(table_.List().empty());
  EXPECT_EQ(Code(table_.Add("rank", std::make_shared<FakeModel>("x"), 7, "ann")),
            absl::StatusCode::kUnavailable);
}

TEST_F(ModelTableTest, RequestsAlwaysFindAVersionWhileVersionsChange) {
  for (const char* hash : {"a", "b"}) Add("rank", hash);
  ASSERT_TRUE(table_.Activate("rank", 1, std::nullopt).ok());
  ASSERT_TRUE(table_.Activate("rank", 2, std::nullopt).ok());
  std::atomic<bool> ended{false};
  std::thread changes([&] {
    for (int i = 0; i < 20'000; ++i) EXPECT_TRUE(table_.Rollback("rank", std::nullopt).ok());
    ended = true;
  });
  uint64_t served[3] = {};
  while (!ended) {
    const auto found = table_.Find("rank", 0);
    ASSERT_TRUE(found.ok());
    ++served[found->version];
  }
  changes.join();
  EXPECT_EQ(served[0], 0u);
}

}  // namespace
}  // namespace resident
