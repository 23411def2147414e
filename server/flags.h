// The flags of `residentd serve`, as options. flags.cc has their names, texts and ranges.
//
// Thread safety: a value; a function without state.
#ifndef RESIDENT_SERVER_FLAGS_H_
#define RESIDENT_SERVER_FLAGS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/command_line.h"
#include "runtime/base/limits.h"
#include "server/auth/access_options.h"
#include "server/inference/inference_options.h"

namespace resident {

struct ServeOptions {
  // --address: host:port that gRPC listens on; port 0 selects a free one.
  std::string address = "127.0.0.1:50051";
  // --tls_..., --policy, --token_file, --insecure_non_loopback,
  // --allow_clients_without_certificates.
  AccessOptions access;
  // --metrics_address: the same for the metrics page; empty: none.
  std::string metrics_address = "127.0.0.1:9464";
  // --metrics_hosts: further names under which clients may request the page.
  std::vector<std::string> metrics_hosts;
  // --console: whether the port of the metrics page also serves the page for people.
  bool console = true;
  // --port_file: file for the addresses, as JSON, written once the daemon serves; empty: none.
  std::string port_file;
  // --node_name: name of the daemon in its status; empty: the host's name.
  std::string node_name;
  // --devices: "all", or devices by the names and ordinals of runtime/engine/engines.h.
  std::string devices = "all";

  // --max_connection_age: clients are asked to open a new connection after this time; 0: never.
  std::chrono::milliseconds max_connection_age{0};
  // --park_after, --task_time_limit, --drain_notice, --drain_timeout.
  std::chrono::milliseconds park_after{10'000};
  std::chrono::milliseconds task_time_limit{10'000};
  std::chrono::milliseconds drain_notice{0};
  std::chrono::milliseconds drain_timeout{30'000};

  // --threads_per_block, --blocks_per_sm, --sms_free, --cpu_workers, --graphs_in_engine,
  // --spare_engine, --test_operators.
  uint32_t threads_per_block = 0;
  uint32_t blocks_per_sm = 0;
  uint32_t sms_free = 0;
  uint32_t cpu_workers = 0;
  bool graphs_in_engine = true;
  bool spare_engine = true;
  bool test_operators = false;
  // --allow_shared_memory.
  bool allow_shared_memory = true;
  // --local_address: path of the socket for descriptors of shared memory; empty: none. Not used
  // without allow_shared_memory.
  std::string local_address;
  // --max_lanes: open local lanes (server/lanes/lane.h); 0: none can be opened. A caller that has
  // some must leave an eighth of them to callers that have none.
  uint32_t max_lanes = 256;
  // --lane_spin_us: how long a lane is polled after its last submission. --lane_spin_percent: the
  // part of a core that this polling may use without a result, for each device.
  uint32_t lane_spin_us = 200;
  uint32_t lane_spin_percent = 25;
  // --load_dir: folder of the files that clients may load; empty: none.
  std::string load_dir;

  // --oip, --oip_unload, --oip_region_idle.
  InferenceOptions inference;

  Limits limits;
  DeviceLimits device_limits;
};

// Whether a text can be --node_name: 1 to 253 letters, digits, '.', '-' and '_'.
bool IsNodeName(const std::string& name);

// Declares the flags, which set the options. The current values of the options are the defaults.
void AddServeFlags(Command& serve, ServeOptions& options);

}  // namespace resident

#endif  // RESIDENT_SERVER_FLAGS_H_
