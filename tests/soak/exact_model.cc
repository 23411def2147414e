#include "tests/soak/exact_model.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "tests/graph/graph_maker.h"

namespace resident::soak {
namespace {

using Kind = v1::GraphTensor;
using testing::Arg;
using testing::D;
using testing::F;
using testing::GraphMaker;
using testing::I;
using testing::None;
using testing::S;
using testing::View;

constexpr uint32_t kModulus = 256;
// Odd, so that no two values of x give one result.
constexpr std::array<uint32_t, ExactModel::kVersions> kKeys = {3, 5};
// Logits are multiples of kVocab plus the bias, which is different for each token, so that no two
// of them are equal.
constexpr int kMaxWeight = 3;

}  // namespace

ExactModel::ExactModel(uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int i = 0; i < kVocab * kDim; ++i) {
    table_.push_back(static_cast<float>(random() % kModulus));
    const int weight = static_cast<int>(random() % (2 * kMaxWeight + 1)) - kMaxWeight;
    weights_.push_back(static_cast<float>(weight * kVocab));
  }
  for (int token = 0; token < kVocab; ++token) bias_.push_back(static_cast<float>(token));
}

client::Installation ExactModel::MakeOperator(uint32_t version) {
  client::Installation installation = client::Installation::Source(
      kOperator, "mix.cc",
      {{"mix.cc",
        absl::StrCat("RESIDENT_OPERATOR(soak_mix)(resident::Block& block, "
                     "const resident::Args& args) {\n"
                     "  auto x = args.tensor<const float>(0);\n"
                     "  const float salt = args.scalar<float>(1);\n"
                     "  auto out = args.tensor<float>(2);\n"
                     "  block.for_each(block.share(x.size()), [&](resident::i64 i) {\n"
                     "    const auto value = static_cast<resident::i64>(x[i] * ",
                     kKeys[version - 1], ".0f + salt);\n    out[i] = static_cast<float>(value % ",
                     kModulus, ");\n  });\n}\n")}});
  installation.Signature("x: in f32[*S], salt: scalar f32, out: out f32[*S]")
      .Summary(absl::StrCat("(x * ", kKeys[version - 1], " + salt) modulo ", kModulus));
  return installation;
}

v1::Graph ExactModel::MakeGraph() const {
  GraphMaker g;
  g.graph.set_name("soak");
  // A scalar of each type that the operators take.
  g.Scalar("pos", 0, kContext - 1).Scalar("rows", 1, kContext);
  g.Scalar("position", 0, kContext - 1, v1::DTYPE_F32).Scalar("salt", 0, kSalts, v1::DTYPE_F32);
  g.Weight("soak.table", {kVocab, kDim}).Weight("soak.w", {kVocab, kDim});
  g.Weight("soak.bias", {kVocab}).Weight("soak.ones", {1, kContext});
  g.State("text", {1, 1, kContext + 1, 1}).State("cache", {1, 1, kContext, kDim});
  g.Tensor(Kind::KIND_ACTIVATION, "place", {D(1)}, v1::DTYPE_I32);
  g.Tensor(Kind::KIND_ACTIVATION, "token", {D(1)}, v1::DTYPE_I64);
  g.Tensor(Kind::KIND_ACTIVATION, "next", {D(1)}, v1::DTYPE_I64);
  g.Activation("token_f", {1, 1}).Activation("next_f", {1, 1, 1, 1});
  for (const char* const name : {"e", "row", "sum", "mixed"}) g.Activation(name, {1, kDim});
  g.Activation("logits", {1, kVocab});
  g.Tensor(Kind::KIND_STREAM, "chosen", {D(kContext), D(1)}, v1::DTYPE_I64);
  g.Tensor(Kind::KIND_STREAM, "b", {D(kContext), D(1), D(kDim)});
  g.Tensor(Kind::KIND_STREAM, "at", {D(kContext), D(1)}, v1::DTYPE_I32);
  g.Output("text_after", {1, 1, kContext + 1, 1}).Output("cache_after", {1, 1, kContext, kDim});

  g.Call("fill", {"place", S("position")});
  g.Call("embedding", {"place", View("text", {kContext + 1, 1}), "token_f"});
  g.Call("copy", {View("token_f", {1}), "token"});
  g.Call("embedding", {"token", "soak.table", "e"});
  g.Call(kOperator, {"e", S("salt"), "row"});
  g.Call("kv_append", {View("row", {1, 1, 1, kDim}), "cache", S("pos")});
  g.Call("gemm",
         {View("soak.ones", {D(1), D("rows")}), View("cache", {D("rows"), D(kDim)}), "sum"});
  g.Call(kOperator, {"sum", S("salt"), "mixed"});
  g.Call("gemv", {"mixed", "soak.w", "soak.bias", "logits"});
  g.Call("sample", {"logits", "next", F(0), I(0), I(0)});
  g.Call("copy", {"next", View("next_f", {1})});
  g.Call("kv_append", {"next_f", "text", S("pos", 1, 1)});
  g.Call("copy", {"next", "chosen"}).Call("copy", {"mixed", "b"}).Call("copy", {"place", "at"});
  g.Call("copy", {"text", "text_after"}).Call("copy", {"cache", "cache_after"});
  v1::GraphLoop& loop = *g.graph.mutable_loop();
  loop.set_max_steps(kContext);
  for (const char* const scalar : {"pos", "rows", "position"}) {
    v1::GraphUpdate& update = *loop.add_updates();
    update.set_scalar(scalar);
    update.set_addend(1);
  }
  return g.graph;
}

std::vector<ExactModel::Weight> ExactModel::Weights() const {
  return {{"soak.table", table_},
          {"soak.w", weights_},
          {"soak.bias", bias_},
          {"soak.ones", std::vector<float>(kContext, 1)}};
}

ExactModel::Row ExactModel::Mix(uint32_t version, uint32_t salt, const Row& x) {
  Row mixed;
  for (int i = 0; i < kDim; ++i) {
    const uint64_t value = static_cast<uint64_t>(x[i]) * kKeys[version - 1] + salt;
    mixed[i] = static_cast<float>(value % kModulus);
  }
  return mixed;
}

ExactModel::Step ExactModel::Compute(uint32_t version, uint32_t salt, int token,
                                     const Row& before) const {
  Row e;
  for (int i = 0; i < kDim; ++i) e[i] = table_[token * kDim + i];
  Step step;
  step.row = Mix(version, salt, e);
  Row sum = before;
  for (int i = 0; i < kDim; ++i) sum[i] += step.row[i];
  step.mixed = Mix(version, salt, sum);
  float largest = 0;
  for (int v = 0; v < kVocab; ++v) {
    float logit = bias_[v];
    for (int i = 0; i < kDim; ++i) logit += weights_[v * kDim + i] * step.mixed[i];
    if (v == 0 || logit > largest) {
      largest = logit;
      step.next = v;
    }
  }
  return step;
}

}  // namespace resident::soak
