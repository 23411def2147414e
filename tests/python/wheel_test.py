#!/usr/bin/python3
"""The wheel: the same bytes from each build, small, complete, and usable after an installation."""

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path.insert(0, str(HERE.parent))
import unittest_main  # noqa: E402

FOLDER = pathlib.Path("client/python").absolute()
WHEEL = FOLDER / "residentd-0.1.0-py3-none-any.whl"
LIMIT_BYTES = 200 << 10


class Wheel(unittest.TestCase):

    def test_a_second_build_has_the_same_bytes(self):
        with tempfile.TemporaryDirectory() as folder:
            again = os.path.join(folder, "again.whl")
            subprocess.run([FOLDER / "build_wheel.sh", FOLDER, FOLDER / "residentd/descriptors.bin", again],
                           check=True, env=dict(os.environ, TZ="Pacific/Auckland", LC_ALL="C"))
            digests = {hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
                       for path in (WHEEL, again)}
        self.assertEqual(len(digests), 1)

    def test_it_is_small_and_complete(self):
        self.assertLessEqual(WHEEL.stat().st_size, LIMIT_BYTES)
        with zipfile.ZipFile(WHEEL) as wheel:
            names = set(wheel.namelist())
            metadata = wheel.read("residentd-0.1.0.dist-info/METADATA").decode()
        sources = {"residentd/" + path.name for path in (FOLDER / "residentd").glob("*.py")}
        self.assertLessEqual(sources | {"residentd/py.typed", "residentd/descriptors.bin"}, names)
        self.assertFalse([name for name in names if name.endswith("_pb2.py")])
        for line in ("Requires-Dist: grpcio (>=1.51)", "Requires-Dist: protobuf (>=3.20.3)",
                     "Requires-Dist: numpy (>=1.22)", "Requires-Python: >=3.9"):
            self.assertIn(line, metadata)

    def test_it_is_installed_and_imported(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["/usr/bin/python3", "-m", "pip", "--disable-pip-version-check", "install",
                            "--quiet", "--no-index", "--no-deps", "--no-cache-dir", "--target", folder,
                            WHEEL], check=True, env=dict(os.environ, HOME=folder))
            text = subprocess.run(
                ["/usr/bin/python3", "-I", "-c",
                 "import sys; sys.path.insert(0, {!r}); import residentd.aio; "
                 "print(residentd.__version__)".format(folder)],
                check=True, capture_output=True, text=True, cwd="/").stdout
        self.assertEqual(text, "0.1.0\n")


if __name__ == "__main__":
    unittest_main.main()
