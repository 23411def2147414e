#include "server/auth/method_roles.h"

#include <span>

#include "runtime/base/limits.h"
// RESIDENT_METHODS(X): X("package.Service", "Method") for each method of the protos.
#include "server/auth/proto_methods.h"

namespace resident {
namespace {

constexpr RoleSet kOpen;  // No role, and no credential.
constexpr RoleSet kSubmit = Role::kSubmit;
constexpr RoleSet kInstall = Role::kInstall;
constexpr RoleSet kAdmin = Role::kAdmin;
constexpr RoleSet kInstallOrAdmin = RoleSet(Role::kInstall) | Role::kAdmin;
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

using enum Unfinished;
using enum Unread;
using enum Places;
using enum Quota;
using enum Ends;

struct Method {
  std::string_view name;
  RoleSet roles;
  uint32_t max_objects;
  Unfinished unfinished;
  Unread unread;
  Places places;
  Quota quota;
  Ends deadline;
  Ends cancel;
};

// One line for each method: its name, the roles, and the rest in the order of MethodRule.
constexpr Method kChannelz[] = {
    {"GetChannel", kAdmin, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"GetServer", kAdmin, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"GetServerSockets", kAdmin, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"GetServers", kAdmin, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"GetSocket", kAdmin, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"GetSubchannel", kAdmin, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"GetTopChannels", kAdmin, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
};
constexpr Method kHealth[] = {
    {"Check", kOpen, kFew, kTimed, kTiny, kNone, kNoQuota, kSoon, kSoon},
    {"Watch", kOpen, kFew, kTimed, kTiny, kHealthWatches, kNoQuota, kStops, kStops},
};
constexpr Method kReflection[] = {
    {"ServerReflectionInfo", kAdmin, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
};
constexpr Method kInferenceProtocol[] = {
    {"CudaSharedMemoryRegister", kSubmit, kFew, kHeld, kTiny, kShared, kNoQuota, kEngine, kEngine},
    {"CudaSharedMemoryStatus", kSubmit, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"CudaSharedMemoryUnregister", kSubmit, kFew, kHeld, kTiny, kNone, kNoQuota, kStops, kStops},
    {"LogSettings", kAdmin, kFew, kHeld, kTiny, kNone, kNoQuota, kSoon, kSoon},
    {"ModelConfig", kAnyRole, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"ModelInfer", kSubmit, kInference, kHeld, kHandler, kConnection, kTasks, kStops, kStops},
    {"ModelMetadata", kAnyRole, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"ModelReady", kAnyRole, kFew, kHeld, kTiny, kNone, kNoQuota, kSoon, kSoon},
    {"ModelStatistics", kAnyRole, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"ModelStreamInfer", kSubmit, kInference, kHeld, kHandler, kConnection, kTasks, kStops, kStops},
    {"RepositoryIndex", kAnyRole, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"RepositoryModelLoad", kInstall, kFew, kHeld, kTiny, kInstalls, kInstallQuota, kStops, kStops},
    {"RepositoryModelUnload", kAdmin, kFew, kHeld, kTiny, kNone, kNoQuota, kStops, kStops},
    {"ServerLive", kOpen, kFew, kTimed, kTiny, kNone, kNoQuota, kSoon, kSoon},
    {"ServerMetadata", kAnyRole, kFew, kHeld, kTiny, kNone, kNoQuota, kSoon, kSoon},
    {"ServerReady", kOpen, kFew, kTimed, kTiny, kNone, kNoQuota, kSoon, kSoon},
    {"SystemSharedMemoryRegister", kSubmit, kFew, kHeld, kTiny, kShared, kNoQuota, kEngine,
     kEngine},
    {"SystemSharedMemoryStatus", kSubmit, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"SystemSharedMemoryUnregister", kSubmit, kFew, kHeld, kTiny, kNone, kNoQuota, kStops, kStops},
    {"TraceSetting", kAdmin, kFew, kHeld, kTiny, kNone, kNoQuota, kSoon, kSoon},
};
constexpr Method kAdminService[] = {
    {"Drain", kAdmin, kFew, kHeld, kTiny, kNone, kNoQuota, kStops, kStops},
    {"Park", kAdmin, kFew, kHeld, kTiny, kNone, kNoQuota, kStops, kStops},
    {"Resume", kAdmin, kFew, kHeld, kTiny, kNone, kNoQuota, kStops, kStops},
    {"Status", kAnyRole, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
};
constexpr Method kBuffers[] = {
    {"Allocate", kSubmit, kFew, kHeld, kTiny, kSession, kBytes, kSoon, kSoon},
    {"Download", kSubmit, kFew, kHeld, kHandler, kSession, kNoQuota, kStops, kStops},
    {"Free", kSubmit, kFew, kHeld, kTiny, kSession, kNoQuota, kSoon, kSoon},
    {"ImportCuda", kSubmit, kFew, kHeld, kTiny, kShared, kBytes, kEngine, kEngine},
    {"ImportShared", kSubmit, kFew, kHeld, kTiny, kShared, kBytes, kEngine, kEngine},
    {"List", kSubmit, kFew, kHeld, kCharged, kConnection, kNoQuota, kSoon, kSoon},
    {"LoadFile", kSubmit, kFew, kHeld, kCharged, kLoads, kBytes, kStops, kStops},
    {"Persist", kSubmit, kFew, kHeld, kTiny, kSession, kNoQuota, kEngine, kEngine},
    {"Upload", kSubmit, kFew, kHeld, kTiny, kSession, kNoQuota, kStops, kStops},
};
constexpr Method kExecutor[] = {
    {"Run", kSubmit, kBatches, kHeld, kHandler, kConnection, kTasks, kStops, kStops},
    {"Submit", kSubmit, kBatches, kHeld, kHandler, kConnection, kTasks, kStops, kStops},
};
constexpr Method kGraphs[] = {
    {"CloseSession", kSubmit, kFew, kHeld, kTiny, kSession, kNoQuota, kSoon, kSoon},
    {"Describe", kAnyRole, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"DescribeSession", kSubmit, kFew, kHeld, kCharged, kSession, kNoQuota, kSoon, kSoon},
    {"ForkSession", kSubmit, kFew, kHeld, kCharged, kGraphSessions, kBoth, kStops, kEngine},
    {"List", kAnyRole, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"ListSessions", kSubmit, kFew, kHeld, kCharged, kSession, kNoQuota, kSoon, kSoon},
    {"Load", kSubmit, kRunGraph, kHeld, kCharged, kChecks, kNoQuota, kStops, kStops},
    {"OpenSession", kSubmit, kFew, kHeld, kCharged, kGraphSessions, kBoth, kStops, kEngine},
    {"Render", kSubmit, kDrawnGraph, kHeld, kCharged, kChecks, kNoQuota, kStops, kStops},
    {"Run", kSubmit, kRunGraph, kHeld, kHandler, kGraphRuns, kBoth, kStops, kStops},
    {"Unload", kSubmitOrAdmin, kFew, kHeld, kTiny, kNone, kNoQuota, kSoon, kSoon},
    {"Validate", kSubmit, kCheckedGraph, kHeld, kCharged, kChecks, kNoQuota, kStops, kStops},
};
constexpr Method kLanesService[] = {
    {"Bind", kSubmit, kFew, kHeld, kCharged, kSession, kNoQuota, kSoon, kSoon},
    {"Open", kSubmit, kFew, kHeld, kTiny, kLanes, kTasks, kStops, kStops},
    {"Prepare", kSubmit, kFew, kHeld, kTiny, kSession, kNoQuota, kSoon, kSoon},
    {"Release", kSubmit, kFew, kHeld, kTiny, kSession, kNoQuota, kSoon, kSoon},
};
constexpr Method kModels[] = {
    {"Activate", kInstall, kFew, kHeld, kTiny, kNone, kNoQuota, kSoon, kSoon},
    {"List", kAnyRole, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"Load", kInstall, kRunGraph, kUpload, kCharged, kInstalls, kInstallQuota, kStops, kStops},
    {"Remove", kInstall, kFew, kHeld, kTiny, kNone, kNoQuota, kSoon, kSoon},
    {"Rollback", kInstall, kFew, kHeld, kTiny, kNone, kNoQuota, kSoon, kSoon},
    {"Share", kInstall, kFew, kHeld, kTiny, kNone, kNoQuota, kSoon, kSoon},
};
constexpr Method kOperators[] = {
    {"Activate", kInstallRoles, kFew, kHeld, kTiny, kNone, kNoQuota, kSoon, kSoon},
    {"Audit", kAdmin, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"Claim", kInstall, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"Describe", kAnyRole, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"Install", kInstallRoles, kFew, kUpload, kCharged, kInstalls, kInstallQuota, kStops, kStops},
    {"List", kAnyRole, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"Promote", kInstallRoles, kFew, kHeld, kTiny, kNone, kNoQuota, kSoon, kSoon},
    {"Release", kInstall, kFew, kHeld, kTiny, kNone, kNoQuota, kSoon, kSoon},
    {"Remove", kInstallRoles, kFew, kHeld, kTiny, kNone, kNoQuota, kStops, kStops},
    {"Rollback", kInstallRoles, kFew, kHeld, kTiny, kNone, kNoQuota, kSoon, kSoon},
    {"Summary", kInstallOrAdmin, kFew, kHeld, kCharged, kNone, kNoQuota, kSoon, kSoon},
    {"Watch", kAnyRole, kFew, kHeld, kCharged, kWatches, kWatchQuota, kStops, kStops},
};
constexpr Method kSessionsService[] = {
    {"Open", kSubmit, kFew, kHeld, kTiny, kSessions, kSessionQuota, kStops, kStops},
};

struct Service {
  std::string_view name;
  std::span<const Method> methods;
};

constexpr Service kServices[] = {
    {"grpc.channelz.v1.Channelz", kChannelz},
    {"grpc.health.v1.Health", kHealth},
    {"grpc.reflection.v1alpha.ServerReflection", kReflection},
    {"inference.GRPCInferenceService", kInferenceProtocol},
    {"resident.v1.Admin", kAdminService},
    {"resident.v1.Buffers", kBuffers},
    {"resident.v1.Executor", kExecutor},
    {"resident.v1.Graphs", kGraphs},
    {"resident.v1.Lanes", kLanesService},
    {"resident.v1.Models", kModels},
    {"resident.v1.Operators", kOperators},
    {"resident.v1.Sessions", kSessionsService},
};

// Null: not in the table.
constexpr const Method* FindMethod(std::string_view service, std::string_view name) {
  for (const Service& candidate : kServices) {
    if (candidate.name != service) continue;
    for (const Method& method : candidate.methods) {
      if (method.name == name) return &method;
    }
  }
  return nullptr;
}

#define RESIDENT_HAS_ROW(service, method)                                            \
  static_assert(FindMethod(service, method) != nullptr,                              \
                "The method " method " of " service                                  \
                " has no row. Fix: add one to server/auth/method_roles.cc, and run " \
                "tools/method_table --write");
RESIDENT_METHODS(RESIDENT_HAS_ROW)
#undef RESIDENT_HAS_ROW

}  // namespace

MethodRule FindMethodRule(std::string_view method) {
  const size_t slash = method.rfind('/');
  if (!method.starts_with('/') || slash == 0) return {};
  const Method* const found = FindMethod(method.substr(1, slash - 1), method.substr(slash + 1));
  if (found == nullptr) return {};
  return {.open_to_all = found->roles.empty(),
          .roles = found->roles,
          .max_objects = found->max_objects,
          .unfinished = found->unfinished,
          .unread = found->unread,
          .places = found->places,
          .quota = found->quota,
          .deadline = found->deadline,
          .cancel = found->cancel};
}

std::vector<std::string> ListedMethods() {
  std::vector<std::string> methods;
  for (const Service& service : kServices) {
    for (const Method& method : service.methods) {
      std::string& full = methods.emplace_back("/");
      full.append(service.name).append("/").append(method.name);
    }
  }
  return methods;
}

}  // namespace resident
