#include "tests/daemon/lane.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "runtime/base/process/descriptor_message.h"
#include "tests/support/local_packets.h"

namespace resident::testing {

TestLane::TestLane(const Daemon& daemon, const Client& client)
    : TestLane(daemon.Connect(), {{"resident-session", client.session()}}) {}

TestLane::TestLane(const std::shared_ptr<grpc::Channel>& channel, Metadata metadata)
    : metadata_(std::move(metadata)), lanes_(v1::Lanes::NewStub(channel)) {
  for (const auto& [name, value] : metadata_) context_.AddMetadata(name, value);
}

std::unique_ptr<grpc::ClientContext> TestLane::Context() const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  for (const auto& [name, value] : metadata_) context->AddMetadata(name, value);
  return context;
}

TestLane::~TestLane() {
  Detach();
  if (stream_ != nullptr) {
    context_.TryCancel();
    (void)stream_->Finish();
  }
  if (base_ != nullptr) munmap(base_, opened_.memory_bytes());
}

grpc::Status TestLane::Open(uint32_t slots, uint64_t data_bytes, uint32_t device) {
  v1::OpenLaneRequest request;
  request.set_slots(slots);
  request.set_data_bytes(data_bytes);
  request.set_device(device);
  stream_ = lanes_->Open(&context_, request);
  if (stream_->Read(&opened_)) return grpc::Status::OK;
  return Finish();
}

bool TestLane::Attach(const std::string& local_address) {
  socket_ = ConnectLocal(local_address);
  if (socket_ < 0 || !SendLocal(socket_, std::string(kLaneMagic) + opened_.token(), {}))
    return false;
  alignas(lane_welcome) char packet[4096];
  DescriptorMessage received;
  const ssize_t bytes = ReceiveDescriptorMessage(socket_, packet, sizeof(packet), 0, &received);
  const auto* const welcome = reinterpret_cast<const lane_welcome*>(packet);
  if (bytes != sizeof(lane_welcome) || welcome->code != 0) {
    attach_error_ = bytes > 4 ? std::string(packet + 4, static_cast<size_t>(bytes) - 4) : "";
    return false;
  }
  if (received.fds.size() != 1 || welcome->layout_hash != lane_layout_hash() ||
      welcome->slots != opened_.slots() || welcome->data_bytes != opened_.data_bytes()) {
    attach_error_ = "another answer";
    return false;
  }
  void* const base = mmap(nullptr, opened_.memory_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED,
                          received.fds[0].get(), 0);
  if (base == MAP_FAILED) return false;
  base_ = static_cast<uint8_t*>(base);
  return true;
}

grpc::Status TestLane::Finish() {
  v1::OpenLaneResponse more;
  while (stream_->Read(&more)) {
  }
  const grpc::Status status = stream_->Finish();
  stream_ = nullptr;
  return status;
}

void TestLane::Detach() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
}

grpc::Status TestLane::Bind(const std::vector<uint64_t>& ids, std::vector<uint32_t>* indices) {
  v1::BindLaneRequest request;
  request.set_lane_id(opened_.lane_id());
  for (const uint64_t id : ids) request.add_buffer_ids(id);
  v1::BindLaneResponse response;
  const grpc::Status status = lanes_->Bind(Context().get(), request, &response);
  if (indices != nullptr) indices->assign(response.indices().begin(), response.indices().end());
  return status;
}

grpc::Status TestLane::Prepare(v1::PrepareLaneRequest request, v1::PrepareLaneResponse* response) {
  request.set_lane_id(opened_.lane_id());
  v1::PrepareLaneResponse unused;
  return lanes_->Prepare(Context().get(), request, response ? response : &unused);
}

grpc::Status TestLane::Release(const std::vector<uint32_t>& buffers,
                               const std::vector<uint32_t>& calls) {
  v1::ReleaseLaneRequest request;
  request.set_lane_id(opened_.lane_id());
  for (const uint32_t buffer : buffers) request.add_buffers(buffer);
  for (const uint32_t call : calls) request.add_calls(call);
  v1::ReleaseLaneResponse response;
  return lanes_->Release(Context().get(), request, &response);
}

lane_slot* TestLane::slot(uint64_t sequence) const {
  return reinterpret_cast<lane_slot*>(base_ + lane_slots_offset()) + sequence % opened_.slots();
}

uint64_t TestLane::Submit(uint16_t call, const std::vector<uint64_t>& words, uint8_t flags,
                          uint8_t kind) {
  const uint64_t sequence = next_++;
  // Flow control: the slot's last submission must have ended.
  while (sequence - completed() >= opened_.slots() && state() != kLaneClosed) {
    std::this_thread::yield();
  }
  lane_slot* const to = slot(sequence);
  for (size_t w = 0; w < words.size(); ++w) {
    __atomic_store_n(&to->words[w], words[w], __ATOMIC_RELAXED);
  }
  __atomic_store_n(&to->head, lane_slot_head(sequence, call, kind, flags), __ATOMIC_RELEASE);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (asleep()) Ring();
  return sequence;
}

void TestLane::Ring() { (void)!send(socket_, "r", 1, MSG_NOSIGNAL | MSG_DONTWAIT); }

void TestLane::CancelBelow(uint64_t sequence) {
  __atomic_store_n(&reinterpret_cast<lane_client_page*>(base_)->cancel_below, sequence,
                   __ATOMIC_RELEASE);
  Ring();
}

void TestLane::SetStream(uint32_t stream, uint32_t value, bool ring) {
  __atomic_store_n(&reinterpret_cast<lane_client_page*>(base_)->stream[stream], uint64_t{value},
                   __ATOMIC_RELEASE);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (ring && asleep()) Ring();
}

uint32_t TestLane::signalled(uint32_t stream) const {
  return static_cast<uint32_t>(__atomic_load_n(&page()->stream[stream], __ATOMIC_ACQUIRE));
}

uint32_t TestLane::failed(uint32_t stream) const {
  return __atomic_load_n(&page()->stream_failed[stream], __ATOMIC_ACQUIRE);
}

LaneEnd TestLane::Await(uint64_t sequence) {
  const auto* const from =
      reinterpret_cast<lane_completion*>(base_ + lane_completions_offset(opened_.slots())) +
      sequence % opened_.slots();
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (true) {
    const bool over = state() == kLaneClosed || std::chrono::steady_clock::now() > until;
    const uint64_t head = __atomic_load_n(&from->head, __ATOMIC_ACQUIRE);
    if (lane_head_stamp(head) == lane_stamp(sequence)) {
      const uint64_t tail = __atomic_load_n(&from->tail, __ATOMIC_RELAXED);
      return {true,
              static_cast<uint8_t>(head >> 32),
              static_cast<uint8_t>(head >> 40),
              static_cast<uint16_t>(head >> 48),
              static_cast<uint32_t>(tail),
              static_cast<uint32_t>(tail >> 32)};
    }
    if (over) return {};
    std::this_thread::yield();
  }
}

uint32_t TestLane::state() const { return __atomic_load_n(&page()->state, __ATOMIC_ACQUIRE); }
bool TestLane::asleep() const { return __atomic_load_n(&page()->asleep, __ATOMIC_SEQ_CST) != 0; }
uint64_t TestLane::completed() const {
  return __atomic_load_n(&page()->completed, __ATOMIC_ACQUIRE);
}
std::string TestLane::refusal() const { return std::string(page()->refusal); }

v1::PrepareLaneRequest AddCall(uint64_t buffer, uint64_t elements) {
  v1::PrepareLaneRequest request;
  request.mutable_tasks()->set_operator_("add");
  request.mutable_tasks()->set_count(1);
  for (uint32_t a = 0; a < 3; ++a) {
    v1::BufferColumn& column = *request.mutable_tasks()->add_arguments()->mutable_buffer();
    column.add_buffer_ids(buffer);
    column.add_shape(elements);
    request.add_words()->mutable_place()->set_argument(a);
  }
  return request;
}

}  // namespace resident::testing
