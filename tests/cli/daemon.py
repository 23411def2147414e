"""A daemon of its own for a test, and residentctl against it.

Programs come from $RESIDENTD and $RESIDENTCTL, else from this tree's build. The engine
is the CPU's, unless $RESIDENT_TEST_DEVICES names GPUs.
"""

import json
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

START_TIMEOUT_S = 60
COMMAND_TIMEOUT_S = 120

# residentctl's exit codes.
OK, FAILED, USAGE, UNREACHABLE, REFUSED, NOT_WRITTEN = range(6)


def program(variable, path):
    return pathlib.Path(os.environ.get(variable) or path).resolve()


RESIDENTD = program("RESIDENTD", "server/residentd")
RESIDENTCTL = program("RESIDENTCTL", "client/residentctl")
EXAMPLE = program("RESIDENTD_EXAMPLE", "client/example")
DEMO = program("RESIDENTD_DEMO", "deploy/demo.sh")


class Result:
    """How a command ended."""

    def __init__(self, done):
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def error(self):
        return json.loads(self.err)["error"]

    def __repr__(self):
        return "exit status {}\nstdout: {}\nstderr: {}".format(self.code, self.out, self.err)


def ctl(*words, server=None, stdin=None, env=None):
    """Runs residentctl; without a server it is given no address."""
    environment = {key: value for key, value in os.environ.items() if key != "RESIDENTD_SERVER"}
    environment.update(env or {})
    command = [str(RESIDENTCTL)] + [str(word) for word in words]
    if server is not None:
        command.append("--server=" + server)
    return Result(
        subprocess.run(command, input=stdin, capture_output=True, text=True, env=environment,
                       timeout=COMMAND_TIMEOUT_S))


class Daemon:
    """`residentd serve` on free ports of the loopback interface."""

    def __init__(self, *flags):
        if not RESIDENTD.exists():
            raise FileNotFoundError(RESIDENTD)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="residentd-test-"))
        self.log = self.folder / "log"
        ports = self.folder / "ports"
        command = [
            str(RESIDENTD), "serve", "--address=127.0.0.1:0", "--metrics_address=127.0.0.1:0",
            "--port_file=" + str(ports),
            "--devices=" + os.environ.get("RESIDENT_TEST_DEVICES", "cpu"), *flags
        ]
        # What it leaves in $TMPDIR when it is killed goes with the folder.
        environment = dict(os.environ, TMPDIR=str(self.folder))
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ports.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                text = self.log.read_text(errors="replace")
                self.stop()
                raise RuntimeError("residentd did not start:\n" + text)
            time.sleep(0.01)
        said = json.loads(ports.read_text())
        self.address = said["address"]
        self.metrics_address = said["metrics_address"]

    def ctl(self, *words, **options):
        return ctl(*words, server=self.address, **options)

    def stop(self):
        """Ends the daemon; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        return self.process.returncode

    def on_a_terminal(self, *words, stream, until=None):
        """What residentctl writes to `stream` ("stdout" or "stderr") when that is a terminal;
        ends it once it has written what `until` matches, else waits for its end."""
        terminal, its = pty.openpty()
        other = "stderr" if stream == "stdout" else "stdout"
        process = subprocess.Popen([str(RESIDENTCTL), *words, "--server=" + self.address],
                                   **{stream: its, other: subprocess.DEVNULL})
        os.close(its)
        said = b""
        try:
            while until is None or not re.search(until, said):
                try:
                    piece = os.read(terminal, 4096)
                except OSError:  # The other end was closed.
                    break
                if not piece:
                    break
                said += piece
        finally:
            if until is not None:
                process.send_signal(signal.SIGINT)
            process.wait(60)
            os.close(terminal)
        return said


class CommandTest(unittest.TestCase):
    """What commands end with."""

    def check(self, result, code):
        self.assertEqual(result.code, code, result)
        return result


class DaemonTest(CommandTest):
    """One daemon for all of a class's tests."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()
        cls.addClassCleanup(cls.daemon.stop)

    def ctl(self, *words, code=OK, **options):
        return self.check(self.daemon.ctl(*words, **options), code)
