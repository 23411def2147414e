// Limits of requests, of what clients hold, and of devices, with their defaults. A limit
// that can be set has a flag of the same name (server/flags.cc). Messages that refuse
// something over a limit name the value, the limit and the flag.
//
// Others stand where they are kept: of a compilation, its sources and what it makes in
// compile/compile_job.h; of an expression in expression/expression.h; of policy, token and
// certificate files in server/auth; of the shared region and of a kernel in kernels/layout and
// kernels/resident.
#ifndef RESIDENT_RUNTIME_BASE_LIMITS_H_
#define RESIDENT_RUNTIME_BASE_LIMITS_H_

#include <cstdint>

namespace resident {

struct Limits {
  // --max_message_mib: largest gRPC message taken.
  uint32_t max_message_mib = 64;
  // --max_batch_tasks: tasks, or program runs, in one batch.
  uint32_t max_batch_tasks = 4u << 20;
  // --max_queued_tasks: tasks that one client may have on a device in batches that are admitted
  // and not yet answered. A stream's next batch waits meanwhile; Run is refused.
  uint64_t max_queued_tasks = 8u << 20;
  // --max_stream_batches: batches of one stream that are admitted and not yet
  // answered. A client that does not read its results stops being read from here.
  uint32_t max_stream_batches = 64;
  // --max_sessions: open sessions, and likewise connections with work and without a session. Of
  // these, installs and watches, one caller leaves an eighth to the others
  // (server/rpc/shared_slots.h).
  uint32_t max_sessions = 1024;
  // --max_buffers: buffers of one session, and of all durable ones.
  uint32_t max_buffers = 65536;
  // --max_client_memory_mib: device memory that one session's buffers may take.
  // 0: as much as there is.
  uint64_t max_client_memory_mib = 0;
  // --max_client_host_mib: the daemon's own memory that one client may take: for its batches that
  // are admitted, their answers until they are written, and downloads that it has not read
  // (server/admission); likewise for its requests that wait; and likewise for the copies of one
  // session's durable buffers. 0: as much as there is.
  uint64_t max_client_host_mib = 2048;
  // --max_host_mib: the same for all clients; requests that wait count up to a quarter of it. No
  // client takes more than it leaves free for the others. Likewise for the copies of all durable
  // buffers. 0: as much as there is.
  uint64_t max_host_mib = 8192;
  // --max_connections: connections of clients, as far as the process may have descriptors
  // (kOwnDescriptors, and kLocalDescriptors where there is a local socket, are kept for the
  // rest, or half of all if that is less). Over that, one is closed as soon as it is made.
  uint32_t max_connections = 4096;
  // --max_address_connections: of those, connections from one address, or from one /64 network
  // of IPv6. 0: a quarter, and no limit for the loopback interface, where a proxy may stand for
  // all clients.
  uint32_t max_address_connections = 0;
  // --max_unadmitted_idle_ms: a connection over which no call was admitted is closed after so
  // long without a call.
  uint32_t max_unadmitted_idle_ms = 20'000;
  // --max_unadmitted_kib: what such a connection may send, beside 32 KiB a second. It bounds
  // what gRPC stores of headers whose sender is not known yet.
  uint32_t max_unadmitted_kib = 1024;
  // --max_connection_streams: calls under way on one connection; a client's library keeps
  // more back until one has ended.
  uint32_t max_connection_streams = 1024;
  // --flux_max_cycles: most instructions that one FLUX run may be allowed.
  uint64_t flux_max_cycles = 100'000'000;
  // --max_installs: installs under way, of all clients.
  uint32_t max_installs = 8;
  // --max_install_header_ms: from the beginning of an install to its header.
  uint32_t max_install_header_ms = 10'000;
  // --max_install_upload_ms: from the beginning of an install to its half-close. One that is
  // not sent holds a place of max_installs for so long.
  uint32_t max_install_upload_ms = 120'000;
};

// Sizes of one device, fixed when its engine starts.
struct DeviceLimits {
  // --ring_slots: tasks in flight; a power of two, 64 to 65536.
  uint32_t ring_slots = 8192;
  // --staging_mib: pinned host memory for what batches carry inline, and for
  // uploads and downloads.
  uint64_t staging_mib = 256;
  // --device_memory_mib: memory for buffers. 0: a quarter of a GPU's free memory,
  // 1 GiB for the CPU.
  uint64_t device_memory_mib = 0;
};

// Fixed limits.
// File descriptors of the front end beside its clients' connections: engines, compilers,
// files, the metrics page.
inline constexpr uint32_t kOwnDescriptors = 512;
// --local_address. Connections at one time, in all and of one user; the time that a client may
// take to send its packet; the longest packet.
inline constexpr uint32_t kMaxLocalConnections = 64;
inline constexpr uint32_t kMaxLocalConnectionsOfUser = 16;
inline constexpr uint32_t kLocalPacketMs = 5'000;
inline constexpr uint32_t kMaxLocalPacketBytes = 128;
// Descriptors that were passed and not yet imported, in all, of one user and of one session, and
// how long each is kept.
inline constexpr uint32_t kMaxPassedDescriptors = 256;
inline constexpr uint32_t kMaxPassedDescriptorsOfUser = 64;
inline constexpr uint32_t kMaxPassedDescriptorsOfSession = 16;
inline constexpr uint32_t kPassedDescriptorMs = 30'000;
// File descriptors that all of this takes: a connection, with two that came with its packet (one
// too many is received to be refused), and those that are kept; the socket itself.
inline constexpr uint32_t kLocalDescriptors = 3 * kMaxLocalConnections + kMaxPassedDescriptors + 1;
// From when a connection is taken to the end of its handshake: TLS, and the client's first
// HTTP/2 frame.
inline constexpr uint32_t kHandshakeMs = 5'000;
// Names and values of a call's headers; each header counts 32 bytes more.
inline constexpr uint32_t kMaxMetadataBytes = 16 << 10;
inline constexpr uint32_t kMaxClientNameBytes = 64;
inline constexpr uint32_t kMaxBufferNameBytes = 128;
inline constexpr uint32_t kMaxOperatorNameBytes = 64;
// Installed operators that are native, with two slots of the jump table each, and slots
// beside for versions that are being installed or taken out.
inline constexpr uint32_t kMaxInstalledOperators = 448;
inline constexpr uint32_t kSpareSlots = 64;
// Installed operators that are bytecode.
inline constexpr uint32_t kMaxBytecodeOperators = 4096;
// Versions of an operator that are listed after they have left their slot.
inline constexpr uint32_t kMaxRetiredVersions = 8;
// Removed operators whose version numbers are remembered one by one.
inline constexpr uint32_t kMaxRemovedNames = 4096;
inline constexpr uint32_t kMaxTaskErrors = 16;
inline constexpr uint32_t kMaxOperatorSummaryBytes = 256;
// Texts of an install's header beside its summary.
inline constexpr uint32_t kMaxSignatureBytes = 4096;
inline constexpr uint32_t kMaxSplitBytes = 256;
// Of one install: the files of a source, or the one of an object, and the examples. The
// validation's memory may take less.
inline constexpr uint32_t kMaxInstallFiles = 64;
inline constexpr uint32_t kMaxInstallFileNameBytes = 128;
inline constexpr uint64_t kMaxInstallSourceBytes = 1u << 20;
// Also of a compiled unit, and of any file that a compiler writes.
inline constexpr uint64_t kMaxInstallObjectBytes = 16u << 20;
inline constexpr uint32_t kMaxInstallExamples = 64;
inline constexpr uint64_t kMaxInstallExampleBytes = 64u << 20;
// Of what the compilers say; the rest is left out of the answer.
inline constexpr uint64_t kMaxInstallLogBytes = 1u << 20;
// Of each text of an event (its cause, who made it); the rest is left out.
inline constexpr uint32_t kMaxEventTextBytes = 4096;
// Open Operators.Watch streams.
inline constexpr uint32_t kMaxWatchers = 256;
// Open Health.Watch streams, which need no credential, and the name that one watches.
inline constexpr uint32_t kMaxHealthWatches = 256;
inline constexpr uint32_t kMaxHealthNameBytes = 256;
// Events of one Operators.Audit.
inline constexpr uint32_t kMaxAuditEvents = 1000;
inline constexpr uint32_t kDefaultAuditEvents = 100;
inline constexpr uint32_t kDownloadChunkBytes = 1u << 20;
inline constexpr uint64_t kFluxDefaultCycles = 1'000'000;
// Bytes of the tensors of one example.
inline constexpr uint64_t kMaxExampleBytes = 24ull << 20;
// The longest that a task may run in a validation, whatever its own limit.
inline constexpr uint32_t kValidationTaskLimitMs = 60'000;
// Descriptors and arguments that the tasks of one batch may take.
inline constexpr uint64_t kMaxBatchDescriptorBytes = 512ull << 20;

// A FLUX program that is installed.
inline constexpr uint64_t kMaxBytecodeBytes = 1u << 20;
// Outputs of a batch that is run beside on a version on trial; larger ones are not.
inline constexpr uint64_t kMaxShadowBytes = 64ull << 20;

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_LIMITS_H_
