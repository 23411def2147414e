"""What the tests of the Python package share: the package, and a daemon for each class of tests.

The package is that of this tree in a test of Bazel, otherwise the wheel of a bundle or of Bazel's
outputs, or with $RESIDENT_INSTALLED_PACKAGE the one that is installed.
"""

import os
import pathlib
import shutil
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "cli")]


def package_path():
    root = HERE.parent.parent
    folder = root / "client" / "python"
    if (folder / "residentd" / "descriptors.bin").exists():
        return folder
    for outputs in (root / "python", root / "bazel-bin" / "client" / "python"):
        for wheel in outputs.glob("residentd-*.whl"):  # Python imports from it as from a folder.
            return wheel
    sys.exit("no package residentd. Fix: bazel build //client/python:wheel")


if not os.environ.get("RESIDENT_INSTALLED_PACKAGE"):
    sys.path.insert(0, str(package_path()))

import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402,F401

import residentd  # noqa: E402
from residentd.descriptors import message  # noqa: E402,F401

WAIT_S = 60  # For a state that must come.


class PackageTest(unittest.TestCase):
    """All tests of a class share a daemon and a client."""

    FLAGS = ()
    OPTIONS = {}

    @classmethod
    def setUpClass(cls):
        cls.daemon = daemons.Daemon(*cls.FLAGS)
        cls.addClassCleanup(cls.daemon.stop)
        cls.rd = cls.connect()
        cls.addClassCleanup(cls.rd.close)

    @classmethod
    def connect(cls, **options):
        return residentd.connect(cls.daemon.address, **dict(cls.OPTIONS, **options))

    @classmethod
    def start_at(cls, address, *flags):
        """Starts the daemon of the tests at this address. Meanwhile a connection of another program may
        have its port."""
        while True:
            try:
                cls.daemon = daemons.Daemon("--address=" + address, *flags)
                break
            except RuntimeError as error:
                if "Address already in use" not in str(error):
                    raise
        cls.addClassCleanup(cls.daemon.stop)

    def stop_daemon(self, kill=False):
        """Ends the daemon, and waits until the client has noted the end of its session: until then it
        passes memory of this session to the next daemon."""
        self.rd._connection.session()  # Opens one if there is none.
        memory = self.rd._operations.memory
        session = memory.session
        if kill:
            self.daemon.process.kill()
        self.daemon.stop()
        self.wait_for(lambda: memory.session != session)

    def count_buffers(self, client):
        """The buffers of the client's session. Those of a session that has ended remain for a moment."""
        session = client._connection.session()[0]
        own = [each for each in client.status().clients if session.startswith(each.id)]
        self.assertEqual(len(own), 1)
        return own[0].buffers

    def wait_for(self, condition):
        deadline = time.monotonic() + WAIT_S
        while not condition():
            self.assertLess(time.monotonic(), deadline, "the state did not come")
            time.sleep(0.01)

    def refused(self, kind, text, function, *args, **kwargs):
        """Checks that a call raises an error of this class with this text and with a correction."""
        with self.assertRaises(kind) as caught:
            function(*args, **kwargs)
        self.assertIn(text, str(caught.exception))
        self.assertRegex(str(caught.exception), r"\nFix: \S")
        return caught.exception


def shared_objects(pid):
    """The objects in /dev/shm that a process with the package has made."""
    return list(pathlib.Path("/dev/shm").glob("residentd-{}-*".format(pid)))


def temporary_folder(test_class):
    """A folder that is removed after the tests of the class."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="residentd-python-"))
    test_class.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
    return folder
