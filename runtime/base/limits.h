// Limits of requests, of the resources of clients, and of devices, with their defaults. A limit
// that can be set has a flag of the same name (server/flags.cc). An error about a limit contains
// the value, the limit and the flag.
//
// Other limits are defined in these files: compilations, their sources and outputs in
// runtime/compile/compile_job.h; expressions in runtime/compile/expression/expression.h; policy,
// token and certificate files in server/auth; the shared region and kernels in kernels/layout and
// kernels/resident.
#ifndef RESIDENT_RUNTIME_BASE_LIMITS_H_
#define RESIDENT_RUNTIME_BASE_LIMITS_H_

#include <cstdint>

namespace resident {

struct Limits {
  // --max_message_mib: size of a gRPC message.
  uint32_t max_message_mib = 64;
  // --max_batch_tasks: tasks, or program runs, in one batch.
  uint32_t max_batch_tasks = 4u << 20;
  // --max_queued_tasks: tasks of one client on a device in batches that are admitted and not yet
  // answered. The next batch of a stream waits meanwhile; Run is refused.
  uint64_t max_queued_tasks = 8u << 20;
  // --max_stream_batches: batches of one stream that are admitted and not yet
  // answered. If a client does not read its results, the daemon stops reading its stream. All
  // batches of a message that was read are admitted.
  uint32_t max_stream_batches = 64;
  // --max_sessions: open sessions. The same number limits connections with work and without a
  // session. A caller that has some of the sessions, installs or watches must leave an eighth of
  // them to callers that have none (server/core/shared_slots.h).
  uint32_t max_sessions = 1024;
  // --max_buffers: buffers of one session. The same number limits all durable buffers.
  uint32_t max_buffers = 65536;
  // --max_client_memory_mib: device memory of one session's buffers. 0: no limit.
  uint64_t max_client_memory_mib = 0;
  // --max_client_host_mib: the daemon's own memory for one client: its admitted batches, their
  // responses until they are written, and downloads that it has not read (server/admission). The
  // same limit applies separately to its waiting requests, and to the copies of one session's
  // durable buffers. 0: no limit.
  uint64_t max_client_host_mib = 2048;
  // --max_host_mib: the same for all clients; waiting requests may use a quarter of it. A client
  // cannot use more than it leaves free for the others. The same limit applies separately to the
  // copies of all durable buffers. 0: no limit.
  uint64_t max_host_mib = 8192;
  // --max_connections: connections of clients. The process's limit on descriptors may allow
  // fewer: kOwnDescriptors, kMaxSharedBuffers, and kLocalDescriptors if there is a local socket,
  // are reserved for other uses, but at most half of all. A connection above the limit is closed at
  // once.
  uint32_t max_connections = 4096;
  // --max_address_connections: connections from one address, or from one /64 network of IPv6.
  // 0: a quarter of max_connections, but no limit for the loopback interface, where a proxy may
  // represent all clients.
  uint32_t max_address_connections = 0;
  // --max_unadmitted_idle_ms: a connection on which no call was admitted is closed after this
  // time without a call.
  uint32_t max_unadmitted_idle_ms = 20'000;
  // --max_unadmitted_kib: what such a connection may send, in addition to 32 KiB a second. It
  // bounds the memory of gRPC for headers of unknown senders.
  uint32_t max_unadmitted_kib = 1024;
  // --max_connection_streams: concurrent calls on one connection. The client's library delays
  // further calls until one has ended.
  uint32_t max_connection_streams = 1024;
  // --flux_max_cycles: instructions of one FLUX run.
  uint64_t flux_max_cycles = 100'000'000;
  // --max_installs: concurrent installs of all clients.
  uint32_t max_installs = 8;
  // --max_install_header_ms: time from the beginning of an install to its header.
  uint32_t max_install_header_ms = 10'000;
  // --max_install_upload_ms: time from the beginning of an install to its half-close. An install
  // that is not sent counts against max_installs for this time.
  uint32_t max_install_upload_ms = 120'000;
};

// Sizes of one device, fixed when its engine starts.
struct DeviceLimits {
  // --ring_slots: tasks in flight; a power of two, 64 to 65536.
  uint32_t ring_slots = 8192;
  // --staging_mib: pinned host memory for inline data of batches, and for uploads and
  // downloads.
  uint64_t staging_mib = 256;
  // --device_memory_mib: memory for buffers. 0: a quarter of a GPU's free memory,
  // 1 GiB for the CPU.
  uint64_t device_memory_mib = 0;
};

// Fixed limits.
// File descriptors of the front end for other uses than clients' connections: engines, compilers,
// files, the metrics page.
inline constexpr uint32_t kOwnDescriptors = 512;
// For --local_address: concurrent connections, in total and of one user; the time in which a
// client must send its packet; the size of the packet.
inline constexpr uint32_t kMaxLocalConnections = 64;
inline constexpr uint32_t kMaxLocalConnectionsPerUser = 16;
inline constexpr uint32_t kLocalPacketMs = 5'000;
inline constexpr uint32_t kMaxLocalPacketBytes = 128;
// Descriptors that were passed and not yet imported: in total, of one user and of one session. How
// long each is kept.
inline constexpr uint32_t kMaxPassedDescriptors = 256;
inline constexpr uint32_t kMaxPassedDescriptorsPerUser = 64;
inline constexpr uint32_t kMaxPassedDescriptorsPerSession = 16;
inline constexpr uint32_t kPassedDescriptorMs = 30'000;
// File descriptors for all of this: three for each connection (itself, and two from its packet,
// because a second one is received before it is refused), the passed ones, and the socket.
inline constexpr uint32_t kLocalDescriptors = 3 * kMaxLocalConnections + kMaxPassedDescriptors + 1;
// Time from accepting a connection to the end of its handshake: TLS, and the client's first
// HTTP/2 frame.
inline constexpr uint32_t kHandshakeMs = 5'000;
// Names and values of a call's headers, plus 32 bytes for each header.
inline constexpr uint32_t kMaxMetadataBytes = 16 << 10;
inline constexpr uint32_t kMaxClientNameBytes = 64;
inline constexpr uint32_t kMaxBufferNameBytes = 128;
inline constexpr uint32_t kMaxOperatorNameBytes = 64;
// Installed native operators, each with two slots of the jump table, and additional slots for
// versions that are being installed or removed.
inline constexpr uint32_t kMaxInstalledOperators = 448;
inline constexpr uint32_t kSpareSlots = 64;
// Installed bytecode operators.
inline constexpr uint32_t kMaxBytecodeOperators = 4096;
// FLUX programs whose native code is in the kernel (--max_native_forms).
inline constexpr uint32_t kMaxNativeForms = 64;
// A regular batch with fewer tasks does not run as ranges (server/workload/columns.h).
inline constexpr uint32_t kMinRangeTasks = 256;
// Versions of an operator that are listed after they have left their slot.
inline constexpr uint32_t kMaxRetiredVersions = 8;
// Removed operators whose last version number is stored separately for each.
inline constexpr uint32_t kMaxRemovedNames = 4096;
inline constexpr uint32_t kMaxTaskErrors = 16;
// Batches in one message of Executor.Submit, and bytes of results that are joined in one response.
inline constexpr uint32_t kMaxMessageBatches = 64;
inline constexpr uint32_t kMaxJoinedResultBytes = 64 << 10;
inline constexpr uint32_t kMaxOperatorSummaryBytes = 256;
// Other texts of an install's header.
inline constexpr uint32_t kMaxSignatureBytes = 4096;
inline constexpr uint32_t kMaxSplitBytes = 256;
// Limits of one install: the files of a source, or the one file of an object, and the examples.
// The memory of the validation may allow less.
inline constexpr uint32_t kMaxInstallFiles = 64;
inline constexpr uint32_t kMaxInstallFileNameBytes = 128;
inline constexpr uint64_t kMaxInstallSourceBytes = 1u << 20;
// Also the limit of a compiled unit, and of any file that a compiler writes.
inline constexpr uint64_t kMaxInstallObjectBytes = 16u << 20;
inline constexpr uint32_t kMaxInstallExamples = 64;
inline constexpr uint64_t kMaxInstallExampleBytes = 64u << 20;
// Output of the compilers in a response; the rest is omitted.
inline constexpr uint64_t kMaxInstallLogBytes = 1u << 20;
// Each text of an event (its cause, its author); the rest is omitted.
inline constexpr uint32_t kMaxEventTextBytes = 4096;
// The Open Inference Protocol: the parameter `config` of RepositoryModelLoad, whose texts have the
// limits of installs; and tensors, parameters, texts and contents in one request, nested ones too.
// An operator's request has a few hundred at most.
inline constexpr uint64_t kMaxLoadConfigBytes = 64u << 10;
inline constexpr uint32_t kMaxInferenceEntries = 4096;
// Open Operators.Watch streams.
inline constexpr uint32_t kMaxWatchers = 256;
// Buffers in clients' shared memory. The daemon keeps a descriptor of each.
inline constexpr uint32_t kMaxSharedBuffers = 1024;
// Calls of Buffers.LoadFile. One file is read at a time.
inline constexpr uint32_t kMaxLoads = 64;
// Open Health.Watch streams, which need no credential, and the name of the watched service.
inline constexpr uint32_t kMaxHealthWatches = 256;
inline constexpr uint32_t kMaxHealthNameBytes = 256;
// Events in one response of Operators.Audit.
inline constexpr uint32_t kMaxAuditEvents = 1000;
inline constexpr uint32_t kDefaultAuditEvents = 100;
inline constexpr uint32_t kDownloadChunkBytes = 1u << 20;
inline constexpr uint64_t kFluxDefaultCycles = 1'000'000;
// Bytes of the tensors of one example.
inline constexpr uint64_t kMaxExampleBytes = 24ull << 20;
// Time limit of a task in a validation, even if its own limit is longer.
inline constexpr uint32_t kValidationTaskLimitMs = 60'000;
// Descriptors and arguments of the tasks of one batch.
inline constexpr uint64_t kMaxBatchDescriptorBytes = 512ull << 20;

// An installed FLUX program.
inline constexpr uint64_t kMaxBytecodeBytes = 1u << 20;
// Outputs of a batch that is also run on a shadow version. Larger batches are not shadowed.
inline constexpr uint64_t kMaxShadowBytes = 64ull << 20;

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_LIMITS_H_
