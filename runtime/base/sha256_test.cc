#include "runtime/base/sha256.h"

#include <gtest/gtest.h>

namespace resident {
namespace {

TEST(Sha256, KnownDigests) {  // FIPS 180-2, appendix B.
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256, TheHashDependsOnWhereAFieldEnds) {
  EXPECT_NE(Sha256().Field("ab").Field("c").Hex(), Sha256().Field("a").Field("bc").Hex());
}

}  // namespace
}  // namespace resident
