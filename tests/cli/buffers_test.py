#!/usr/bin/env python3
"""`residentctl buffers` against a real daemon.

The last line is `N passed, N failed`.
"""

import json
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


def write_safetensors(path, tensors):
    """Writes a file of tensors by name: the format's dtype, shape, and elements. Elements that are
    missing at the end of the last one are not written."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        size = {"F32": 4, "BF16": 2, "U8": 1}[dtype]
        for dim in shape:
            size *= dim
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text +
                     b"".join(data for _, _, data in tensors.values()))


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

    def test_load_makes_named_buffers_of_a_safetensors_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "model.safetensors")
            big = struct.pack("<f", 0.5) * (3 << 20)  # Several pieces.
            small = struct.pack("<6f", *range(6))
            write_safetensors(path, {"norm.weight": ("F32", [2, 3], small),
                                     "none": ("BF16", [0, 4], b""),
                                     "big": ("F32", [3 << 20], big)})
            loaded = self.ctl("buffers", "load", path, "--prefix=m.", "--json").json
            self.assertEqual(loaded["without_elements"], 1)
            self.assertEqual(sorted(each["name"] for each in loaded["buffers"]),
                             ["m.big", "m.norm.weight"])
            try:
                # By name, in every command that takes a buffer.
                sums = self.ctl("run", "sum_rows", "x=buffer:m.norm.weight", "out:2=", "--json").json
                self.assertEqual(sums["outputs"]["out"]["values"], [3, 12])
                target = pathlib.Path(folder, "out")
                self.ctl("buffers", "download", "m.big", target)
                self.assertEqual(target.read_bytes(), big)
                self.assertIn("'m.norm.weight'", self.ctl("run", "sum_rows", "x=buffer:m.norm.weigh",
                                                          "out:2=", code=REFUSED).err)
                # A second time, the names exist; nothing is left behind.
                self.assertIn("--prefix", self.ctl("buffers", "load", path, "--prefix=m.",
                                                   code=REFUSED).err)
                again = self.ctl("buffers", "alloc", "1", "--name=m.big", "--json").json["id"]
                self.assertIn("2 buffers", self.ctl("buffers", "free", "m.big", code=REFUSED).err)
                self.ctl("buffers", "free", again)
            finally:
                self.ctl("buffers", "free", "m.norm.weight", "m.big")
            self.assertEqual(self.ctl("buffers", "--json").json["buffers"], [])

    def test_the_daemon_loads_a_file_of_its_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            daemon = daemons.Daemon("--load_dir=" + folder)
            self.addCleanup(daemon.stop)
            models = pathlib.Path(folder, "models")
            models.mkdir()
            path = models / "model.safetensors"
            big = bytes(range(256)) * (40 << 10)  # Several pieces.
            write_safetensors(path, {"norm": ("F32", [2, 3], struct.pack("<6f", *range(6))),
                                     "none": ("BF16", [0, 4], b""),
                                     "big": ("U8", [len(big)], big)})

            def load(*words, code=daemons.OK):
                return self.check(daemon.ctl("buffers", "load", "--on_daemon", *words), code)

            def names():
                listed = self.check(daemon.ctl("buffers", "--json"), daemons.OK).json["buffers"]
                return sorted(each["name"] for each in listed)

            made = load("models/model.safetensors", "--prefix=m.", "--json").json["buffers"]
            self.assertEqual(sorted(each["name"] for each in made), ["m.big", "m.norm"])
            self.assertEqual(names(), ["m.big", "m.norm"])
            sums = daemon.ctl("run", "sum_rows", "x=buffer:m.norm", "out:2=", "--json").json
            self.assertEqual(sums["outputs"]["out"]["values"], [3, 12])
            target = pathlib.Path(folder, "out")
            self.check(daemon.ctl("buffers", "download", "m.big", target), daemons.OK)
            self.assertEqual(target.read_bytes(), big)

            # What is refused leaves nothing behind.
            self.assertIn("'m.norm'", load("models/model.safetensors", "--prefix=m.",
                                           code=REFUSED).err)
            self.assertIn("no file 'models/other'", load("models/other", code=REFUSED).err)
            self.assertIn("leaves", load("../" + path.name, code=REFUSED).err)
            self.assertIn("leaves", load("/etc/hostname", code=REFUSED).err)
            self.assertIn("not a regular file", load("models", code=REFUSED).err)
            (models / "bad").write_bytes(struct.pack("<Q", 1 << 60) + bytes(8))
            self.assertIn("longer than the file", load("models/bad", code=REFUSED).err)
            # The second tensor does not fit into the device's memory; the file has no blocks.
            large = models / "large"
            write_safetensors(large, {"a": ("U8", [1024], bytes(1024)), "b": ("U8", [8 << 30], b"")})
            with open(large, "r+b") as file:
                file.truncate(large.stat().st_size + (8 << 30))
            load("models/large", code=REFUSED)
            with open(path, "r+b") as file:
                file.truncate(path.stat().st_size - 1)
            self.assertIn("model.safetensors", load("models/model.safetensors", code=REFUSED).err)
            self.assertEqual(names(), ["m.big", "m.norm"])

    def test_a_daemon_without_a_folder_loads_no_file(self):
        self.assertIn("--load_dir", self.ctl("buffers", "load", "--on_daemon", "x",
                                             code=REFUSED).err)

    def test_load_refuses_a_hostile_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "model.safetensors")
            for header, length, error in (
                ('{"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}}', None,
                 "overflows"),
                ('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,400]}}', None, "range 0 to 400"),
                ('{"a":{"dtype":"X","shape":[1],"data_offsets":[0,4]}}', None, "dtype 'X'"),
                ("{}", 1 << 60, "longer than the file"),
            ):
                data = header.encode()
                path.write_bytes(struct.pack("<Q", len(data) if length is None else length) + data +
                                 bytes(4))
                self.assertIn(error, self.ctl("buffers", "load", path, code=USAGE).err)
            self.assertIn("cannot open", self.ctl("buffers", "load", folder + "/none",
                                                  code=USAGE).err)
        self.assertEqual(self.ctl("buffers", "--json").json["buffers"], [])

    def test_load_frees_its_buffers_if_there_is_too_little_memory(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "model.safetensors")
            # The second tensor does not fit into the device's memory; the file has no blocks.
            write_safetensors(path, {"a": ("U8", [1024], bytes(1024)), "b": ("U8", [8 << 30], b"")})
            with open(path, "r+b") as file:
                file.truncate(path.stat().st_size + (8 << 30))
            self.ctl("buffers", "load", path, code=REFUSED)
        self.assertEqual(self.ctl("buffers", "--json").json["buffers"], [])

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
