#!/usr/bin/python3
"""The wheel residentd-lane: the same bytes from each build, small, and usable after an installation where the tags of
its name promise it."""

import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent.parent))
import unittest_main  # noqa: E402

FOLDER = pathlib.Path("client/python").absolute()
WHEEL, = FOLDER.glob("residentd_lane-*.whl")
FILES = [FOLDER / "residentd_lane" / "__init__.py", FOLDER / "residentd_lane" / "_lane.abi3.so",
         pathlib.Path("client/lane/libresidentd_lane.so").absolute()]
LIMIT_BYTES = 100 << 10


class LaneWheel(unittest.TestCase):

    def test_a_second_build_has_the_same_bytes(self):
        with tempfile.TemporaryDirectory() as folder:
            again = pathlib.Path(folder) / WHEEL.name
            subprocess.run([FOLDER / "build_lane_wheel.sh", again, *FILES], check=True,
                           env=dict(os.environ, TZ="Pacific/Auckland", LC_ALL="C"))
            digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (WHEEL, again)}
        self.assertEqual(len(digests), 1)

    def test_it_is_small_and_complete(self):
        self.assertLessEqual(WHEEL.stat().st_size, LIMIT_BYTES)
        with zipfile.ZipFile(WHEEL) as wheel:
            names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        self.assertEqual(names, {"residentd_lane/" + path.name for path in FILES})

    def test_it_needs_no_more_than_its_tags_say(self):
        glibc = tuple(map(int, re.search(r"manylinux_([0-9]+)_([0-9]+)_", WHEEL.name).groups()))
        for library in FILES[1:]:
            text = subprocess.run(["objdump", "-p", library], check=True, capture_output=True, text=True).stdout
            self.assertLessEqual(set(re.findall("NEEDED +(.*)", text)), {"libc.so.6", "ld-linux-x86-64.so.2"})
            versions = {tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([0-9.]+)", text)}
            self.assertLessEqual(max(versions)[:2], glibc)

    def test_it_is_installed_and_imported(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["/usr/bin/python3", "-m", "pip", "--disable-pip-version-check", "install", "--quiet",
                            "--no-index", "--no-deps", "--no-cache-dir", "--target", folder, WHEEL], check=True,
                           env=dict(os.environ, HOME=folder))
            text = subprocess.run(
                ["/usr/bin/python3", "-I", "-c",
                 "import sys; sys.path.insert(0, {!r}); from residentd_lane import _lane; "
                 "_lane.load({!r}); print(sorted(each for each in dir(_lane) if each[0] != '_'))".format(
                     folder, os.path.join(folder, "residentd_lane", "libresidentd_lane.so"))],
                check=True, capture_output=True, text=True, cwd="/").stdout
        self.assertEqual(text, "['addresses', 'call', 'load', 'put', 'record', 'submit', 'submit_all', 'wait']\n")


if __name__ == "__main__":
    unittest_main.main()
