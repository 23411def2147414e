// The daemon's local socket (--local_address), spoken by hand: any packet, any descriptors.
//
// Thread safety: functions without state of their own.
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

// A connection on which nothing was sent; the caller closes it. -1: errno says why not.
int ConnectLocal(const std::string& path, int type = 5 /* SOCK_SEQPACKET */);
// One packet. False: it was not sent.
bool SendLocal(int connection, const std::string& packet, const std::vector<int>& fds);
// Waits for the answer, or for the end of the connection.
LocalAnswer ReceiveLocal(int connection);
// All of that on a connection of its own.
LocalAnswer PassDescriptors(const std::string& path, const std::string& packet,
                            const std::vector<int>& fds);

// A memfd of so many bytes; the caller closes it.
int NewMemory(uint64_t bytes, bool shrink_sealed);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_SUPPORT_LOCAL_PACKETS_H_
