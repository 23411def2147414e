// SlotCodec: payloads in and out of ring slots, on the host's side (kernels/layout/ring_layout.h).
//
// Memory ordering: what the writer wrote before WriteSlot is visible to a reader for whom IsReady
// returned true. The payload is written and read by relaxed atomic accesses, because a CPU worker
// may read a slot that another worker takes; what it read is then not used.
#ifndef RESIDENT_RUNTIME_RING_SLOT_CODEC_H_
#define RESIDENT_RUNTIME_RING_SLOT_CODEC_H_

#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/layout/ring_layout.h"

namespace resident {

inline constexpr uint32_t kWordsPerChunk = kChunkPayloadBytes / sizeof(u32);

// Payload: TaskDescriptor or TaskCompletion.
template <typename Payload>
void WriteSlot(RingSlot& slot, const Payload& payload, uint64_t sequence) {
  static_assert(sizeof(Payload) == kChunksPerSlot * kChunkPayloadBytes);
  static_assert(std::is_trivially_copyable_v<Payload>);
  u32 words[kChunksPerSlot * kWordsPerChunk];
  std::memcpy(words, &payload, sizeof(words));
  for (uint32_t c = 0; c < kChunksPerSlot; ++c) {
    StampedChunk& chunk = slot.chunks[c];
    for (uint32_t w = 0; w < kWordsPerChunk; ++w) {
      std::atomic_ref<u32>(chunk.payload[w])
          .store(words[kWordsPerChunk * c + w], std::memory_order_relaxed);
    }
    // The release orders the payload before the stamp.
    std::atomic_ref<u32>(chunk.stamp).store(Stamp(sequence), std::memory_order_release);
  }
}

// Whether the slot holds the payload of task `sequence`.
inline bool IsReady(RingSlot& slot, uint64_t sequence) {
  const u32 stamp = Stamp(sequence);
  // The last chunk first: a scan mostly meets slots that are not ready.
  for (uint32_t c = kChunksPerSlot; c-- > 0;) {
    if (std::atomic_ref<u32>(slot.chunks[c].stamp).load(std::memory_order_acquire) != stamp) {
      return false;
    }
  }
  return true;
}

// For the reader that the slot is meant for: nobody writes it until it is given back.
template <typename Payload>
void ReadSlot(const RingSlot& slot, Payload* payload) {
  static_assert(sizeof(Payload) == kChunksPerSlot * kChunkPayloadBytes);
  static_assert(std::is_trivially_copyable_v<Payload>);
  auto* const to = reinterpret_cast<unsigned char*>(payload);
  for (uint32_t c = 0; c < kChunksPerSlot; ++c) {
    std::memcpy(to + c * kChunkPayloadBytes, slot.chunks[c].payload, kChunkPayloadBytes);
  }
}

// For readers that compete: what one reads while another has taken the slot may be torn, and is not
// used.
template <typename Payload>
void ReadSlotShared(RingSlot& slot, Payload* payload) {
  static_assert(sizeof(Payload) == kChunksPerSlot * kChunkPayloadBytes);
  static_assert(std::is_trivially_copyable_v<Payload>);
  u32 words[kChunksPerSlot * kWordsPerChunk];
  for (uint32_t i = 0; i < kChunksPerSlot * kWordsPerChunk; ++i) {
    words[i] = std::atomic_ref<u32>(slot.chunks[i / kWordsPerChunk].payload[i % kWordsPerChunk])
                   .load(std::memory_order_relaxed);
  }
  std::memcpy(static_cast<void*>(payload), words, sizeof(words));
}

}  // namespace resident

#endif  // RESIDENT_RUNTIME_RING_SLOT_CODEC_H_
