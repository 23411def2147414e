// The flags of `residentd serve`, as options. flags.cc has their names and texts.
//
// Thread safety: ReadServeFlags is called once, after the flags were parsed.
#ifndef RESIDENT_SERVER_FLAGS_H_
#define RESIDENT_SERVER_FLAGS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/limits.h"
#include "server/auth/access_options.h"

namespace resident {

struct ServeOptions {
  // --address: host:port that gRPC listens on; port 0: a free one.
  std::string address;
  // --tls_..., --policy, --token_file, --insecure_non_loopback,
  // --allow_clients_without_certificates.
  AccessOptions access;
  // --metrics_address: the same for the metrics page; empty: none.
  std::string metrics_address;
  // --metrics_hosts: further names under which the page may be asked for.
  std::vector<std::string> metrics_hosts;
  // --port_file: where to write the addresses, as JSON, once serving; empty: nowhere.
  std::string port_file;
  // --devices: "all", "cpu", or CUDA ordinals such as "0,2".
  std::string devices;

  // --park_after, --task_time_limit, --drain_timeout.
  std::chrono::milliseconds park_after{0};
  std::chrono::milliseconds task_time_limit{0};
  std::chrono::milliseconds drain_timeout{0};

  // --threads_per_block, --blocks_per_sm, --sms_free, --cpu_workers, --spare_engine,
  // --test_operators.
  uint32_t threads_per_block = 0;
  uint32_t blocks_per_sm = 0;
  uint32_t sms_free = 0;
  uint32_t cpu_workers = 0;
  bool spare_engine = true;
  bool test_operators = false;
  // --allow_shared_memory.
  bool allow_shared_memory = true;
  // --local_address: path of the socket for descriptors of shared memory; empty: none. Nothing
  // listens there without allow_shared_memory.
  std::string local_address;

  Limits limits;
  DeviceLimits device_limits;
};

// INVALID_ARGUMENT: a value that makes no sense, by flag.
absl::StatusOr<ServeOptions> ReadServeFlags();

}  // namespace resident

#endif  // RESIDENT_SERVER_FLAGS_H_
