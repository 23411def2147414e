#include "server/auth/method_roles.h"

#include <algorithm>
#include <iterator>

namespace resident {
namespace {

struct Entry {
  std::string_view method;
  MethodRule rule;
};

constexpr MethodRule kOpen{.open_to_all = true, .roles = {}};
constexpr MethodRule kSubmit{.roles = Role::kSubmit};
constexpr MethodRule kInstall{.roles = Role::kInstall};
constexpr MethodRule kSubmitOrAdmin{.roles = RoleSet(Role::kSubmit) | Role::kAdmin};
constexpr MethodRule kAdmin{.roles = Role::kAdmin};
// Calls that only read the state: allowed for every identity that has a role.
constexpr MethodRule kAnyRole{.roles = RoleSet::All()};

// Sorted by method.
constexpr Entry kTable[] = {
    {"/grpc.channelz.v1.Channelz/GetChannel", kAdmin},
    {"/grpc.channelz.v1.Channelz/GetServer", kAdmin},
    {"/grpc.channelz.v1.Channelz/GetServerSockets", kAdmin},
    {"/grpc.channelz.v1.Channelz/GetServers", kAdmin},
    {"/grpc.channelz.v1.Channelz/GetSocket", kAdmin},
    {"/grpc.channelz.v1.Channelz/GetSubchannel", kAdmin},
    {"/grpc.channelz.v1.Channelz/GetTopChannels", kAdmin},
    {"/grpc.health.v1.Health/Check", kOpen},
    {"/grpc.health.v1.Health/Watch", kOpen},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", kAdmin},
    {"/inference.GRPCInferenceService/CudaSharedMemoryRegister", kSubmit},
    {"/inference.GRPCInferenceService/CudaSharedMemoryStatus", kSubmit},
    {"/inference.GRPCInferenceService/CudaSharedMemoryUnregister", kSubmit},
    {"/inference.GRPCInferenceService/LogSettings", kAdmin},
    {"/inference.GRPCInferenceService/ModelConfig", kAnyRole},
    {"/inference.GRPCInferenceService/ModelInfer", kSubmit},
    {"/inference.GRPCInferenceService/ModelMetadata", kAnyRole},
    {"/inference.GRPCInferenceService/ModelReady", kAnyRole},
    {"/inference.GRPCInferenceService/ModelStatistics", kAnyRole},
    {"/inference.GRPCInferenceService/ModelStreamInfer", kSubmit},
    {"/inference.GRPCInferenceService/RepositoryIndex", kAnyRole},
    {"/inference.GRPCInferenceService/RepositoryModelLoad", kInstall},
    {"/inference.GRPCInferenceService/RepositoryModelUnload", kAdmin},
    {"/inference.GRPCInferenceService/ServerLive", kOpen},
    {"/inference.GRPCInferenceService/ServerMetadata", kAnyRole},
    {"/inference.GRPCInferenceService/ServerReady", kOpen},
    {"/inference.GRPCInferenceService/SystemSharedMemoryRegister", kSubmit},
    {"/inference.GRPCInferenceService/SystemSharedMemoryStatus", kSubmit},
    {"/inference.GRPCInferenceService/SystemSharedMemoryUnregister", kSubmit},
    {"/inference.GRPCInferenceService/TraceSetting", kAdmin},
    {"/resident.v1.Admin/Drain", kAdmin},
    {"/resident.v1.Admin/Park", kAdmin},
    {"/resident.v1.Admin/Resume", kAdmin},
    {"/resident.v1.Admin/Status", kAnyRole},
    {"/resident.v1.Buffers/Allocate", kSubmit},
    {"/resident.v1.Buffers/Download", kSubmit},
    {"/resident.v1.Buffers/Free", kSubmit},
    {"/resident.v1.Buffers/ImportShared", kSubmit},
    {"/resident.v1.Buffers/List", kSubmit},
    {"/resident.v1.Buffers/LoadFile", kSubmit},
    {"/resident.v1.Buffers/Persist", kSubmit},
    {"/resident.v1.Buffers/Upload", kSubmit},
    {"/resident.v1.Executor/Run", kSubmit},
    {"/resident.v1.Executor/Submit", kSubmit},
    {"/resident.v1.Graphs/CloseSession", kSubmit},
    {"/resident.v1.Graphs/Describe", kAnyRole},
    {"/resident.v1.Graphs/DescribeSession", kSubmit},
    {"/resident.v1.Graphs/ForkSession", kSubmit},
    {"/resident.v1.Graphs/List", kAnyRole},
    {"/resident.v1.Graphs/ListSessions", kSubmit},
    {"/resident.v1.Graphs/Load", kSubmit},
    {"/resident.v1.Graphs/OpenSession", kSubmit},
    {"/resident.v1.Graphs/Render", kSubmit},
    {"/resident.v1.Graphs/Run", kSubmit},
    {"/resident.v1.Graphs/Unload", kSubmitOrAdmin},
    {"/resident.v1.Graphs/Validate", kSubmit},
    {"/resident.v1.Operators/Activate", kInstall},
    {"/resident.v1.Operators/Audit", kAdmin},
    {"/resident.v1.Operators/Describe", kAnyRole},
    {"/resident.v1.Operators/Install", kInstall},
    {"/resident.v1.Operators/List", kAnyRole},
    {"/resident.v1.Operators/Promote", kInstall},
    {"/resident.v1.Operators/Remove", kInstall},
    {"/resident.v1.Operators/Rollback", kInstall},
    {"/resident.v1.Operators/Watch", kAnyRole},
    {"/resident.v1.Sessions/Open", kSubmit},
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
