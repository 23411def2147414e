"""Makes residentd/descriptors.bin when the package is built from its source folder.

pyproject.toml describes the package. bazel build //client/python:wheel makes the file itself, and then this
file is not used.
"""

import os
import pathlib
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent
PROTO = HERE.parent.parent / "proto"
# In the order of BUILD.bazel, so that both make the same bytes.
FILES = ["resident/v1/admin.proto", "resident/v1/buffers.proto", "google/rpc/error_details.proto",
         "resident/v1/executor.proto", "resident/v1/graphs.proto", "resident/v1/lanes.proto", "resident/v1/models.proto",
         "resident/v1/operators.proto"]
FIX = ("Fix: install the wheel that `make bundle` (or bazel build //client/python:wheel) makes, or install the "
       "package from a clone of the whole repository, with protoc or grpcio-tools")


def make_descriptors(output):
    if not all((PROTO / name).is_file() for name in FILES):
        sys.exit("residentd/descriptors.bin is missing, and {} has not the files of which it is made. {}".format(
            PROTO, FIX))
    arguments = ["-I" + str(PROTO), "--include_imports", "--descriptor_set_out=" + str(output)] + FILES
    if shutil.which("protoc"):
        subprocess.run(["protoc"] + arguments, check=True)
        return
    try:
        import grpc_tools
        from grpc_tools import protoc
    except ImportError:
        sys.exit("residentd/descriptors.bin is missing, and there is neither protoc nor grpcio-tools to make "
                 "it. {}".format(FIX))
    include = os.path.join(os.path.dirname(grpc_tools.__file__), "_proto")
    if protoc.main(["protoc", "-I" + include] + arguments) != 0:
        sys.exit("residentd/descriptors.bin cannot be made of {}. {}".format(PROTO, FIX))


class BuildWithDescriptors(build_py):
    """build_py, with descriptors.bin in its output."""

    def run(self):
        super().run()
        made = pathlib.Path(self.build_lib) / "residentd" / "descriptors.bin"
        if not (HERE / "residentd" / "descriptors.bin").is_file():
            made.parent.mkdir(parents=True, exist_ok=True)
            make_descriptors(made)


setup(cmdclass={"build_py": BuildWithDescriptors})
