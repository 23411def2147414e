#include "server/flags.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "runtime/base/status_macros.h"

ABSL_FLAG(std::string, address, "127.0.0.1:50051",
          "host:port that gRPC listens on; port 0 takes a free one");
ABSL_FLAG(std::string, metrics_address, "127.0.0.1:9464",
          "host:port of the Prometheus page; empty: none; port 0 takes a free one");
ABSL_FLAG(std::vector<std::string>, metrics_hosts, {},
          "further names, separated by commas, under which the Prometheus page may be asked for");
ABSL_FLAG(std::string, tls_cert, "",
          "PEM file with the server's certificate and those that issued it; turns TLS on");
ABSL_FLAG(std::string, tls_key, "", "PEM file with the certificate's private key");
ABSL_FLAG(std::string, tls_client_ca, "",
          "PEM file with the authorities whose certificates clients must have");
ABSL_FLAG(bool, tls_require_client_cert, true,
          "with --tls_client_ca, refuse clients without a certificate; false: they may come with "
          "a token instead");
ABSL_FLAG(std::string, policy, "",
          "file that says who may do what (docs/operations.md); empty: everybody everything");
ABSL_FLAG(std::string, token_file, "",
          "file with names and hashes of their tokens (residentctl token new)");
ABSL_FLAG(bool, insecure_non_loopback, false,
          "serve other machines without TLS: whoever reaches the port may do everything");
ABSL_FLAG(bool, allow_clients_without_certificates, false,
          "with TLS, serve other machines although clients need no certificate: whoever reaches "
          "the port can connect and send headers before a credential is checked");
ABSL_FLAG(std::string, port_file, "",
          "file to write the addresses to, as JSON, once the daemon serves");
ABSL_FLAG(std::string, devices, "all",
          "\"all\" (every GPU, or the CPU where there is none), \"cpu\", or GPUs by ordinal, "
          "e.g. \"0,2\"");
ABSL_FLAG(absl::Duration, park_after, absl::Seconds(10),
          "idle time after which the kernel leaves the device until the next task; 0: never");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(30),
          "on SIGTERM, how long to finish what was taken before the rest is answered UNAVAILABLE");
ABSL_FLAG(absl::Duration, task_time_limit, absl::Seconds(10),
          "a task that runs longer ends its engine, which is replaced; 0: no limit");
ABSL_FLAG(uint32_t, ring_slots, resident::DeviceLimits().ring_slots,
          "tasks in flight on a device; a power of two, 64 to 65536");
ABSL_FLAG(uint64_t, staging_mib, resident::DeviceLimits().staging_mib,
          "pinned host memory of a device for what batches carry inline, uploads and downloads");
ABSL_FLAG(uint64_t, device_memory_mib, resident::DeviceLimits().device_memory_mib,
          "memory of a device for buffers; 0: a quarter of a GPU's free memory, 1 GiB for the CPU");
ABSL_FLAG(uint32_t, threads_per_block, 0,
          "GPU threads of a block that run operators: a multiple of 32 up to 256; 0: 256");
ABSL_FLAG(
    uint32_t, blocks_per_sm, 0,
    "blocks of the resident kernel on each SM; 0: as many as fit, at most 512 threads' worth");
ABSL_FLAG(uint32_t, sms_free, 0, "SMs left to other programs");
ABSL_FLAG(uint32_t, cpu_workers, 0,
          "threads of the CPU engine; 0: one for each processor, at most 16");
ABSL_FLAG(uint32_t, max_message_mib, resident::Limits().max_message_mib,
          "largest gRPC message taken");
ABSL_FLAG(uint32_t, max_batch_tasks, resident::Limits().max_batch_tasks,
          "tasks, or FLUX runs, in one batch");
ABSL_FLAG(uint64_t, max_queued_tasks, resident::Limits().max_queued_tasks,
          "tasks of one client on a device in batches that are admitted and not yet answered");
ABSL_FLAG(uint32_t, max_stream_batches, resident::Limits().max_stream_batches,
          "batches of one stream that are taken and not yet answered");
ABSL_FLAG(uint32_t, max_sessions, resident::Limits().max_sessions, "open sessions");
ABSL_FLAG(uint32_t, max_buffers, resident::Limits().max_buffers,
          "buffers of one session, and of all durable ones");
ABSL_FLAG(uint64_t, max_client_memory_mib, resident::Limits().max_client_memory_mib,
          "device memory that one session's buffers may take; 0: as much as there is");
ABSL_FLAG(uint64_t, max_client_host_mib, resident::Limits().max_client_host_mib,
          "memory of the daemon for one client's batches that are admitted, their answers until "
          "they are written, and downloads that it has not read; likewise for its requests that "
          "wait, likewise for copies of one session's durable buffers, likewise for writes to them "
          "that have not ended; 0: as much as there is");
ABSL_FLAG(
    uint64_t, max_host_mib, resident::Limits().max_host_mib,
    "memory of the daemon for all clients' batches that are admitted, answers, unread "
    "downloads, and up to a quarter of it for requests that wait; likewise for copies of all "
    "durable buffers, likewise for writes to them that have not ended; 0: as much as there is");
ABSL_FLAG(uint32_t, max_connections, resident::Limits().max_connections,
          "connections of clients; one over that is closed as soon as it is made");
ABSL_FLAG(uint32_t, max_address_connections, resident::Limits().max_address_connections,
          "connections from one address, or one /64 network of IPv6; 0: a quarter of "
          "--max_connections, and no limit for the loopback interface");
ABSL_FLAG(uint32_t, max_unadmitted_idle_ms, resident::Limits().max_unadmitted_idle_ms,
          "a connection over which no call was admitted is closed after so long without a call");
ABSL_FLAG(uint32_t, max_unadmitted_kib, resident::Limits().max_unadmitted_kib,
          "what a connection over which no call was admitted may send, beside 32 KiB a second; "
          "at least 16");
ABSL_FLAG(uint32_t, max_connection_streams, resident::Limits().max_connection_streams,
          "calls under way on one connection; more wait at the client");
ABSL_FLAG(uint64_t, flux_max_cycles, resident::Limits().flux_max_cycles,
          "most instructions that one FLUX run may be allowed");
ABSL_FLAG(uint32_t, max_installs, resident::Limits().max_installs,
          "installs of operators under way, of all clients");
ABSL_FLAG(uint32_t, max_install_header_ms, resident::Limits().max_install_header_ms,
          "time that a client may take to send an install's header");
ABSL_FLAG(uint32_t, max_install_upload_ms, resident::Limits().max_install_upload_ms,
          "time that a client may take to send an install");
ABSL_FLAG(bool, allow_shared_memory, true,
          "whether clients on this machine may make their shared memory buffers");
ABSL_FLAG(std::string, local_address, "",
          "path of a Unix socket over which clients on this machine pass descriptors of shared "
          "memory (docs/shared_memory.md); empty: none");
ABSL_FLAG(bool, spare_engine, true,
          "keep a prepared engine process for each device, which replaces one that ends within "
          "milliseconds and validates versions; false: saves the memory that it takes");
ABSL_FLAG(bool, test_operators, false, "load the operators that exist to go wrong (tests)");

namespace resident {
namespace {

constexpr uint32_t kMostInstalls = 256;
constexpr uint32_t kMinUnadmittedKib = 16;
constexpr uint32_t kMostStreams = 1u << 20;
constexpr uint64_t kMostMib = uint64_t{1} << 40;

absl::Status BadFlag(const std::string& flag, const std::string& what, const std::string& fix) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", what, ". Fix: ", fix));
}

absl::StatusOr<std::chrono::milliseconds> Milliseconds(const std::string& flag,
                                                       absl::Duration value) {
  if (value < absl::ZeroDuration() || value > absl::Hours(24 * 365)) {
    return BadFlag(flag, absl::StrCat(absl::FormatDuration(value), " is not a time to wait"),
                   "give 0 to a year, e.g. 10s");
  }
  return absl::ToChronoMilliseconds(value);
}

}  // namespace

absl::StatusOr<ServeOptions> ReadServeFlags() {
  ServeOptions options;
  options.address = absl::GetFlag(FLAGS_address);
  options.metrics_address = absl::GetFlag(FLAGS_metrics_address);
  options.metrics_hosts = absl::GetFlag(FLAGS_metrics_hosts);
  options.access.tls_cert = absl::GetFlag(FLAGS_tls_cert);
  options.access.tls_key = absl::GetFlag(FLAGS_tls_key);
  options.access.tls_client_ca = absl::GetFlag(FLAGS_tls_client_ca);
  options.access.tls_require_client_cert = absl::GetFlag(FLAGS_tls_require_client_cert);
  options.access.policy = absl::GetFlag(FLAGS_policy);
  options.access.token_file = absl::GetFlag(FLAGS_token_file);
  options.access.insecure_non_loopback = absl::GetFlag(FLAGS_insecure_non_loopback);
  options.access.allow_clients_without_certificates =
      absl::GetFlag(FLAGS_allow_clients_without_certificates);
  options.port_file = absl::GetFlag(FLAGS_port_file);
  options.devices = absl::GetFlag(FLAGS_devices);
  ASSIGN_OR_RETURN(const auto park_after,
                   Milliseconds("park_after", absl::GetFlag(FLAGS_park_after)));
  options.park_after = park_after;
  ASSIGN_OR_RETURN(const auto drain,
                   Milliseconds("drain_timeout", absl::GetFlag(FLAGS_drain_timeout)));
  options.drain_timeout = drain;
  ASSIGN_OR_RETURN(const auto limit,
                   Milliseconds("task_time_limit", absl::GetFlag(FLAGS_task_time_limit)));
  options.task_time_limit = limit;

  options.threads_per_block = absl::GetFlag(FLAGS_threads_per_block);
  options.blocks_per_sm = absl::GetFlag(FLAGS_blocks_per_sm);
  options.sms_free = absl::GetFlag(FLAGS_sms_free);
  options.cpu_workers = absl::GetFlag(FLAGS_cpu_workers);
  options.spare_engine = absl::GetFlag(FLAGS_spare_engine);
  options.test_operators = absl::GetFlag(FLAGS_test_operators);
  options.allow_shared_memory = absl::GetFlag(FLAGS_allow_shared_memory);
  options.local_address = absl::GetFlag(FLAGS_local_address);

  DeviceLimits& device = options.device_limits;
  device.ring_slots = absl::GetFlag(FLAGS_ring_slots);
  if (device.ring_slots < 64 || device.ring_slots > 65536 ||
      (device.ring_slots & (device.ring_slots - 1)) != 0) {
    return BadFlag("ring_slots", absl::StrCat(device.ring_slots, " slots"),
                   "give a power of two from 64 to 65536");
  }
  device.staging_mib = absl::GetFlag(FLAGS_staging_mib);
  if (device.staging_mib < 1 || device.staging_mib > 1 << 20) {
    return BadFlag("staging_mib", absl::StrCat(device.staging_mib, " MiB"), "give 1 to 1048576");
  }
  device.device_memory_mib = absl::GetFlag(FLAGS_device_memory_mib);

  Limits& limits = options.limits;
  limits.max_message_mib = absl::GetFlag(FLAGS_max_message_mib);
  if (limits.max_message_mib < 1 || limits.max_message_mib > 2047) {
    return BadFlag("max_message_mib", absl::StrCat(limits.max_message_mib, " MiB"),
                   "give 1 to 2047");
  }
  limits.max_batch_tasks = absl::GetFlag(FLAGS_max_batch_tasks);
  limits.max_queued_tasks = absl::GetFlag(FLAGS_max_queued_tasks);
  limits.max_stream_batches = absl::GetFlag(FLAGS_max_stream_batches);
  limits.max_sessions = absl::GetFlag(FLAGS_max_sessions);
  limits.max_buffers = absl::GetFlag(FLAGS_max_buffers);
  limits.max_client_memory_mib = absl::GetFlag(FLAGS_max_client_memory_mib);
  limits.max_client_host_mib = absl::GetFlag(FLAGS_max_client_host_mib);
  limits.max_host_mib = absl::GetFlag(FLAGS_max_host_mib);
  for (const auto& [flag, mib] : {std::pair("max_client_host_mib", limits.max_client_host_mib),
                                  std::pair("max_host_mib", limits.max_host_mib)}) {
    if (mib > kMostMib) {
      return BadFlag(flag, absl::StrCat(mib, " MiB"), absl::StrCat("give 0 to ", kMostMib));
    }
  }
  limits.max_connections = absl::GetFlag(FLAGS_max_connections);
  limits.max_address_connections = absl::GetFlag(FLAGS_max_address_connections);
  limits.max_unadmitted_idle_ms = absl::GetFlag(FLAGS_max_unadmitted_idle_ms);
  limits.max_unadmitted_kib = absl::GetFlag(FLAGS_max_unadmitted_kib);
  if (limits.max_unadmitted_kib < kMinUnadmittedKib) {
    return BadFlag("max_unadmitted_kib", absl::StrCat(limits.max_unadmitted_kib, " KiB"),
                   absl::StrCat("give at least ", kMinUnadmittedKib,
                                ", which the handshake and the headers of a call need"));
  }
  limits.max_connection_streams = absl::GetFlag(FLAGS_max_connection_streams);
  if (limits.max_connection_streams > kMostStreams) {
    return BadFlag("max_connection_streams", absl::StrCat(limits.max_connection_streams, " calls"),
                   absl::StrCat("give 1 to ", kMostStreams));
  }
  limits.flux_max_cycles = absl::GetFlag(FLAGS_flux_max_cycles);
  limits.max_install_header_ms = absl::GetFlag(FLAGS_max_install_header_ms);
  limits.max_install_upload_ms = absl::GetFlag(FLAGS_max_install_upload_ms);
  limits.max_installs = absl::GetFlag(FLAGS_max_installs);
  if (limits.max_installs > kMostInstalls) {
    return BadFlag("max_installs", absl::StrCat(limits.max_installs, " installs"),
                   absl::StrCat("give 1 to ", kMostInstalls, "; each has a thread and a compiler"));
  }
  if (limits.max_batch_tasks == 0 || limits.max_queued_tasks == 0 ||
      limits.max_stream_batches == 0 || limits.max_sessions == 0 || limits.flux_max_cycles == 0 ||
      limits.max_installs == 0 || limits.max_connections == 0 ||
      limits.max_connection_streams == 0 || limits.max_install_upload_ms == 0 ||
      limits.max_install_header_ms == 0 || limits.max_unadmitted_idle_ms == 0) {
    return BadFlag("max_...", "a limit is 0, so that nothing could be done", "give at least 1");
  }
  return options;
}

}  // namespace resident
