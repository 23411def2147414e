"""Daemons as actors of Ray: Ray places them, restarts them, and gives each its GPU; calls go to them directly.

    fleet = residentd.ray.start_fleet(2)
    with residentd.connect(fleet.addresses()[0]) as rd: ...
    dataset.map_batches(residentd.ray.Map("swish", fleet.name), concurrency=2)

Needs the package ray (pip install 'residentd[ray]'), and the program residentd on each machine.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import threading
import time
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import ray

from .client import Client, connect
from .errors import Error, InvalidArgument, Unavailable

_PR_SET_PDEATHSIG = 1
_START_S = 60.0
_ASK_S = 10.0


class Node:
    """The actor: runs a daemon for as long as it lives itself. Its methods answer once the daemon serves.

    flags: of `residentd serve`, after the node's own. A daemon that serves other machines needs
        certificates (--tls_cert, --tls_key, --tls_client_ca).
    program: the daemon's program; without a / it is searched in $PATH.
    host: the address to listen on; None: 127.0.0.1. The port is a free one.
    state: the folder of the daemon's state; None: it is lost when the actor ends.

    RuntimeError: the daemon did not start; the message has what it printed.
    """

    def __init__(self, flags: Sequence[str] = (), program: str = "residentd", host: Optional[str] = None,
                 state: Optional[str] = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="residentd-ray-")
        folder = pathlib.Path(self._folder.name)
        ports, log = folder / "ports", folder / "log"
        command = [program, "serve", "--address={}:0".format(host or "127.0.0.1"),
                   "--metrics_address=127.0.0.1:0", "--port_file={}".format(ports),
                   "--drain_timeout=2s"]
        if state is not None:
            command.append("--state_dir={}".format(state))
        libc, actor = ctypes.CDLL(None), os.getpid()

        def end_with_the_actor() -> None:
            # The signal comes when the thread ends that forked, which is the actor's main thread.
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != actor:
                os._exit(1)

        with open(log, "wb") as output:
            self._daemon = subprocess.Popen([*command, *flags], stdout=output, stderr=output,
                                            stdin=subprocess.DEVNULL, preexec_fn=end_with_the_actor)
        deadline = time.monotonic() + _START_S
        while not ports.exists():
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                self._daemon.kill()
                raise RuntimeError("residentd did not start: " + log.read_text(errors="replace")[-2000:])
            time.sleep(0.01)
        self._address = json.loads(ports.read_text())["address"]
        threading.Thread(target=self._end_with_the_daemon, daemon=True).start()

    def _end_with_the_daemon(self) -> None:
        self._daemon.wait()
        os._exit(1)  # Ray starts the actor again.

    def address(self) -> str:
        """host:port of the daemon."""
        return self._address

    def pid(self) -> int:
        """The process of the daemon."""
        return self._daemon.pid

    def machine(self) -> str:
        """Ray's identifier of the machine."""
        return ray.get_runtime_context().get_node_id()


class Fleet:
    """The actors of start_fleet, by their names NAME-0, NAME-1, ... in the present namespace of Ray."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _ask(self, method: str) -> Dict[str, Any]:
        prefix = self.name + "-"
        names = [each for each in ray.util.list_named_actors()
                 if each.startswith(prefix) and each[len(prefix):].isdigit()]
        asked = {}
        for name in names:
            try:
                asked[getattr(ray.get_actor(name), method).remote()] = name
            except ValueError:  # It has ended meanwhile.
                pass
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_ASK_S) if asked else ([], [])
        answers = {}
        for reference in ready:
            try:
                answers[asked[reference]] = ray.get(reference)
            except ray.exceptions.RayActorError:  # It is being started again.
                pass
        return answers

    def addresses(self) -> List[str]:
        """host:port of each daemon that serves now; they change when Ray starts an actor again."""
        return [address for _, address in sorted(self._ask("address").items())]

    def targets(self) -> str:
        """The same as one target of gRPC: "ipv4:127.0.0.1:50051,127.0.0.1:50052".

        Unavailable: no daemon serves.
        """
        addresses = self.addresses()
        if not addresses:
            raise Unavailable("no daemon of the fleet '{}' serves".format(self.name),
                              "start it with residentd.ray.start_fleet, in the same namespace of Ray")
        return "ipv4:" + ",".join(addresses)

    def nearest(self) -> str:
        """host:port of a daemon on this machine, or else of any one.

        Unavailable: no daemon serves.
        """
        addresses, machines = self._ask("address"), self._ask("machine")
        here = ray.get_runtime_context().get_node_id()
        near = [name for name in addresses if machines.get(name) == here]
        if not addresses:
            self.targets()
        return addresses[random.choice(near or sorted(addresses))]


def start_fleet(count: int, name: str = "residentd", *, flags: Sequence[str] = (),
                program: str = "residentd", host: Optional[str] = None, state: Optional[str] = None,
                num_gpus: float = 1, num_cpus: float = 1) -> Fleet:
    """Starts daemons and waits until they serve. They end with the driver, or with ray.shutdown().

    count: how many; flags, program, host: as of Node.
    state: a folder on each machine, in which each daemon has a folder with the name of its actor.
    num_gpus, num_cpus: what Ray reserves for each; 0 GPUs for daemons with --devices=cpu.

    ValueError of Ray: there are actors with these names. RuntimeError: a daemon did not start.
    """
    if count < 1:
        raise InvalidArgument("count={} daemons".format(count), "start at least one")
    actor = ray.remote(Node)
    nodes = []
    for number in range(count):
        own = "{}-{}".format(name, number)
        nodes.append(actor.options(name=own, max_restarts=-1, num_gpus=num_gpus, num_cpus=num_cpus).remote(
            flags, program, host, None if state is None else os.path.join(state, own)))
    try:
        ray.get([node.address.remote() for node in nodes])
    except ray.exceptions.RayActorError as error:
        for node in nodes:
            ray.kill(node)
        raise RuntimeError(str(error)) from error
    fleet = Fleet(name)
    _actors[name] = nodes  # An actor ends when nobody refers to it.
    return fleet


_actors: Dict[str, List[Any]] = {}


class Map:
    """For Dataset.map_batches: runs an operator on columns of NumPy batches, with a daemon of the same
    machine where there is one.

    operator: its name. fleet: the name of start_fleet.
    inputs: columns, in the order of the operator's inputs; output: the column of its result.
    options: of residentd.connect, such as tls_ca. A call that did not run is sent again.
    """

    def __init__(self, operator: str, fleet: str = "residentd", *, inputs: Sequence[str] = ("x",),
                 output: str = "out", **options: Any) -> None:
        self._operator, self._fleet = operator, fleet
        self._inputs, self._output = tuple(inputs), output
        self._options = {"retry": True, **options}
        self._client: Optional[Client] = None

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def __call__(self, batch: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        for column in self._inputs:
            if column not in batch:
                raise InvalidArgument("the batch has no column '{}', only {}".format(
                    column, ", ".join(sorted(batch))), "name its columns with inputs=")
        arguments = [np.ascontiguousarray(batch[column]) for column in self._inputs]
        deadline = time.monotonic() + _START_S
        while True:
            try:
                if self._client is None:
                    self._client = connect(Fleet(self._fleet).nearest(), **self._options)
                return {**batch, self._output: self._client.op(self._operator)(*arguments)}
            except Unavailable:
                # The daemon has ended, and Ray starts it again at another address. A task may then run
                # twice, which has the same result, because its outputs are new.
                self.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close()
            except Error:
                pass
