// Compiles pairs of public members of the SDK, in both builds, with the real NVRTC: an assumption
// in one member must not make the compiler drop the code of the other. NvrtcCompile refuses a
// function whose code was dropped (CheckPtxFunctions). Members that read the state of the block are
// paired with each other, the others with those that return memory of the block or read its chunk.
// A member that is in neither list fails the test.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "runtime/compile/cuda_tools.h"
#include "runtime/compile/unit.h"

namespace resident {
namespace {

struct Use {
  const char* member;
  const char* statement;  // Its effect is visible outside of the function.
};

// A member whose result is used before and after another member.
struct Around {
  const char* member;
  const char* begin;
  const char* end;
};

constexpr Around kAround[] = {
    {"memory",
     "auto* a = block.memory<float>(0, 8); auto* b = block.memory<float>(512, 8);"
     "a[block.thread()] = sink[0]; block.barrier();",
     "b[block.thread()] = a[1]; block.barrier(); sink[7] = b[2];"},
    {"scratch",
     "auto* a = block.scratch<float>(0, 8); auto* b = block.scratch<float>(512, 8);"
     "a[block.thread()] = sink[0]; block.barrier();",
     "b[block.thread()] = a[1]; block.barrier(); sink[9] = b[2];"},
    {"share", "const resident::Range r = block.share(1000, 4); sink[4] = r.begin;",
     "sink[8] = r.end;"},
};

// Each is paired with each.
constexpr Use kUses[] = {
    {"thread", "sink[0] = block.thread();"},
    {"threads", "sink[1] = block.threads();"},
    {"chunk", "sink[2] = static_cast<float>(block.chunk());"},
    {"chunk_count", "sink[3] = static_cast<float>(block.chunk_count());"},
    {"share", "const resident::Range r = block.share(1000, 4); sink[4] = r.begin + r.end;"},
    {"for_each", "block.for_each({0, 100}, [&](resident::i64 i) { sink[i] = 1; });"},
    {"barrier", "block.barrier();"},
    {"reduce_sum", "sink[5] = block.reduce_sum(sink[0]);"},
    {"reduce_max", "sink[6] = block.reduce_max(sink[0]);"},
    {"memory", "float* m = block.memory<float>(0, 8); m[block.thread()] = 1; sink[7] = m[1];"},
    {"memory at an offset", "float* m = block.memory<float>(64, 8); m[0] = 1; sink[8] = m[1];"},
    {"scratch", "float* m = block.scratch<float>(0, 8); m[block.thread()] = 1; sink[9] = m[1];"},
    {"task_memory",
     "float* m = block.task_memory<float>(64, 8); if (m != nullptr) m[0] = sink[27] = m[1];"},
    {"arrive", "if (block.arrive()) sink[28] = 1;"},
    {"fail", "if (sink[0] < 0) block.fail(resident::CompletionStatus::kInvalidArgument, 3);"},
    {"set_result", "if (block.thread() == 0) block.set_result(sink[0]);"},
    {"compact", "sink[10] = args.compact();"},
    {"tensor", "sink[11] = args.tensor<const float>(1)[0];"},
    {"scalar", "sink[12] = args.scalar<float>(2);"},
    {"described", "sink[13] = static_cast<float>(args.described(1).shape[0]);"},
};

// Each is paired with each of kAround.
constexpr Use kMoreUses[] = {
    {"await_inputs", "if (!block.await_inputs()) return; sink[14] = 1;"},
    {"await_arrivals", "block.await_arrivals(3); sink[29] = 1;"},
    {"reduce", "sink[15] = block.reduce(sink[0], [](float a, float b) { return a * b; });"},
    {"data, read", "sink[16] = args.tensor<const float>(1).data()[1];"},
    {"data, written", "args.tensor<float>(0).data()[1] = 1;"},
    {"size", "sink[17] = static_cast<float>(args.tensor<const float>(1).size());"},
    {"rank", "sink[18] = static_cast<float>(args.tensor<const float>(1).rank());"},
    {"shape", "sink[19] = static_cast<float>(args.tensor<const float>(1).shape(0));"},
    {"stride", "sink[20] = static_cast<float>(args.tensor<const float>(1).stride(0));"},
    {"dtype", "sink[21] = static_cast<float>(args.tensor<const float>(1).dtype());"},
    {"dense", "sink[22] = args.tensor<const float>(1).dense();"},
    {"as", "sink[23] = args.tensor<const resident::Any>(1).as<const float>()[0];"},
    {"at, read", "sink[24] = args.tensor<const float>(1).at(2, 3);"},
    {"at, written", "args.tensor<float>(0).at(2, 3) = 1;"},
    {"[], written", "args.tensor<float>(0)[1] = 1;"},
    {"atomic_add of float", "resident::atomic_add(&args.tensor<float>(0)[1], 1.0f);"},
    {"atomic_add of i32", "resident::atomic_add(&args.tensor<resident::i32>(0)[1], 1);"},
    {"atomic_max", "resident::atomic_max(&args.tensor<float>(0)[1], 1.0f);"},
    {"atomic_min", "resident::atomic_min(&args.tensor<resident::i64>(0)[1], resident::i64{1});"},
    {"atomic_update",
     "sink[25] = resident::atomic_update(&args.tensor<float>(0)[1],"
     " [](float before) { return 2 * before; });"},
    {"load", "sink[26] = resident::load<float>(args.tensor<const resident::Any>(1), 2);"},
    {"store", "resident::store(args.tensor<resident::Any>(0), 2, 1.5f);"},
};

// One function for each of the bodies.
std::string Source(const std::vector<std::string>& bodies) {
  std::string source = "#include \"resident/operator.h\"\n";
  for (size_t i = 0; i < bodies.size(); ++i) {
    // The address of the results is not an argument, because reading an argument first hid the
    // defect.
    absl::StrAppend(&source, "RESIDENT_OPERATOR(pair_", i,
                    ")(resident::Block& block, const resident::Args& args) {\n"
                    "  float* const sink = reinterpret_cast<float*>(0x10000);\n",
                    bodies[i], "}\n");
  }
  return source;
}

absl::Status Compile(const std::vector<std::string>& bodies, bool checked) {
  NvrtcSource source;
  source.main_name = "pair.cc";
  source.main_text = Source(bodies);
  source.headers = SdkHeaders();
  source.options = {"-std=c++20", "-rdc=true", "-arch=sm_90", "-default-device"};
  if (checked) source.options.push_back("-DRESIDENT_CHECKED=1");
  std::string log;
  const absl::Status status = NvrtcCompile(source, &log).status();
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat(status.message(), log));
}

// Expects that each body compiles in both builds. For the ordinary one, the bodies are functions of
// one source: most of the time of a compilation goes to the headers, and the code of each function
// is the same as by itself, because everything is inlined. The checked build calls functions, into
// which the compiler propagates the arguments of a single caller: there each body is compiled
// alone.
void ExpectToCompile(const std::vector<std::string>& bodies) {
  const absl::Status together = Compile(bodies, false);
  EXPECT_TRUE(together.ok()) << together << "\n" << Source(bodies);
  for (const std::string& body : bodies) {
    const absl::Status status = Compile({body}, true);
    EXPECT_TRUE(status.ok()) << "checked: " << status << "\n" << body;
  }
}

// The names of the public functions of a class of the SDK, except its constructors, by the form of
// the project's sources: "  RESIDENT_HOST_DEVICE T name(" in the public part of the class.
std::set<std::string> PublicMembers(const std::string& header, const std::string& name) {
  std::set<std::string> members;
  bool in_class = false;
  bool is_public = false;
  for (absl::string_view line : absl::StrSplit(SdkHeaders().at(header), '\n')) {
    if (line == absl::StrCat("class ", name, " {")) in_class = true;
    if (!in_class) continue;
    if (line == "};") break;
    if (absl::EndsWith(line, ":") && absl::StartsWith(line, " p")) is_public = line == " public:";
    if (!is_public || !absl::ConsumePrefix(&line, "  RESIDENT_HOST_DEVICE ")) continue;
    absl::string_view member = line.substr(0, line.find('('));
    member.remove_prefix(member.find_last_of(" *&") + 1);
    (void)absl::ConsumePrefix(&member, "operator");
    if (member != name) members.emplace(member);
  }
  return members;
}

TEST(SdkPairsTest, EveryPublicMemberIsListed) {
  std::set<std::string> listed;
  const auto list = [&](absl::string_view member) {
    // "memory at an offset" and "data, read" are uses of memory and data.
    listed.emplace(member.substr(0, member.find_first_of(" ,")));
  };
  for (const Use& use : kUses) list(use.member);
  for (const Use& use : kMoreUses) list(use.member);
  const struct {
    const char* header;
    const char* name;
    size_t min_members;
  } kClasses[] = {{"kernels/sdk/block.h", "Block", 18},
                  {"kernels/sdk/block.h", "Args", 4},
                  {"kernels/sdk/tensor.h", "Tensor", 10}};
  for (const auto& [header, name, min_members] : kClasses) {
    const std::set<std::string> members = PublicMembers(header, name);
    EXPECT_GE(members.size(), min_members) << name;
    for (const std::string& member : members) {
      EXPECT_TRUE(listed.contains(member)) << name << "::" << member;
    }
  }
}

TEST(SdkPairsTest, NoMemberMakesTheCompilerDropAnother) {
  for (const Use& first : kUses) {
    std::vector<std::string> bodies;
    for (const Use& second : kUses) {
      bodies.push_back(absl::StrCat("  {", first.statement, "}\n  {", second.statement, "}\n"));
    }
    ExpectToCompile(bodies);
  }
}

TEST(SdkPairsTest, NoMemberOfTensorsOrElementsMakesTheCompilerDropAnother) {
  for (const Around& around : kAround) {
    std::vector<std::string> bodies;
    for (const Use& use : kMoreUses) {
      const std::string statement = absl::StrCat("  {", use.statement, "}\n");
      bodies.push_back(absl::StrCat(statement, around.begin, around.end));
      bodies.push_back(absl::StrCat(around.begin, statement, around.end));
    }
    ExpectToCompile(bodies);
  }
}

// The shapes in which the defect was found.
TEST(SdkPairsTest, BlockMemoryBesideOtherMembers) {
  ExpectToCompile(
      {"auto* a = block.memory<float>(0); auto* b = block.memory<float>(512);"
       "auto x = args.tensor<float>(0); a[block.thread()] = x[0]; block.barrier();"
       "b[block.thread()] = a[1]; block.barrier(); x[block.thread()] = b[2];",
       "auto x = args.tensor<float>(0); auto* a = block.memory<float>(0);"
       "auto r = block.share(x.size()); a[block.thread()] = x[r.begin]; block.barrier();"
       "x[r.begin] = a[1];",
       "auto x = args.tensor<float>(0); auto* a = block.memory<float>(0);"
       "auto* b = block.scratch<float>(); a[block.thread()] = x[0]; b[0] = a[0]; x[1] = "
       "b[2];"});
}

TEST(SdkPairsTest, CodeThatIsDroppedIsRefused) {
  const absl::Status status = Compile({"sink[0] = 1; __builtin_unreachable();"}, false);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find("dropped code"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace resident
