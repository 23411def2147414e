#include "runtime/operator_set/source_notes.h"

#include "gtest/gtest.h"

namespace resident::cli {
namespace {

TEST(SourceNotesTest, ReadsNotesFromComments) {
  const SourceNotes notes = ReadSourceNotes(
      "// A copyright.\n"
      "// signature: x: in f32[*S], out: out f32[*S],\r\n"
      "//            alpha: scalar f32 = 1\n"
      "  // split: out 4096\n"
      "//summary: out = x * sigmoid(alpha * x)\n"
      "#include \"resident/operator.h\"\n");
  EXPECT_EQ(notes.signature, "x: in f32[*S], out: out f32[*S], alpha: scalar f32 = 1");
  EXPECT_EQ(notes.split, "out 4096");
  EXPECT_EQ(notes.summary, "out = x * sigmoid(alpha * x)");
}

TEST(SourceNotesTest, ANoteEndsWithALineThatIsNotIndented) {
  const SourceNotes notes = ReadSourceNotes(
      "// summary: one\n"
      "// two\n"
      "\n"
      "//    three\n");
  EXPECT_EQ(notes.summary, "one");
}

TEST(SourceNotesTest, TheFirstNoteOfAKeyApplies) {
  const SourceNotes notes = ReadSourceNotes("// split: out 1\n// split: out 2\n//    more\n");
  EXPECT_EQ(notes.split, "out 1");
}

TEST(SourceNotesTest, CodeIsNotANote) {
  const SourceNotes notes = ReadSourceNotes("int x; // signature: y: in f32[]\nsplit: goto a;\n");
  EXPECT_EQ(notes.signature, "");
  EXPECT_EQ(notes.split, "");
  EXPECT_EQ(ReadSourceNotes("").signature, "");
  EXPECT_EQ(ReadSourceNotes("// signature:").signature, "");
}

}  // namespace
}  // namespace resident::cli
