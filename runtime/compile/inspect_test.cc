// Damaged objects: whatever the bytes are, inspection returns a result and does not crash.
#include "runtime/compile/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "runtime/compile/call_graph.h"

namespace resident {
namespace {

std::string ReadObject(const std::string& name) {
  std::ifstream file("runtime/compile/" + name, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void InspectDamaged(const std::string& whole, const std::string& call_graph) {
  std::mt19937 random(11);
  const auto inspect = [&](const std::string& bytes) {
    InspectRequest request;
    request.object = bytes;
    request.architecture = 90;
    request.call_graph = call_graph;
    (void)InspectCubin(request).ok();
    (void)InspectCubin(request, /*linked=*/true).ok();
    (void)InspectSharedObject(request).ok();
  };
  for (int i = 0; i < 400; ++i) inspect(whole.substr(0, random() % whole.size()));
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = whole;
    const int count = 1 + static_cast<int>(random() % 16);
    for (int k = 0; k < count; ++k)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    inspect(damaged);
  }
  // Damage to the header, the section table and the symbols has the largest effect.
  for (size_t at = 0; at < 64; ++at) {
    for (const char value : {'\x00', '\x01', '\x7f', '\xff'}) {
      std::string damaged = whole;
      damaged[at] = value;
      inspect(damaged);
    }
  }
}

TEST(Inspect, DamagedSharedObjectDoesNotCrashTheReader) {
  const std::string whole = ReadObject("libobject_for_test.so");
  ASSERT_FALSE(whole.empty());
  InspectDamaged(whole, "");
}

TEST(Inspect, DamagedCallGraphDoesNotCrashTheReader) {
  const std::string whole = ReadObject("libobject_for_test.so");
  ASSERT_FALSE(whole.empty());
  const auto inspect = [&](const std::string& graph) {
    InspectRequest request;
    request.object = whole;
    request.call_graph = graph;
    return InspectSharedObject(request).status();
  };
  ASSERT_TRUE(inspect("").ok()) << inspect("");
  const std::string entry = "\"resident_op_00112233445566ff\"";
  for (const std::string& graph :
       {std::string("node: {"), std::string("edge:\nnode:\n"), std::string("node: { title: \""),
        "node: { title: " + entry + " label: \"x\\nbytes (\" }", "edge: { sourcename: " + entry}) {
    EXPECT_TRUE(inspect(graph).ok()) << graph << ": " << inspect(graph);
  }
  for (const std::string& graph : {"node: { title: " + entry + " label: \"x\\nmany bytes (\" }",
                                   "node: { title: " + entry + " label: \"9 bytes (dynamic",
                                   "edge: { sourcename: " + entry + " targetname: " + entry,
                                   std::string("edge: { targetname: \"__indirect_call")}) {
    EXPECT_EQ(inspect(graph).code(), absl::StatusCode::kInvalidArgument) << graph;
  }
}

TEST(CallGraph, AddsUpTheDeepestChain) {
  CallGraph graph;
  for (const auto& [name, bytes] :
       {std::pair{"a", 10}, {"b", 20}, {"c", 300}, {"d", 40}, {"other", 5000}}) {
    graph.AddFunction(name, static_cast<uint64_t>(bytes));
  }
  graph.AddCall("a", "b");
  graph.AddCall("a", "c");
  graph.AddCall("b", "d");
  graph.AddCall("c", "d");
  graph.AddCall("c", "memcpy");
  EXPECT_EQ(*graph.ComputeStack("a"), 350u);
}

TEST(CallGraph, LongChainDoesNotOverflowTheReader) {
  CallGraph graph;
  constexpr int kFunctions = 200'000;
  for (int i = 0; i < kFunctions; ++i) {
    graph.AddFunction(std::to_string(i), 1);
    graph.AddCall(std::to_string(i), std::to_string(i + 1));
  }
  EXPECT_EQ(*graph.ComputeStack("0"), static_cast<uint64_t>(kFunctions));
  graph.AddCall(std::to_string(kFunctions), "0");
  EXPECT_FALSE(graph.ComputeStack("0").ok());
}

#if RESIDENT_HAVE_CUDA
TEST(Inspect, DamagedCubinDoesNotCrashTheReader) {
  const std::string whole = ReadObject("object_for_test.cubin");
  ASSERT_FALSE(whole.empty());
  InspectDamaged(whole, "");
}
#endif

}  // namespace
}  // namespace resident
