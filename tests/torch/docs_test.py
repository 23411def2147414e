#!/usr/bin/env python3
"""Runs the Python blocks of docs/pytorch.md in order, and compares what they print. Those of the section "On a GPU" run
if there is one."""

import contextlib
import io
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import torch  # noqa: E402
import torch_support  # noqa: E402
from torch_support import unittest_main  # noqa: E402

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGE = pathlib.Path(__file__).absolute().parent.parent.parent / "docs" / "pytorch.md"


class GuideTest(torch_support.TorchTest):

    def test_the_guide(self):
        text = PAGE.read_text()
        self.assertIn("If your shapes are static, use a CUDA graph.", text[:200])
        if not torch.cuda.is_available():
            text = text[:text.index("\n## On a GPU\n")]
        blocks = BLOCK.findall(text)
        names = {"__name__": "__main__"}
        count = 0
        for (language, source), (following, expected) in zip(blocks, blocks[1:] + [("", "")]):
            if language != "python":
                continue
            count += 1
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(source.replace("127.0.0.1:50051", self.daemon.address), "pytorch.md", "exec"), names)
            if following == "text":
                self.assertEqual(printed.getvalue(), expected, source)
        self.assertEqual(count, 9 if torch.cuda.is_available() else 7)


if __name__ == "__main__":
    unittest_main.main()
