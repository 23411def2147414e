#include "server/auth/method_roles.h"

#include <algorithm>
#include <iterator>

#include "runtime/base/limits.h"

namespace resident {
namespace {

struct Entry {
  std::string_view method;
  MethodRule rule;
};

constexpr RoleSet kSubmit = Role::kSubmit;
constexpr RoleSet kInstall = Role::kInstall;
constexpr RoleSet kAdmin = Role::kAdmin;
constexpr RoleSet kSubmitOrAdmin = RoleSet(Role::kSubmit) | Role::kAdmin;
// Calls that only read the state: allowed for every identity that has a role.
constexpr RoleSet kAnyRole = RoleSet::All();

// Objects of a message (MethodRule::max_objects). A graph of kMaxNodes nodes has about ten for each
// node; one that runs, or that is drawn, has fewer nodes. A message of batches has at most
// kMaxMessageBatches of them with kMaxArguments arguments.
constexpr uint32_t kFew = 4096;
constexpr uint32_t kInference = kMaxInferenceEntries;
constexpr uint32_t kBatches = 1u << 14;
constexpr uint32_t kDrawnGraph = 1u << 20;
constexpr uint32_t kRunGraph = 1u << 22;
constexpr uint32_t kCheckedGraph = 1u << 24;

constexpr MethodRule Open() { return {.open_to_all = true, .roles = {}, .max_objects = kFew}; }
constexpr MethodRule For(RoleSet roles, uint32_t max_objects = kFew) {
  return {.roles = roles, .max_objects = max_objects};
}
constexpr MethodRule ChargesAnswers(RoleSet roles, uint32_t max_objects = kFew) {
  return {.roles = roles, .max_objects = max_objects, .charges_answers = true};
}

// Sorted by method.
constexpr Entry kTable[] = {
    {"/grpc.channelz.v1.Channelz/GetChannel", For(kAdmin)},
    {"/grpc.channelz.v1.Channelz/GetServer", For(kAdmin)},
    {"/grpc.channelz.v1.Channelz/GetServerSockets", For(kAdmin)},
    {"/grpc.channelz.v1.Channelz/GetServers", For(kAdmin)},
    {"/grpc.channelz.v1.Channelz/GetSocket", For(kAdmin)},
    {"/grpc.channelz.v1.Channelz/GetSubchannel", For(kAdmin)},
    {"/grpc.channelz.v1.Channelz/GetTopChannels", For(kAdmin)},
    {"/grpc.health.v1.Health/Check", Open()},
    {"/grpc.health.v1.Health/Watch", Open()},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", For(kAdmin)},
    {"/inference.GRPCInferenceService/CudaSharedMemoryRegister", For(kSubmit)},
    {"/inference.GRPCInferenceService/CudaSharedMemoryStatus", For(kSubmit)},
    {"/inference.GRPCInferenceService/CudaSharedMemoryUnregister", For(kSubmit)},
    {"/inference.GRPCInferenceService/LogSettings", For(kAdmin)},
    {"/inference.GRPCInferenceService/ModelConfig", For(kAnyRole)},
    {"/inference.GRPCInferenceService/ModelInfer", ChargesAnswers(kSubmit, kInference)},
    {"/inference.GRPCInferenceService/ModelMetadata", For(kAnyRole)},
    {"/inference.GRPCInferenceService/ModelReady", For(kAnyRole)},
    {"/inference.GRPCInferenceService/ModelStatistics", For(kAnyRole)},
    {"/inference.GRPCInferenceService/ModelStreamInfer", ChargesAnswers(kSubmit, kInference)},
    {"/inference.GRPCInferenceService/RepositoryIndex", For(kAnyRole)},
    {"/inference.GRPCInferenceService/RepositoryModelLoad", For(kInstall)},
    {"/inference.GRPCInferenceService/RepositoryModelUnload", For(kAdmin)},
    {"/inference.GRPCInferenceService/ServerLive", Open()},
    {"/inference.GRPCInferenceService/ServerMetadata", For(kAnyRole)},
    {"/inference.GRPCInferenceService/ServerReady", Open()},
    {"/inference.GRPCInferenceService/SystemSharedMemoryRegister", For(kSubmit)},
    {"/inference.GRPCInferenceService/SystemSharedMemoryStatus", For(kSubmit)},
    {"/inference.GRPCInferenceService/SystemSharedMemoryUnregister", For(kSubmit)},
    {"/inference.GRPCInferenceService/TraceSetting", For(kAdmin)},
    {"/resident.v1.Admin/Drain", For(kAdmin)},
    {"/resident.v1.Admin/Park", For(kAdmin)},
    {"/resident.v1.Admin/Resume", For(kAdmin)},
    {"/resident.v1.Admin/Status", For(kAnyRole)},
    {"/resident.v1.Buffers/Allocate", For(kSubmit)},
    {"/resident.v1.Buffers/Download", ChargesAnswers(kSubmit)},
    {"/resident.v1.Buffers/Free", For(kSubmit)},
    {"/resident.v1.Buffers/ImportShared", For(kSubmit)},
    {"/resident.v1.Buffers/List", For(kSubmit)},
    {"/resident.v1.Buffers/LoadFile", For(kSubmit)},
    {"/resident.v1.Buffers/Persist", For(kSubmit)},
    {"/resident.v1.Buffers/Upload", ChargesAnswers(kSubmit)},
    {"/resident.v1.Executor/Run", ChargesAnswers(kSubmit, kBatches)},
    {"/resident.v1.Executor/Submit", ChargesAnswers(kSubmit, kBatches)},
    {"/resident.v1.Graphs/CloseSession", For(kSubmit)},
    {"/resident.v1.Graphs/Describe", For(kAnyRole)},
    {"/resident.v1.Graphs/DescribeSession", For(kSubmit)},
    {"/resident.v1.Graphs/ForkSession", For(kSubmit)},
    {"/resident.v1.Graphs/List", For(kAnyRole)},
    {"/resident.v1.Graphs/ListSessions", For(kSubmit)},
    {"/resident.v1.Graphs/Load", For(kSubmit, kRunGraph)},
    {"/resident.v1.Graphs/OpenSession", For(kSubmit)},
    {"/resident.v1.Graphs/Render", For(kSubmit, kDrawnGraph)},
    {"/resident.v1.Graphs/Run", ChargesAnswers(kSubmit, kRunGraph)},
    {"/resident.v1.Graphs/Unload", For(kSubmitOrAdmin)},
    {"/resident.v1.Graphs/Validate", For(kSubmit, kCheckedGraph)},
    {"/resident.v1.Operators/Activate", For(kInstall)},
    {"/resident.v1.Operators/Audit", For(kAdmin)},
    {"/resident.v1.Operators/Describe", For(kAnyRole)},
    {"/resident.v1.Operators/Install", For(kInstall)},
    {"/resident.v1.Operators/List", For(kAnyRole)},
    {"/resident.v1.Operators/Promote", For(kInstall)},
    {"/resident.v1.Operators/Remove", For(kInstall)},
    {"/resident.v1.Operators/Rollback", For(kInstall)},
    {"/resident.v1.Operators/Watch", For(kAnyRole)},
    {"/resident.v1.Sessions/Open", For(kSubmit)},
};

static_assert(std::is_sorted(std::begin(kTable), std::end(kTable),
                             [](const Entry& a, const Entry& b) { return a.method < b.method; }));

}  // namespace

MethodRule FindMethodRule(std::string_view method) {
  const auto* const found =
      std::lower_bound(std::begin(kTable), std::end(kTable), method,
                       [](const Entry& entry, std::string_view m) { return entry.method < m; });
  if (found == std::end(kTable) || found->method != method) return {};
  return found->rule;
}

std::vector<std::string_view> ListedMethods() {
  std::vector<std::string_view> methods;
  for (const Entry& entry : kTable) methods.push_back(entry.method);
  return methods;
}

}  // namespace resident
