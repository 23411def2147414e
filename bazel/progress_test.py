#!/usr/bin/env python3
"""bazel/progress: how far a build is, on a terminal and in a log."""

import importlib.machinery
import importlib.util
import io
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests"))
import unittest_main  # noqa: E402

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "progress")
LOADER = importlib.machinery.SourceFileLoader("progress", SCRIPT)
progress = importlib.util.module_from_spec(importlib.util.spec_from_loader("progress", LOADER))
LOADER.exec_module(progress)


class ProgressTest(unittest.TestCase):
    def setUp(self):
        self.now = 0
        self.out = io.StringIO()

    def display(self, terminal, width=80):
        return progress.Display(self.out, terminal, width, clock=lambda: self.now)

    def test_a_log_has_a_line_every_30_seconds(self):
        display = self.display(terminal=False)
        for self.now in range(0, 91):
            display.read("[{} / 1,604] Compiling a.cc; 3s local ... (2 actions running)\n".format(self.now))
        self.assertEqual(
            ["[30 of 1,604, 0:30] Compiling a.cc", "[60 of 1,604, 1:00] Compiling a.cc",
             "[90 of 1,604, 1:30] Compiling a.cc"], self.out.getvalue().splitlines())

    def test_a_terminal_has_one_line_that_is_rewritten(self):
        display = self.display(terminal=True, width=26)
        display.read("\x1b[32m[1 / 20]\x1b[0m Compiling a_long_name.cc\n")
        self.now = 1
        display.read("\x1b[32m[2 / 20]\x1b[0m Linking b\n")
        display.clear()
        self.assertEqual(
            "\r\x1b[K[1 of 20, 0:00] Compiling\r\x1b[K[2 of 20, 0:01] Linking b\r\x1b[K", self.out.getvalue())

    def test_errors_are_printed_as_they_are(self):
        for terminal in (False, True):
            with self.subTest(terminal=terminal):
                self.out = io.StringIO()
                display = self.display(terminal)
                display.read("[1 / 20] Compiling a.cc\n")
                display.read("ERROR: a.cc:1:2: [1 / 0] is no number\n")
                self.assertTrue(self.out.getvalue().endswith("ERROR: a.cc:1:2: [1 / 0] is no number\n"))

    def test_loading_has_no_counts(self):
        self.now = 40
        display = self.display(terminal=True)
        display.read("Loading: 12 packages loaded\n")
        self.assertIn("[loading, 0:00] 12 packages loaded", self.out.getvalue())


if __name__ == "__main__":
    unittest_main.main()
