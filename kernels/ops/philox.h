// Philox 4x32-10: random numbers as a function of a counter and a key (J. Salmon et al., "Parallel
// random numbers: as easy as 1, 2, 3", 2011), with the results of the library Random123.
//
//   const PhiloxWords words = Philox({{counter, 0, 0, 0}}, seed_low, seed_high);
#ifndef RESIDENT_KERNELS_OPS_PHILOX_H_
#define RESIDENT_KERNELS_OPS_PHILOX_H_

#include "kernels/sdk/operator.h"

namespace resident {

struct PhiloxWords {
  u32 words[4];
};

RESIDENT_HOST_DEVICE PhiloxWords Philox(PhiloxWords counter, u32 key_0, u32 key_1) {
  RESIDENT_UNROLL(1)
  for (i32 round = 0; round < 10; ++round) {
    const u64 product_0 = u64{0xd2511f53u} * counter.words[0];
    const u64 product_1 = u64{0xcd9e8d57u} * counter.words[2];
    counter = {{static_cast<u32>(product_1 >> 32) ^ counter.words[1] ^ key_0,
                static_cast<u32>(product_1),
                static_cast<u32>(product_0 >> 32) ^ counter.words[3] ^ key_1,
                static_cast<u32>(product_0)}};
    key_0 += 0x9e3779b9u;
    key_1 += 0xbb67ae85u;
  }
  return counter;
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_PHILOX_H_
