// Accesses the daemon's local socket (--local_address) directly: with any packet and any
// descriptors.
//
// Thread safety: functions without state.
//
//   const LocalAnswer answer = PassDescriptors(path, "residfd1" + session, {memory.fd()});
//   EXPECT_EQ(answer.code, 0);
#ifndef RESIDENT_TESTS_SUPPORT_LOCAL_PACKETS_H_
#define RESIDENT_TESTS_SUPPORT_LOCAL_PACKETS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace resident::testing {

struct LocalAnswer {
  // A status code of gRPC; -1: the connection ended without an answer.
  int code = -1;
  // The token, or the error's message.
  std::string text;
};

// Opens a connection without sending anything; the caller closes it. Returns -1 and sets
// errno on failure.
int ConnectLocal(const std::string& path, int type = 5 /* SOCK_SEQPACKET */);
// Sends one packet. False: it was not sent.
bool SendLocal(int connection, const std::string& packet, const std::vector<int>& fds);
// Waits for the answer or the end of the connection.
LocalAnswer ReceiveLocal(int connection);
// Connects, sends one packet and receives the answer.
LocalAnswer PassDescriptors(const std::string& path, const std::string& packet,
                            const std::vector<int>& fds);

// Creates a memfd of this size; the caller closes it.
int NewMemory(uint64_t bytes, bool shrink_sealed);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_SUPPORT_LOCAL_PACKETS_H_
