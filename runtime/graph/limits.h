// Limits of graphs. What is over one of them is refused with GRAPH_E106 and never checked in part.
#ifndef RESIDENT_RUNTIME_GRAPH_LIMITS_H_
#define RESIDENT_RUNTIME_GRAPH_LIMITS_H_

#include <chrono>
#include <cstdint>

namespace resident::graph {

inline constexpr uint32_t kFormat = 1;
// Graphs that one daemon is checking or has yet to check, without those of runs, and threads that
// check.
inline constexpr uint32_t kMaxChecks = 16;
inline constexpr uint32_t kCheckThreads = 4;
// Runs of graphs, of all clients.
inline constexpr uint32_t kMaxRuns = 64;
// Nodes of a graph that runs.
inline constexpr uint32_t kMaxRunNodes = 1u << 16;
inline constexpr uint64_t kMaxRunDependencies = 1u << 22;
// How long a quantum takes, about: the part of a run that an engine executes for one slot of the
// ring.
inline constexpr std::chrono::nanoseconds kQuantumTime = std::chrono::milliseconds(5);
// Loaded graphs of all callers: their number (a graph counts once for each holder), and bytes of
// the daemon's memory.
inline constexpr uint32_t kMaxLoadedGraphs = 1024;
inline constexpr uint64_t kMaxLoadedBytes = uint64_t{1} << 30;
// Graph sessions of all clients.
inline constexpr uint32_t kMaxGraphSessions = 1024;
// Bytes of all outputs that a run returns, and of all records of a step.
inline constexpr uint64_t kMaxReturnedBytes = uint64_t{256} << 20;
// Nodes and dependencies of a picture.
inline constexpr uint64_t kMaxDotNodes = 10'000;
inline constexpr uint64_t kMaxDotDependencies = 200'000;
inline constexpr uint64_t kMaxSvgNodes = 2'000;
inline constexpr uint64_t kMaxSvgDependencies = 20'000;
inline constexpr uint32_t kMaxNodes = 1u << 20;
inline constexpr uint32_t kMaxTensors = 1u << 20;
inline constexpr uint32_t kMaxCounters = 1u << 20;
inline constexpr uint32_t kMaxScalars = 64;
inline constexpr uint32_t kMaxNameBytes = 128;
inline constexpr uint32_t kMaxWaits = 8;
inline constexpr uint32_t kMaxBlocks = 65535;
inline constexpr uint32_t kMaxStopValues = 64;
inline constexpr uint64_t kMaxSteps = 1u << 20;
// The memory of all tensors.
inline constexpr int64_t kMaxGraphBytes = int64_t{1} << 60;
// What a check may cost (check_budget.h): a graph without elements, each element, and any graph.
inline constexpr uint64_t kCheckSteps = uint64_t{1} << 24;
inline constexpr uint64_t kCheckStepsPerElement = 512;
inline constexpr uint64_t kMaxCheckSteps = uint64_t{1} << 28;
inline constexpr uint64_t kCheckBytes = uint64_t{48} << 20;
inline constexpr uint64_t kCheckBytesPerElement = 2048;
inline constexpr uint64_t kMaxCheckBytes = uint64_t{2} << 30;
// The part of these steps for the question whether two views overlap. Beyond, they may overlap.
inline constexpr uint64_t kMaxOverlapSteps = uint64_t{1} << 21;
inline constexpr uint64_t kMaxDependencies = uint64_t{1} << 25;
// Explicit order without blocks: groups of nodes with equal waits and equal signal.
inline constexpr uint32_t kMaxClasses = 1u << 15;
// Explicit order with blocks: bytes of the vector clocks.
inline constexpr uint64_t kMaxClockBytes = uint64_t{1} << 29;
// Integers that a double represents exactly.
inline constexpr double kMaxWhole = 9007199254740992.0;

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_LIMITS_H_
