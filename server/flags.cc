#include "server/flags.h"

#include <algorithm>
#include <bit>
#include <string>

namespace resident {
namespace {

constexpr uint64_t kMaxMib = uint64_t{1} << 40;

const FlagRule<std::chrono::milliseconds> kWait = {.low = std::chrono::milliseconds(0),
                                                   .high = std::chrono::hours(24 * 365),
                                                   .fix = "give 0 to a year, e.g. 10s"};

void AddAddressFlags(Command& serve, ServeOptions& options) {
  serve.Flag("address", &options.address,
             "host:port that gRPC listens on; port 0 selects a free one");
  serve.Flag("metrics_address", &options.metrics_address,
             "host:port of the Prometheus page; empty: none; port 0 selects a free one");
  serve.Flag(
      "metrics_hosts", &options.metrics_hosts,
      "further names, separated by commas, under which clients may request the Prometheus page",
      {.holds =
           [](const std::vector<std::string>& hosts) {
             return std::ranges::count(hosts, std::string()) == 0;
           },
       .fix = "give names separated by single commas, such as a.example,b.example"});
  serve.Flag("console", &options.console,
             "whether --metrics_address also serves a page for people at / (devices, charts, "
             "operators, clients, graphs), which only reads");
  serve.Flag("port_file", &options.port_file,
             "file to write the addresses to, as JSON, once the daemon serves");
  serve.Flag("node_name", &options.node_name,
             "name of this daemon among others, in its status; empty: the host's name",
             {.holds = [](const std::string& name) { return name.empty() || IsNodeName(name); },
              .fix = "give at most 253 letters, digits, '.', '-' and '_'"});
  serve.Flag("local_address", &options.local_address,
             "path of a Unix socket over which clients on this machine pass descriptors of shared "
             "memory (docs/shared_memory.md); empty: none");
  serve.Flag("load_dir", &options.load_dir,
             "folder of safetensors files that clients may load into buffers by name; empty: none");
  serve.Flag("allow_shared_memory", &options.allow_shared_memory,
             "whether clients on this machine may use their shared memory as buffers");
}

void AddLaneFlags(Command& serve, ServeOptions& options) {
  serve.Flag("max_lanes", &options.max_lanes,
             "open local lanes, which need --local_address (docs/local_lane.md); 0: none",
             {.low = 0, .high = 4096});
  serve.Flag(
      "lane_spin_us", &options.lane_spin_us,
      "how long a local lane is polled after its last submission; then its client has to wake "
      "the daemon",
      {.low = 0, .high = 1'000'000});
  serve.Flag("lane_spin_percent", &options.lane_spin_percent,
             "part of a core that polling local lanes of a device may use without a result",
             {.low = 0, .high = 100});
}

void AddInferenceFlags(Command& serve, InferenceOptions& inference) {
  serve.Flag("oip", &inference.enabled,
             "serve the Open Inference Protocol (docs/inference.md) on the same port");
  serve.Flag("oip_unload", &inference.unload,
             "whether RepositoryModelUnload of the Open Inference Protocol may remove an operator "
             "with all its versions");
  serve.Flag("oip_region_idle", &inference.region_idle,
             "time without a request after which a region of shared memory of the Open Inference "
             "Protocol is unregistered; 0: never",
             kWait);
}

void AddAccessFlags(Command& serve, AccessOptions& access) {
  serve.Flag("tls_cert", &access.tls_cert,
             "PEM file with the server's certificate and those that issued it; turns TLS on");
  serve.Flag("tls_key", &access.tls_key, "PEM file with the certificate's private key");
  serve.Flag("tls_client_ca", &access.tls_client_ca,
             "PEM file with the authorities whose certificates clients must have");
  serve.Flag("tls_require_client_cert", &access.tls_require_client_cert,
             "with --tls_client_ca, refuse clients without a certificate; "
             "false: they may use a token instead");
  serve.Flag("policy", &access.policy,
             "file with the permissions of each identity (docs/operations.md); "
             "empty: every client may do everything");
  serve.Flag("token_file", &access.token_file,
             "file with names and hashes of their tokens (residentctl token new)");
  serve.Flag(
      "insecure_non_loopback", &access.insecure_non_loopback,
      "serve other machines without TLS: every client that can reach the port may do everything");
  serve.Flag("allow_clients_without_certificates", &access.allow_clients_without_certificates,
             "with TLS, serve other machines although clients need no certificate: "
             "every client that can reach the port can connect and send headers before a "
             "credential is checked");
}

void AddTimeFlags(Command& serve, ServeOptions& options) {
  serve.Flag("park_after", &options.park_after,
             "idle time after which the kernel leaves the device until the next task; 0: never",
             kWait);
  serve.Flag("drain_notice", &options.drain_notice,
             "on SIGTERM, time in which health is NOT_SERVING and work is still accepted, so that "
             "clients that follow health go elsewhere before the drain; a second signal ends it",
             kWait);
  serve.Flag("drain_timeout", &options.drain_timeout,
             "on SIGTERM, time to finish accepted tasks before the rest is answered UNAVAILABLE",
             kWait);
  serve.Flag("task_time_limit", &options.task_time_limit,
             "a task that runs longer ends its engine, which is replaced; 0: no limit", kWait);
}

void AddDeviceFlags(Command& serve, ServeOptions& options) {
  DeviceLimits& device = options.device_limits;
  serve.Flag("devices", &options.devices,
             "\"all\" (every GPU, or the CPU where there is none), \"cpu\", or GPUs by ordinal, "
             "e.g. \"0,2\" or \"cuda:0,cuda:2\"");
  serve.Flag("ring_slots", &device.ring_slots,
             "tasks in flight on a device; a power of two, 64 to 65536",
             {.low = 64,
              .high = 65536,
              .holds = std::has_single_bit<uint32_t>,
              .fix = "give a power of two from 64 to 65536"});
  serve.Flag("staging_mib", &device.staging_mib,
             "pinned host memory of a device for inline data of batches, uploads and downloads",
             {.low = 1, .high = 1 << 20});
  serve.Flag(
      "device_memory_mib", &device.device_memory_mib,
      "memory of a device for buffers; 0: a quarter of a GPU's free memory, 1 GiB for the CPU");
  serve.Flag("threads_per_block", &options.threads_per_block,
             "GPU threads of a block that run operators: a multiple of 32 up to 256; 0: 256");
  serve.Flag("blocks_per_sm", &options.blocks_per_sm,
             "blocks of the resident kernel on each SM; 0: as many as fit, up to 512 threads");
  serve.Flag("sms_free", &options.sms_free, "SMs left to other programs");
  serve.Flag("cpu_workers", &options.cpu_workers,
             "threads of the CPU engine; 0: one for each processor, at most 16");
  serve.Flag(
      "graphs_in_engine", &options.graphs_in_engine,
      "whether engines execute graphs themselves, a few milliseconds of steps for each slot of "
      "the ring; false: the daemon starts each node");
  serve.Flag(
      "spare_engine", &options.spare_engine,
      "keep a prepared engine process for each device: it validates versions, and replaces an "
      "engine that ends, within milliseconds; false: saves its memory");
  serve.Flag("test_operators", &options.test_operators,
             "load the operators that fail on purpose; for tests only");
}

void AddWorkLimitFlags(Command& serve, Limits& limits) {
  serve.Flag("max_message_mib", &limits.max_message_mib, "largest gRPC message accepted",
             {.low = 1, .high = 2047});
  serve.Flag("max_batch_tasks", &limits.max_batch_tasks, "tasks, or FLUX runs, in one batch",
             {.low = 1});
  serve.Flag("max_queued_tasks", &limits.max_queued_tasks,
             "tasks of one client on a device in batches that are admitted and not yet answered",
             {.low = 1});
  serve.Flag("max_stream_batches", &limits.max_stream_batches,
             "batches of one stream that are accepted and not yet answered", {.low = 1});
  serve.Flag("flux_max_cycles", &limits.flux_max_cycles, "largest cycle limit of one FLUX run",
             {.low = 1});
}

void AddClientLimitFlags(Command& serve, Limits& limits) {
  serve.Flag("max_sessions", &limits.max_sessions, "open sessions", {.low = 1});
  serve.Flag("max_buffers", &limits.max_buffers, "buffers of one session, and of all durable ones");
  serve.Flag("max_client_memory_mib", &limits.max_client_memory_mib,
             "device memory that one session's buffers may use; 0: no limit");
  serve.Flag("max_client_host_mib", &limits.max_client_host_mib,
             "memory of the daemon for one client's admitted batches, their answers until they are "
             "written, and its unread downloads; the same limit applies separately to its requests "
             "that wait, to copies of one session's durable buffers, and to unfinished writes to "
             "durable buffers; 0: no limit",
             {.low = 0, .high = kMaxMib});
  serve.Flag(
      "max_host_mib", &limits.max_host_mib,
      "memory of the daemon for all clients' admitted batches, answers and unread downloads, and "
      "up to a quarter of it for requests that wait; the same limit applies separately to copies "
      "of all durable buffers, and to unfinished writes to them; 0: no limit",
      {.low = 0, .high = kMaxMib});
}

void AddConnectionLimitFlags(Command& serve, ServeOptions& options) {
  using std::chrono::milliseconds;
  serve.Flag("max_connection_age", &options.max_connection_age,
             "a client is asked to open a new connection after this time, varied by 10 %, so that "
             "it asks DNS again; open calls, streams and sessions go on; 0: never",
             {.holds =
                  [](milliseconds age) {
                    return age.count() == 0 ||
                           (age >= std::chrono::seconds(1) && age <= std::chrono::hours(24));
                  },
              .fix = "give 0, or 1s to 24h, e.g. 5m"});
  Limits& limits = options.limits;
  serve.Flag("max_connections", &limits.max_connections,
             "connections of clients; at the limit, an old connection without an admitted call is "
             "closed for a new one, or else the new one is closed",
             {.low = 1});
  serve.Flag("max_address_connections", &limits.max_address_connections,
             "connections from one address, or one /64 network of IPv6; 0: a quarter of "
             "--max_connections, and no limit for the loopback interface");
  serve.Flag(
      "max_unadmitted_idle_ms", &limits.max_unadmitted_idle_ms,
      "a connection over which no call was admitted is closed after this time without a call",
      {.low = 1});
  serve.Flag(
      "max_unadmitted_kib", &limits.max_unadmitted_kib,
      "what a connection over which no call was admitted may send, "
      "in addition to 32 KiB per second; at least 16",
      {.low = 16, .fix = "give at least 16, which the handshake and the headers of a call need"});
  serve.Flag("max_connection_streams", &limits.max_connection_streams,
             "concurrent calls on one connection; further calls wait at the client",
             {.low = 1, .high = 1 << 20});
}

void AddInstallLimitFlags(Command& serve, Limits& limits) {
  serve.Flag("max_installs", &limits.max_installs,
             "concurrent installs of operators, of all clients",
             {.low = 1, .high = 256, .fix = "give 1 to 256; each has a thread and a compiler"});
  serve.Flag("max_install_header_ms", &limits.max_install_header_ms,
             "time that a client may take to send an install's header", {.low = 1});
  serve.Flag("max_install_upload_ms", &limits.max_install_upload_ms,
             "time that a client may take to send an install", {.low = 1});
}

}  // namespace

bool IsNodeName(const std::string& name) {
  return !name.empty() && name.size() <= 253 && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  });
}

void AddServeFlags(Command& serve, ServeOptions& options) {
  AddAddressFlags(serve, options);
  AddLaneFlags(serve, options);
  AddInferenceFlags(serve, options.inference);
  AddAccessFlags(serve, options.access);
  AddTimeFlags(serve, options);
  AddDeviceFlags(serve, options);
  AddWorkLimitFlags(serve, options.limits);
  AddClientLimitFlags(serve, options.limits);
  AddConnectionLimitFlags(serve, options);
  AddInstallLimitFlags(serve, options.limits);
}

}  // namespace resident
