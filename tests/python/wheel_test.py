#!/usr/bin/python3
"""The wheel: the same bytes from each build, small, complete, and usable after an installation, quickly
imported."""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "cli")]
import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402

FOLDER = pathlib.Path("client/python").absolute()
PROTO = pathlib.Path("proto").absolute()
WHEEL = FOLDER / "residentd-0.1.0-py3-none-any.whl"
LIMIT_BYTES = 256 << 10
# Beyond what the packages take that it needs. Processor time, which other programs do not change much.
LIMIT_IMPORT_S = 0.3
IMPORTS = 5
README = HERE.parent.parent / "README.md"


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
        sources = {str(path.relative_to(FOLDER)) for path in (FOLDER / "residentd").glob("**/*.py")}
        self.assertIn("residentd/torch/__init__.py", sources)
        self.assertLessEqual(sources | {"residentd/py.typed", "residentd/descriptors.bin"}, names)
        self.assertFalse([name for name in names if name.endswith("_pb2.py")])
        lines = [line.replace("(", "").replace(")", "").replace('"', "'").split(": ", 1)
                 for line in metadata.partition("\n\n")[0].splitlines()]
        self.assertIn(["Requires-Python", ">=3.9"], lines)
        self.assertEqual({value for key, value in lines if key == "Provides-Extra"}, {"ray", "torch"})
        # Nothing else, and no upper bounds.
        self.assertEqual({value for key, value in lines if key == "Requires-Dist"},
                         {"grpcio >=1.51", "protobuf >=3.20.3", "numpy >=1.22",
                          "ray >=2.60 ; extra == 'ray'", "torch >=2.7 ; extra == 'torch'"})

    def test_the_first_example_runs_in_a_fresh_environment(self):
        example, printed = re.search(r"^```python\n(.*?)^```\n```text\n(.*?)^```", README.read_text(),
                                     re.DOTALL | re.MULTILINE).groups()
        daemon = daemons.Daemon()
        self.addCleanup(daemon.stop)
        with tempfile.TemporaryDirectory() as folder:
            # Without a network, the packages that it needs are those of the system.
            environment = dict(os.environ, HOME=folder)
            python = os.path.join(folder, "venv", "bin", "python")
            subprocess.run(["/usr/bin/python3", "-m", "venv", "--system-site-packages",
                            os.path.join(folder, "venv")], check=True, env=environment)
            subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet",
                            "--no-index", "--no-cache-dir", WHEEL], check=True, env=environment)
            program = os.path.join(folder, "first.py")
            pathlib.Path(program).write_text(example.replace("127.0.0.1:50051", daemon.address))
            done = subprocess.run([python, program], capture_output=True, text=True, cwd=folder,
                                  env=environment)
        self.assertEqual((done.stdout, done.stderr, done.returncode), (printed, "", 0))

    def install_source(self, folder, protos):
        """`pip install client/python` of a clone in `folder`; the package is in `folder`/site."""
        source = folder / "clone" / "client" / "python"
        shutil.copytree(FOLDER, source, ignore=shutil.ignore_patterns("*.bin", "*.whl", "build", "*.egg-info"))
        if protos:
            shutil.copytree(PROTO, folder / "clone" / "proto", ignore=lambda path, names: [
                name for name in names if "." in name and not name.endswith(".proto")])
        return subprocess.run(
            ["/usr/bin/python3", "-m", "pip", "--disable-pip-version-check", "install", "--no-build-isolation",
             "--no-index", "--no-deps", "--no-cache-dir", "--target", str(folder / "site"), str(source)],
            capture_output=True, text=True, env=dict(os.environ, HOME=str(folder)))

    def test_the_source_folder_can_be_installed(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.install_source(pathlib.Path(folder), protos=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            made = pathlib.Path(folder, "site", "residentd", "descriptors.bin").read_bytes()
            self.assertEqual(made, (FOLDER / "residentd" / "descriptors.bin").read_bytes())
            subprocess.run(["/usr/bin/python3", "-I", "-c", "import sys; sys.path.insert(0, {!r}); import residentd.aio"
                            .format(os.path.join(folder, "site"))], check=True, cwd="/")

    def test_a_source_folder_without_its_repository_says_what_to_do(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.install_source(pathlib.Path(folder), protos=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("residentd/descriptors.bin is missing", done.stdout + done.stderr)
            self.assertIn("make bundle", done.stdout + done.stderr)

    def test_its_import_is_quick(self):
        with tempfile.TemporaryDirectory() as folder:
            with zipfile.ZipFile(WHEEL) as wheel:
                wheel.extractall(folder)
            program = ("import sys, time; sys.path.insert(0, {!r})\n"
                       "import grpc, numpy, google.protobuf.message_factory, google.protobuf.descriptor_pb2\n"
                       "start = time.process_time(); import residentd; print(time.process_time() - start)"
                       ).format(folder)
            # The first one compiles the sources.
            times = [float(subprocess.run(["/usr/bin/python3", "-c", program], check=True,
                                          capture_output=True, text=True).stdout)
                     for _ in range(1 + IMPORTS)][1:]
        print("import: {:.3f} s".format(min(times)))
        self.assertLessEqual(min(times), LIMIT_IMPORT_S)

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
