"""Starts a daemon for a test, and runs residentctl with it.

Programs come from $RESIDENTD and $RESIDENTCTL, or from this tree's build. The engine is the CPU's,
unless $RESIDENT_TEST_DEVICES selects GPUs.
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
    """The result of a command."""

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
    """Runs residentctl; without `server`, without an address."""
    environment = {key: value for key, value in os.environ.items() if key != "RESIDENTD_SERVER"}
    environment.update(env or {})
    command = [str(RESIDENTCTL)] + [str(word) for word in words]
    if server is not None:
        command.append("--server=" + server)
    return Result(
        subprocess.run(command, input=stdin, capture_output=True, text=True, env=environment,
                       timeout=COMMAND_TIMEOUT_S))


class Daemon:
    """`residentd serve` on free ports of the loopback interface. `before`: words of a command that
    becomes the daemon, such as one that changes its mounts."""

    def __init__(self, *flags, before=()):
        if not RESIDENTD.exists():
            raise FileNotFoundError(RESIDENTD)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="residentd-test-"))
        self.log = self.folder / "log"
        ports = self.folder / "ports"
        command = [
            *before, str(RESIDENTD), "serve", "--address=127.0.0.1:0", "--metrics_address=127.0.0.1:0",
            "--port_file=" + str(ports),
            "--devices=" + os.environ.get("RESIDENT_TEST_DEVICES", "cpu"), *flags
        ]
        # $TMPDIR is the folder, so that files of a killed daemon are removed with it.
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
        addresses = json.loads(ports.read_text())
        self.address = addresses["address"]
        self.metrics_address = addresses["metrics_address"]

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
        """Runs residentctl with `stream` ("stdout" or "stderr") as a terminal; returns its output
        there. Interrupts it once the output matches `until`, otherwise waits for its end."""
        terminal, replica = pty.openpty()
        other = "stderr" if stream == "stdout" else "stdout"
        process = subprocess.Popen([str(RESIDENTCTL), *words, "--server=" + self.address],
                                   **{stream: replica, other: subprocess.DEVNULL})
        os.close(replica)
        output = b""
        try:
            while until is None or not re.search(until, output):
                try:
                    piece = os.read(terminal, 4096)
                except OSError:  # The other end was closed.
                    break
                if not piece:
                    break
                output += piece
        finally:
            if until is not None:
                process.send_signal(signal.SIGINT)
            process.wait(60)
            os.close(terminal)
        return output


class CommandTest(unittest.TestCase):
    """Checks the exit codes of commands."""

    def check(self, result, code):
        self.assertEqual(result.code, code, result)
        return result


class DaemonTest(CommandTest):
    """All tests of a class share one daemon."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()
        cls.addClassCleanup(cls.daemon.stop)

    def ctl(self, *words, code=OK, **options):
        return self.check(self.daemon.ctl(*words, **options), code)
