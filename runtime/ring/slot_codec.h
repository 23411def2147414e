// SlotCodec: writes and reads payloads of ring slots on the host (kernels/layout/ring_layout.h).
//
// Memory ordering: what the writer wrote before WriteSlot is visible to a reader for which IsReady
// returned true. WriteSlot and ReadSlotShared use relaxed atomic accesses for the payload, because
// a CPU worker may read a slot while another worker claims it; it then discards what it read.
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
  // The last chunk is checked first, because most slots in a scan are not ready.
  for (uint32_t c = kChunksPerSlot; c-- > 0;) {
    if (std::atomic_ref<u32>(slot.chunks[c].stamp).load(std::memory_order_acquire) != stamp) {
      return false;
    }
  }
  return true;
}

// For a reader that owns the slot: no thread writes the slot until this reader releases it.
template <typename Payload>
void ReadSlot(const RingSlot& slot, Payload* payload) {
  static_assert(sizeof(Payload) == kChunksPerSlot * kChunkPayloadBytes);
  static_assert(std::is_trivially_copyable_v<Payload>);
  auto* const to = reinterpret_cast<unsigned char*>(payload);
  for (uint32_t c = 0; c < kChunksPerSlot; ++c) {
    std::memcpy(to + c * kChunkPayloadBytes, slot.chunks[c].payload, kChunkPayloadBytes);
  }
}

// For readers that compete for the slot. If another reader has claimed the slot meanwhile, the
// payload may be torn and must be discarded.
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
