// Fuzz target: the header of a safetensors file. What is accepted must cover the data exactly.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "runtime/model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  // The first byte is the size of the data.
  const uint64_t data_bytes = data[0];
  const auto tensors = resident::ParseSafetensorsHeader(
      std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1), data_bytes);
  if (!tensors.ok()) return 0;
  uint64_t end = 0;
  for (const resident::SafetensorsTensor& tensor : *tensors) {
    if (tensor.begin != end || tensor.end < tensor.begin) std::abort();
    end = tensor.end;
  }
  if (end != data_bytes) std::abort();
  return 0;
}
