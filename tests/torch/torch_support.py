"""What the tests of residentd.torch share: a daemon with lanes for each class of tests, and a lane for each test."""

import os
import pathlib
import sys
import tempfile
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent.parent / "python"))
import support  # noqa: E402
from support import residentd, unittest_main  # noqa: E402,F401

import torch  # noqa: E402

try:
    import residentd_lane  # noqa: F401
except ImportError:  # Python cannot import a C module from the wheel of a bundle.
    _folder = tempfile.TemporaryDirectory(prefix="residentd-lane-")
    for _wheel in (pathlib.Path(__file__).absolute().parent.parent.parent / "python").glob("residentd_lane-*.whl"):
        zipfile.ZipFile(_wheel).extractall(_folder.name)
        sys.path.append(_folder.name)

import residentd.torch as rt  # noqa: E402



def close(actual, expected):
    torch.testing.assert_close(actual, expected)


class TorchTest(support.PackageTest):
    """`self.lane` is the lane of the thread."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="torch-", dir="/tmp")
        cls.addClassCleanup(folder.cleanup)
        cls.FLAGS = (*cls.FLAGS, "--local_address={}/local".format(folder.name))
        super().setUpClass()

    def setUp(self):
        self.lane = rt.attach(self.rd)
        self.addCleanup(self.lane.close)

    def shared(self, values, dtype=None):
        """A tensor in shared memory with these values."""
        values = torch.as_tensor(values, dtype=dtype)
        made = rt.shared(tuple(values.shape), values.dtype)
        return made.copy_(values)
