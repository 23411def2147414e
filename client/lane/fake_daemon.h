// A daemon that a test plays, for the client's library: a socket, a memory object, and the daemon's
// side of the format.
//
//   Pair pair;
//   residentd_lane_submit(pair.lane, call, words, n, 0);
//   EXPECT_TRUE(pair.daemon.Take().has_value());
//
// Thread safety: one thread at a time, beside the client's.
#ifndef RESIDENT_CLIENT_LANE_FAKE_DAEMON_H_
#define RESIDENT_CLIENT_LANE_FAKE_DAEMON_H_

#include <gtest/gtest.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/lane/residentd_lane.h"
#include "runtime/base/process/descriptor_message.h"
#include "runtime/lane/lane_layout.h"

namespace resident::testing {

inline constexpr uint32_t kSlots = 64;
inline constexpr uint64_t kDataBytes = 4096;
inline constexpr char kToken[] = "00112233445566778899aabbccddeeff";

class FakeDaemon {
 public:
  explicit FakeDaemon(uint64_t data_bytes = kDataBytes, uint64_t first = 0) : next_(first) {
    // A socket's path is short, that of Bazel's folders is not.
    char folder[] = "/tmp/lane_test_XXXXXX";
    EXPECT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    path_ = folder_ + "/socket";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    EXPECT_LT(path_.size(), sizeof(address.sun_path));
    memcpy(address.sun_path, path_.data(), path_.size());
    listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    bytes_ = lane_bytes(kSlots, data_bytes);
    memory_ = memfd_create("lane", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(memory_, static_cast<off_t>(bytes_)), 0);
    void* const base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0);
    EXPECT_NE(base, MAP_FAILED);
    base_ = static_cast<uint8_t*>(base);
    page()->state = kLaneOpen;
    page()->completed = first;
    welcome_ = {0, lane_layout_hash(), kSlots, 0, data_bytes};
  }
  ~FakeDaemon() {
    End();
    close(listener_);
    close(memory_);
    munmap(base_, bytes_);
    unlink(path_.c_str());
    rmdir(folder_.c_str());
  }

  // Attaches a client; returns what residentd_lane_attach returned.
  int Attach(residentd_lane** lane, std::optional<std::string> refusal = std::nullopt) {
    std::thread accepting([&] { Accept(refusal); });
    const int code = residentd_lane_attach(path_.c_str(), kToken, lane);
    accepting.join();
    return code;
  }

  // Ends the connection, as if the process had ended.
  void End() {
    if (connection_ >= 0) close(connection_);
    connection_ = -1;
  }

  lane_welcome& welcome() { return welcome_; }
  lane_daemon_page* page() { return reinterpret_cast<lane_daemon_page*>(base_ + kLanePageBytes); }
  lane_client_page* client() { return reinterpret_cast<lane_client_page*>(base_); }
  uint8_t* data() { return base_ + lane_data_offset(kSlots); }
  lane_completion* completion(uint64_t sequence) {
    return reinterpret_cast<lane_completion*>(base_ + lane_completions_offset(kSlots)) +
           sequence % kSlots;
  }

  // The next submission, if it is published.
  std::optional<lane_slot> Take() {
    const lane_slot* const from =
        reinterpret_cast<lane_slot*>(base_ + lane_slots_offset()) + next_ % kSlots;
    lane_slot slot;
    slot.head = __atomic_load_n(&from->head, __ATOMIC_ACQUIRE);
    if (lane_head_stamp(slot.head) != lane_stamp(next_)) return std::nullopt;
    for (int i = 0; i < kLaneWords; ++i)
      slot.words[i] = __atomic_load_n(&from->words[i], __ATOMIC_RELAXED);
    ++next_;
    return slot;
  }

  void Complete(uint64_t sequence, uint8_t status = kLaneOk, uint16_t detail = 0,
                uint8_t flags = 0) {
    lane_completion* const to = completion(sequence);
    __atomic_store_n(&to->tail, lane_completion_tail(1234, 7), __ATOMIC_RELAXED);
    __atomic_store_n(&to->head, lane_completion_head(sequence, status, flags, detail),
                     __ATOMIC_RELEASE);
  }
  void SetCompleted(uint64_t completed) {
    __atomic_store_n(&page()->completed, completed, __ATOMIC_RELEASE);
  }
  // As the daemon does it after completions.
  void Wake() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&client()->sleeping, __ATOMIC_RELAXED) == 0) return;
    __atomic_fetch_add(&page()->wakes, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &page()->wakes, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }

  // Bytes on the socket.
  int CountRings() {
    int rings = 0;
    char byte;
    while (recv(connection_, &byte, 1, MSG_DONTWAIT) == 1) ++rings;
    return rings;
  }
  void WaitForRing() {
    pollfd polled{connection_, POLLIN, 0};
    ASSERT_EQ(poll(&polled, 1, 60'000), 1);
    CountRings();
  }
  bool ClientHasEnded() {
    pollfd polled{connection_, POLLRDHUP, 0};
    return poll(&polled, 1, 60'000) == 1;
  }

 private:
  void Accept(const std::optional<std::string>& refusal) {
    connection_ = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    ASSERT_GE(connection_, 0);
    char request[128];
    const ssize_t bytes = recv(connection_, request, sizeof(request), 0);
    ASSERT_EQ(std::string(request, static_cast<size_t>(std::max<ssize_t>(bytes, 0))),
              absl::StrCat(kLaneMagic, kToken));
    if (refusal.has_value()) {
      const std::string packet = std::string("\5\0\0\0", 4) + *refusal;
      ASSERT_EQ(send(connection_, packet.data(), packet.size(), 0),
                static_cast<ssize_t>(packet.size()));
      return;
    }
    const std::string packet(reinterpret_cast<const char*>(&welcome_), sizeof(welcome_));
    ASSERT_EQ(resident::SendDescriptorMessage(connection_, packet, memory_),
              static_cast<ssize_t>(packet.size()));
  }

  std::string folder_, path_;
  int listener_ = -1;
  int connection_ = -1;
  int memory_ = -1;
  uint64_t bytes_ = 0;
  uint8_t* base_ = nullptr;
  lane_welcome welcome_;
  uint64_t next_;
};

// A daemon and an attached client.
struct Pair {
  explicit Pair(uint64_t first = 0) : daemon(kDataBytes, first) {
    EXPECT_EQ(daemon.Attach(&lane), RESIDENTD_LANE_OK) << residentd_lane_last_error();
  }
  ~Pair() { residentd_lane_detach(lane); }

  FakeDaemon daemon;
  residentd_lane* lane = nullptr;
};

}  // namespace resident::testing

#endif  // RESIDENT_CLIENT_LANE_FAKE_DAEMON_H_
