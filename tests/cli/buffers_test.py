#!/usr/bin/env python3
"""`residentctl buffers` against a real daemon.

The last line is `N passed, N failed`.
"""

import pathlib
import struct
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402
from daemon import USAGE, REFUSED, NOT_WRITTEN  # noqa: E402


class Buffers(daemons.DaemonTest):
    """Buffers in device memory."""

    def test_buffers_from_allocation_to_free(self):
        made = self.ctl("buffers", "alloc", "2x3", "--name=weights", "--json").json
        buffer = str(made["id"])
        self.assertEqual((made["dtype"], made["shape"], made["size_bytes"]), ("f32", [2, 3], 24))
        try:
            listed = self.ctl("buffers", "--json").json["buffers"]
            entry = [each for each in listed if each["id"] == made["id"]][0]
            self.assertTrue(entry["durable"])
            self.assertEqual(entry["name"], "weights")
            self.assertRegex(self.ctl("buffers", "list").out, r"2x3 +24 B +durable +weights")
            data = struct.pack("<6f", *range(6))
            with tempfile.TemporaryDirectory() as folder:
                source, target = pathlib.Path(folder, "in"), pathlib.Path(folder, "out")
                source.write_bytes(data)
                self.ctl("buffers", "upload", buffer, source)
                self.ctl("buffers", "download", buffer, target)
                self.assertEqual(target.read_bytes(), data)
                source.write_bytes(data + b"more")
                self.ctl("buffers", "upload", buffer, source, code=REFUSED)
            sums = self.ctl("run", "sum_rows", "x=buffer:" + buffer, "out:2=", "--json").json
            self.assertEqual(sums["outputs"]["out"]["values"], [3, 12])
            self.ctl("buffers", "persist", buffer)
        finally:
            self.ctl("buffers", "free", buffer)
        self.ctl("buffers", "free", buffer, code=REFUSED)

    def test_download_names_a_file_that_it_cannot_write(self):
        buffer = str(self.ctl("buffers", "alloc", "4", "--json").json["id"])
        try:
            self.assertIn("cannot write /nonexistent/x", self.ctl(
                "buffers", "download", buffer, "/nonexistent/x", code=USAGE).err)
            self.assertIn("cannot write /dev/full", self.ctl(
                "buffers", "download", buffer, "/dev/full", code=NOT_WRITTEN).err)
            # Raw elements are not JSON.
            result = self.ctl("buffers", "download", buffer, "-", "--json", code=USAGE)
            self.assertEqual(result.out, "")
            self.assertIn("--json", result.error["message"])
            self.ctl("buffers", "upload", buffer, "-", stdin="sixteen letters.")
            self.assertEqual(self.ctl("buffers", "download", buffer, "-").out, "sixteen letters.")
        finally:
            self.ctl("buffers", "free", buffer)

    def test_an_unknown_buffer(self):
        for words in (("free", "987654"), ("persist", "987654"),
                      ("upload", "987654", "/dev/null"), ("upload", "987654", __file__),
                      ("download", "987654", "/dev/null")):
            result = self.ctl("buffers", *words, "--json", code=REFUSED)
            self.assertEqual(result.error["code"], "NOT_FOUND", result)


if __name__ == "__main__":
    unittest_main.main()
