#!/usr/bin/python3
"""Runs the Python blocks of the documents in order, and compares what they print."""

import contextlib
import io
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ROOT = support.HERE.parent.parent


class Documents(support.PackageTest):

    def run_blocks(self, path):
        blocks = BLOCK.findall((ROOT / path).read_text())
        names = {"__name__": "__main__"}
        count = 0
        for (language, text), (following, expected) in zip(blocks, blocks[1:] + [("", "")]):
            if language != "python":
                continue
            count += 1
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(text.replace("127.0.0.1:50051", self.daemon.address), path, "exec"), names)
            if following == "text":
                self.assertEqual(printed.getvalue(), expected, text)
        return count

    def test_the_guide(self):
        self.assertEqual(self.run_blocks("docs/python.md"), 17)

    def test_the_first_examples(self):
        self.assertEqual(self.run_blocks("README.md"), 1)
        self.assertEqual(self.run_blocks("client/python/README.md"), 1)

    def test_the_example(self):
        printed = io.StringIO()
        source = (ROOT / "client/python/example.py").read_text()
        with contextlib.redirect_stdout(printed):
            exec(compile(source.replace("127.0.0.1:50051", self.daemon.address), "example.py", "exec"),
                 {"__name__": "__main__"})
        self.assertEqual(printed.getvalue().count("\n"), 5, printed.getvalue())


if __name__ == "__main__":
    support.unittest_main.main()
