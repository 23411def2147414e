#!/usr/bin/python3
"""Every cell of the table of methods (server/auth/method_roles.cc, SECURITY.md), with a real daemon
and raw HTTP/2.

For each value of a column there is one attack, which is made on every method whose row has the
value, so that a new method is covered by its row. Its message is made of the objects that its
fields name (Caller.derive); a method that needs more has an example (Caller.written). The limits of
objects are in memory_test.py, the roles in policy_test.cc.

The last line is `N passed, N failed`.
"""

import fcntl
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import signal
import socket
import struct
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "cli"),
                os.environ.get("RESIDENT_PYTHON_PROTOS", "proto")]
import daemon as daemons  # noqa: E402
import http2  # noqa: E402
import unittest_main  # noqa: E402
from google.protobuf import descriptor_pool  # noqa: E402
from inference import open_inference_pb2 as oip  # noqa: E402
from resident.v1 import admin_pb2, operators_pb2  # noqa: E402, F401  (for Caller.derive)
from resident.v1 import (buffers_pb2, executor_pb2, graphs_pb2, lanes_pb2, models_pb2,  # noqa: E402
                         types_pb2)

OK, CANCELLED, DEADLINE_EXCEEDED, NOT_FOUND, RESOURCE_EXHAUSTED, UNAUTHENTICATED = 0, 1, 4, 5, 8, 16
# At the deadline gRPC itself answers, with either; a client of gRPC reports the second.
AT_DEADLINE = (CANCELLED, DEADLINE_EXCEEDED)
MIB = 1 << 20
WAIT_S = 60
# CallMemory::kUncharged.
TINY = 1024
F32, I64 = types_pb2.DTYPE_F32, types_pb2.DTYPE_I64
VALIDATE = "/resident.v1.Graphs/Validate"
# InstallHeader.wait_for.
ACTIVE = b"\x58\x06"
# More than one caller has threads for.
CHECKS_AT_ONCE = 10
# Elements of a tensor of 256 KiB.
LARGE = 1 << 16


def load_methods():
    loader = importlib.machinery.SourceFileLoader("method_table",
                                                  str(HERE.parent.parent / "tools/method_table"))
    spec = importlib.util.spec_from_loader("method_table", loader)
    table = importlib.util.module_from_spec(spec)
    loader.exec_module(table)
    return table.read_methods()


METHODS = load_methods()
# The field of messages that change what a name stands for.
CHANGE = "expected_revision"
# These change the whole daemon (DaemonEndsTest).
OF_THE_DAEMON = {"/resident.v1.Admin/" + name for name in ("Park", "Resume", "Drain")}
# They wait for an engine only if it has a GPU.
WAIT_ON_GPUS = {"/inference.GRPCInferenceService/CudaSharedMemory" + name
                for name in ("Register", "Unregister")} | {"/resident.v1.Buffers/ImportCuda"}
# Their messages can have more than TINY bytes, but not here: the daemon has no GPU and few
# connections and installed operators, and the events, the progress and the buffers of a small file are
# short.
SHORT_HERE = {
    "/inference.GRPCInferenceService/CudaSharedMemoryStatus", "/resident.v1.Buffers/LoadFile",
    "/resident.v1.Operators/Install", "/resident.v1.Operators/Summary", "/resident.v1.Operators/Watch"
} | {row.name for row in METHODS if row.name.startswith("/grpc.channelz.")}


def varint(value):
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes(encoded) + bytes([value])


def field(number, value):
    """A field of bytes, a text or a message."""
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


# An unknown field: the message is charged as long as its call lives, and with more than what other
# calls of the test change meanwhile.
PADDING_BYTES = 900 << 10
PADDING = field(1000, bytes(PADDING_BYTES))


def text_of(result):
    """What the daemon has answered, as text: the status's message and the messages."""
    return urllib.parse.unquote(result.grpc_message or "") + result.data.decode("latin-1")


# --- Graphs --------------------------------------------------------------------------------------


def make_graph():
    """Has states, an output of 256 KiB, and names with which no answer about it is short."""
    graph = graphs_pb2.Graph(name="g", format=1)
    for i in range(20):
        state = graph.tensors.add(name="state_{}_{}".format(i, "s" * 100), dtype=F32,
                                  kind=graphs_pb2.GraphTensor.KIND_STATE)
        state.shape.add(size=4)
        graph.scalars.add(name="scalar_{}_{}".format(i, "s" * 100), dtype=I64, most=1, initial=0)
    graph.tensors.add(name="out", dtype=F32,
                      kind=graphs_pb2.GraphTensor.KIND_OUTPUT).shape.add(size=LARGE)
    for i, name in enumerate([graph.tensors[0].name] * 20 + ["out"]):
        node = graph.nodes.add(name="node_{}_{}".format(i, "n" * 100), operator="zero")
        node.arguments.add(parameter="out").tensor.name = name
    return graph


def make_model(name="methods.model"):
    """A model with names with which no answer about it is short."""
    graph = graphs_pb2.Graph(name="m", format=1)
    for i in range(20):
        out = "out_{}_{}".format(i, "o" * 100)
        graph.tensors.add(name=out, dtype=F32,
                          kind=graphs_pb2.GraphTensor.KIND_OUTPUT).shape.add(size=4)
        graph.nodes.add(operator="zero").arguments.add(parameter="out").tensor.name = out
    return models_pb2.LoadModelRequest(header={"name": name, "graph": graph})


def make_wrong_graph():
    """The report about it has many findings."""
    graph = make_graph()
    for i in range(20):
        graph.nodes.add(name="wrong{}".format(i), operator="methods.none")
    return graph


def make_slow_graph():
    """Its check takes a second or more: columns that are written again and again."""
    rows = 1 << 14
    graph = graphs_pb2.Graph(name="slow", format=1)
    state = graph.tensors.add(name="s", kind=graphs_pb2.GraphTensor.KIND_STATE, dtype=F32)
    state.shape.add(size=rows)
    state.shape.add(size=256)
    for i in range(150):
        node = graph.nodes.add(name="n{}".format(i), operator="zero")
        view = node.arguments.add(parameter="out").tensor
        view.name, view.offset = "s", i * 37 % 45 * 5
        view.shape.add(size=rows)
        view.strides.append(256)
    return graph


def load_request(name, expression):
    """A RepositoryModelLoadRequest that installs an expression."""
    request = oip.RepositoryModelLoadRequest(model_name=name)
    request.parameters["config"].string_param = json.dumps(
        {"parameters": {"expression": expression}})
    return request


# --- A daemon and its callers --------------------------------------------------------------------


class Caller:
    """One that calls, with a session, and with objects for the examples."""

    def __init__(self, world, source=None, token=None):
        self.world, self.source = world, source
        self.bearer = [("authorization", "Bearer " + token)] if token else []
        self.connections = []
        self.lane, self.lane_socket = 0, None
        self.connection = self.connect()
        opened = self.connection.results[self.start("/resident.v1.Sessions/Open", b"")[1]]
        self.connection.read_until(lambda: opened.messages)
        self.session = buffers_pb2.OpenSessionResponse.FromString(opened.messages[0]).session_id
        self.headers = self.bearer + [("resident-session", self.session)]

    def connect(self, **options):
        connection = http2.Connection(self.world.daemon.address, source=self.source, **options)
        self.connections.append(connection)
        return connection

    def close(self):
        for connection in self.connections:
            connection.close()
        if self.lane_socket is not None:
            self.lane_socket.close()

    def keep_alive(self):
        """Answers the daemon's pings on all connections that are still used."""
        self.connections = [c for c in self.connections if c.socket.fileno() >= 0 and not c.closed]
        for connection in self.connections:
            connection.read(0)

    def start(self, method, message, connection=None, headers=None, timeout=None):
        """Begins a call; returns its connection and stream."""
        connection = connection or self.connection
        more = list(getattr(self, "headers", self.bearer) if headers is None else headers)
        if timeout:
            more.append(("grpc-timeout", timeout))
        stream = connection.new_stream()
        connection.send_headers(stream, http2.request_headers(method, more))
        if message is not None:
            connection.send_message(stream, message)
        return connection, stream

    def call(self, method, message, **options):
        """The result of a call; of one that stays open, once it has answered something."""
        connection, stream = self.start(method, message, **options)
        result = connection.results[stream]
        connection.read_until(lambda: result.ended != http2.OPEN or
                              (result.headers and method.endswith(("/Watch", "/Open"))), WAIT_S)
        if result.ended == http2.OPEN:
            connection.send_rst(stream)
        return result

    def get(self, method, message, response, **options):
        result = self.call(method, message, **options)
        if result.grpc_status != OK:
            raise AssertionError((method, result))
        return response.FromString(result.messages[0])

    def prepare(self):
        """Makes the objects that the examples name."""
        allocate = buffers_pb2.AllocateRequest(dtype=F32, shape=[LARGE])
        self.buffer = self.get("/resident.v1.Buffers/Allocate", allocate.SerializeToString(),
                               buffers_pb2.AllocateResponse).buffer.id
        allocate.shape[0] = MIB
        self.uploaded = self.get("/resident.v1.Buffers/Allocate", allocate.SerializeToString(),
                                 buffers_pb2.AllocateResponse).buffer.id
        allocate.shape[0] = LARGE
        allocate.durable = True
        self.durable = self.get("/resident.v1.Buffers/Allocate", allocate.SerializeToString(),
                                buffers_pb2.AllocateResponse).buffer.id
        for i in range(20):
            small = buffers_pb2.AllocateRequest(dtype=F32, shape=[4], name="b" * 100)
            self.get("/resident.v1.Buffers/Allocate", small.SerializeToString(),
                     buffers_pb2.AllocateResponse)
        self.graph = self.get("/resident.v1.Graphs/Load", graphs_pb2.LoadGraphRequest(
            graph=make_graph()).SerializeToString(), graphs_pb2.LoadGraphResponse).graph_id
        self.graph_session = self.get(
            "/resident.v1.Graphs/OpenSession", graphs_pb2.OpenGraphSessionRequest(
                graph_id=self.graph).SerializeToString(),
            graphs_pb2.OpenGraphSessionResponse).session.session_id
        loaded = self.call("/resident.v1.Models/Load", make_model().SerializeToString())
        assert loaded.grpc_status == OK, loaded
        self.lane, self.lane_socket = self.open_lane()

    def open_lane(self):
        """Opens a lane, and gets its memory, so that it stays open; returns its id and socket."""
        opened = self.connection.results[self.start("/resident.v1.Lanes/Open", b"")[1]]
        self.connection.read_until(lambda: opened.messages or opened.ended != http2.OPEN)
        lane = lanes_pb2.OpenLaneResponse.FromString(opened.messages[0])
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(lane.local_address)
        connection.send(b"residln1" + lane.token.encode())
        answer, descriptors, _, _ = socket.recv_fds(connection, 4096, 1)
        assert struct.unpack("<I", answer[:4])[0] == OK, answer
        os.close(descriptors[0])
        return lane.lane_id, connection

    # Examples.

    def run(self, operator="fill"):
        batch = executor_pb2.Batch()
        batch.tasks.operator, batch.tasks.count = operator, 1
        returned = batch.tasks.arguments.add().returned
        returned.dtype = F32
        returned.shape.append(LARGE)
        batch.tasks.arguments.add().scalar.f64.append(1.0)
        return batch

    def prepare_lane(self):
        request = lanes_pb2.PrepareLaneRequest(lane_id=self.lane)
        request.tasks.operator, request.tasks.count = "fill", 1
        request.tasks.arguments.add().buffer.buffer_ids.append(self.buffer)
        request.tasks.arguments.add().scalar.f64.append(1.0)
        return request

    def infer(self):
        request = oip.ModelInferRequest(model_name="add")
        for name in ("x", "y"):
            request.inputs.add(name=name, datatype="FP32", shape=[LARGE])
            request.raw_input_contents.append(bytes(4 * LARGE))
        return request

    def import_shared(self):
        """Passes a new descriptor, if the daemon has a local socket."""
        request = buffers_pb2.ImportSharedRequest(size_bytes=4096, dtype=F32, shape=[4])
        if self.world.local is None:
            request.name = self.world.memory
            return request
        memory = os.memfd_create("methods", os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, 4096)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        request.descriptor_token = self.pass_descriptor(b"residfd1", memory)
        return request

    def import_cuda(self):
        """Passes a device file, if the daemon has a local socket: not one of a GPU."""
        request = buffers_pb2.ImportCudaRequest(allocation_bytes=2 * MIB, dtype=F32, shape=[4],
                                                device_uuid="GPU-none")
        if self.world.local is None:
            request.ipc_handle = bytes(64)
            return request
        request.descriptor_token = self.pass_descriptor(b"residcu1", os.open("/dev/null", os.O_RDWR))
        return request

    def pass_descriptor(self, magic, descriptor):
        """Returns the token, and closes the descriptor."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(self.world.local)
            socket.send_fds(connection, [magic + self.session.encode()], [descriptor])
            answer = connection.recv(4096)
        os.close(descriptor)
        assert struct.unpack("<I", answer[:4])[0] == OK, answer
        return answer[4:].decode()

    def find_fields(self, name):
        """The fields of the method's message by name; None: the service is unknown."""
        service, method = name.strip("/").split("/")
        try:
            found = descriptor_pool.Default().FindServiceByName(service)
        except KeyError:
            return None
        return found.methods_by_name[method].input_type.fields_by_name

    def derive(self, name):
        """A message for the method, from its descriptor: the objects of prepare() in the fields that
        name them, and nothing else. A method that changes what a name stands for gets a name that
        stands for nothing. MethodsTest.test_derived_messages shows that this is enough."""
        fields = self.find_fields(name)
        if fields is None:
            return None
        objects = {"buffer_id": self.buffer, "graph_id": self.graph, "lane_id": self.lane,
                   "name": "methods.none" if CHANGE in fields else "methods.wide",
                   "session_id": self.graph_session}
        message = b""
        for each in fields.values():
            value = objects.get(each.name)
            if isinstance(value, int):
                message += varint(each.number << 3) + varint(value)
            elif value is not None:
                message += field(each.number, value)
        return message

    def examples(self, shared=True):
        """A message for each method: it makes the daemon do the method's work. `shared`: whether
        memory is passed for ImportShared and ImportCuda."""
        examples = {row.name: self.derive(row.name) for row in METHODS}
        examples.update(self.written(shared))
        return {name: message for name, message in examples.items() if message is not None}

    def written(self, shared=True):
        """The messages of the methods that need more than the objects of prepare(), or others."""
        run = executor_pb2.RunRequest(batch=self.run())
        number = self.world.next_number()
        install = field(1, field(1, "methods.b{}".format(number)) + field(7, b"\0"))
        inference = {
            "CudaSharedMemoryRegister": oip.CudaSharedMemoryRegisterRequest(
                name="c{}".format(number), raw_handle=bytes(64), byte_size=4096),
            "CudaSharedMemoryStatus": b"",
            "CudaSharedMemoryUnregister": field(1, "none"),
            "ModelInfer": self.infer(),
            "ModelStatistics": b"",
            "ModelStreamInfer": self.infer(),
            "RepositoryModelLoad": load_request("methods.l{}".format(number),
                                                "x * {}".format(number)),
            "RepositoryModelUnload": field(2, "methods.none"),
            "SystemSharedMemoryRegister": oip.SystemSharedMemoryRegisterRequest(
                name="s{}".format(number), key=self.world.memory, byte_size=4096),
            "SystemSharedMemoryStatus": b"",
            "SystemSharedMemoryUnregister": field(1, "none"),
        }
        resident = {
            "Buffers/Allocate": buffers_pb2.AllocateRequest(dtype=F32, shape=[4], durable=True),
            "Buffers/Download": buffers_pb2.DownloadRequest(buffer_id=self.buffer),
            "Buffers/Free": buffers_pb2.FreeRequest(buffer_id=1 << 40),
            "Buffers/ImportCuda": self.import_cuda() if shared else b"",
            "Buffers/ImportShared": self.import_shared() if shared else b"",
            "Buffers/LoadFile": buffers_pb2.LoadFileRequest(path="file.safetensors",
                                                            prefix="p{}".format(number)),
            "Buffers/Persist": buffers_pb2.PersistRequest(buffer_id=self.durable),
            "Buffers/Upload": buffers_pb2.UploadRequest(buffer_id=self.uploaded,
                                                        data=bytes(4 * MIB)),
            "Executor/Run": run,
            "Executor/Submit": executor_pb2.SubmitRequest(batch=self.run()),
            "Graphs/CloseSession": field(1, "none"),
            "Graphs/Load": graphs_pb2.LoadGraphRequest(graph=make_wrong_graph()),
            "Graphs/Render": graphs_pb2.RenderGraphRequest(graph=make_graph(), format=1),
            "Graphs/Run": graphs_pb2.RunGraphRequest(graph_id=self.graph),
            "Graphs/Unload": field(1, "none"),
            "Graphs/Validate": graphs_pb2.ValidateGraphRequest(graph=make_wrong_graph()),
            "Lanes/Bind": lanes_pb2.BindLaneRequest(lane_id=self.lane,
                                                    buffer_ids=[self.buffer] * 3000),
            "Lanes/Open": lanes_pb2.OpenLaneRequest(slots=64),
            "Lanes/Prepare": self.prepare_lane(),
            "Lanes/Release": lanes_pb2.ReleaseLaneRequest(lane_id=self.lane, calls=[1 << 20]),
            "Models/List": b"",
            "Models/Load": models_pb2.LoadModelRequest(
                header={"name": "methods.refused", "graph": make_wrong_graph()}),
            "Operators/Audit": b"",
            "Operators/Claim": operators_pb2.ClaimRequest(
                plan="c" * 64, set="methods",
                names=["methods.claimed{}_{}".format(i, "c" * 40) for i in range(20)]),
            "Operators/Install": install,
            "Operators/Release": field(1, "c" * 64),
            "Operators/Summary": b"",
            "Operators/Watch": b"\x08\x01",  # All events.
        }
        channelz = {
            "GetChannel": b"\x08\x01",
            "GetServer": b"\x08\x01",
            "GetServerSockets": b"\x08" + varint(self.world.server),
            "GetServers": b"",
            "GetSocket": b"\x08" + varint(self.world.socket),
            "GetSubchannel": b"\x08\x01",
            "GetTopChannels": b"",
        }
        examples = {
            "/grpc.health.v1.Health/Check": b"",
            "/grpc.health.v1.Health/Watch": b"",
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo":
                field(4, "resident.v1.Graphs"),
        }
        for prefix, some in (("/inference.GRPCInferenceService/", inference),
                             ("/resident.v1.", resident),
                             ("/grpc.channelz.v1.Channelz/", channelz)):
            for name, message in some.items():
                examples[prefix + name] = message
        return {name: message if isinstance(message, bytes) else message.SerializeToString()
                for name, message in examples.items()}


class World:
    """A daemon, with what the examples need of it."""

    def __init__(self, *flags, local=False):
        self.folder = tempfile.TemporaryDirectory(prefix="residentd-methods-")
        folder = pathlib.Path(self.folder.name)
        tensors = {"tensor_{}_{}".format(i, "t" * 80): {
            "dtype": "F32", "shape": [4], "data_offsets": [16 * i, 16 * i + 16]} for i in range(20)}
        header = json.dumps(tensors).encode()
        (folder / "file.safetensors").write_bytes(
            struct.pack("<Q", len(header)) + header + bytes(16 * len(tensors)))
        self.memory = "/residentd-methods-{}".format(os.getpid())
        pathlib.Path("/dev/shm" + self.memory).write_bytes(bytes(1 << 20))
        self.local = str(folder / "local") if local else None
        self.number = 0
        self.frozen = []
        self.daemon = daemons.Daemon(
            "--state_dir={}".format(folder / "state"), "--load_dir={}".format(folder),
            "--task_time_limit=60s", "--oip_unload", "--max_sessions=32", "--max_installs=4",
            "--max_lanes=8", "--local_address=" + (self.local or str(folder / "lanes")), *flags)
        self.server = self.socket = 0
        self.callers = []

    def close(self):
        for caller in self.callers:
            caller.close()
        self.daemon.stop()
        self.folder.cleanup()
        os.unlink("/dev/shm" + self.memory)

    def keep_alive(self):
        """Answers the daemon's pings on the connections of all callers."""
        for caller in self.callers:
            caller.keep_alive()

    def next_number(self):
        self.number += 1
        return self.number

    def caller(self, **options):
        caller = Caller(self, **options)
        self.callers.append(caller)
        return caller

    def prepare(self, caller):
        """Makes what is shared by all callers, so much of each that no list of it is short."""
        for _ in range(6):
            caller.call("/resident.v1.Operators/Install", caller.examples(shared=False)[
                "/resident.v1.Operators/Install"])
        inputs = ["x{}_{}".format(i, "x" * 60) for i in range(13)]
        wide = load_request("methods.wide", " + ".join(inputs))
        loaded = caller.call("/inference.GRPCInferenceService/RepositoryModelLoad",
                             wide.SerializeToString())
        assert loaded.grpc_status == OK, loaded
        for i in range(10):
            graph = make_graph()
            graph.name = "g{}_{}".format(i, "g" * 100)
            caller.call("/resident.v1.Graphs/Load",
                        graphs_pb2.LoadGraphRequest(graph=graph).SerializeToString())
        for _ in range(12):
            caller.start("/resident.v1.Sessions/Open", field(1, "c" * 64))
        if self.local is None:
            for i in range(20):
                caller.call("/inference.GRPCInferenceService/SystemSharedMemoryRegister",
                            oip.SystemSharedMemoryRegisterRequest(
                                name="region_{}_{}".format(i, "r" * 80), key=self.memory,
                                byte_size=4096).SerializeToString())
        servers = caller.call("/grpc.channelz.v1.Channelz/GetServers", b"").messages[0]
        self.server = read_number(servers, b"\x28")
        sockets = caller.call("/grpc.channelz.v1.Channelz/GetServerSockets",
                              b"\x08" + varint(self.server)).messages[0]
        self.socket = read_number(sockets, b"\x18")

    def metrics(self):
        return urllib.request.urlopen("http://{}/metrics".format(self.daemon.metrics_address),
                                      timeout=30).read().decode()

    def charged(self, *purposes):
        """The bytes that are charged to calls, for these purposes; without any, for all."""
        found = re.findall(r'^resident_host_memory_used_bytes\{purpose="(\w+)"\} (\S+)$',
                           self.metrics(), re.MULTILINE)
        assert found
        return sum(float(value) for name, value in found
                   if name != "durable_copies" and (not purposes or name in purposes))

    def engines(self):
        """The processes of the daemon's engines."""
        found = []
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                text = stat.read_text()
            except OSError:
                continue
            parent = int(text.rpartition(")")[2].split()[1])
            if "(resident-engine)" in text and parent == self.daemon.process.pid:
                found.append(int(stat.parent.name))
        return found

    def freeze(self):
        """Stops the engines: whatever asks one of something waits from now on."""
        self.frozen = self.engines()
        assert self.frozen
        for engine in self.frozen:
            os.kill(engine, signal.SIGSTOP)

    def thaw(self):
        for engine in self.frozen:
            try:
                os.kill(engine, signal.SIGCONT)
            except ProcessLookupError:  # The daemon has replaced an engine that did not answer.
                pass
        self.frozen = []


def read_number(message, tag):
    """The number behind the first such tag."""
    at = message.index(tag) + 1
    value = shift = 0
    while True:
        value |= (message[at] & 127) << shift
        if message[at] < 128:
            return value
        at, shift = at + 1, shift + 7


class MethodsTest(unittest.TestCase):

    FLAGS = ()

    @classmethod
    def setUpClass(cls):
        cls.world = World(*cls.FLAGS)
        cls.addClassCleanup(cls.world.close)
        cls.caller = cls.world.caller()
        cls.caller.prepare()
        cls.world.prepare(cls.caller)

    def check_each(self, check):
        """Calls check(row, example of a message) for each method, in a subtest."""
        examples = self.caller.examples()
        for row in METHODS:
            with self.subTest(row.name):
                self.assertIn(row.name, examples,
                              "no example of its message. Fix: add one to Caller.written")
                check(row, examples[row.name])

    def wait_for(self, what, condition, call=None):
        """`call`: its result is part of the message if the condition does not come."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            self.assertLess(time.monotonic(), deadline,
                            "not within {} s: {}; {}".format(WAIT_S, what, call or ""))
            self.caller.keep_alive()
            time.sleep(0.01)

    def check_nothing_charged(self):
        # The open graph sessions keep a charge for batches.
        purposes = ("requests", "answers", "downloads")
        self.wait_for("nothing is charged", lambda: self.world.charged(*purposes) == 0)


class DerivedTest(MethodsTest):

    def test_derived_messages(self):
        """The daemon does what a derived message asks for; otherwise the attacks would miss the work."""
        written = self.caller.written(shared=False)
        for row in METHODS:
            if row.name in written or row.name in OF_THE_DAEMON:
                continue
            with self.subTest(row.name):
                message = self.caller.derive(row.name)
                self.assertIsNotNone(message, "unknown service. Fix: add an example to Caller.written")
                result = self.caller.call(row.name, message)
                change = CHANGE in self.caller.find_fields(row.name)
                self.assertIn(result.grpc_status, (NOT_FOUND,) if change else (OK, None), (
                    "its derived message is refused. Fix: add an example to Caller.written", result))


class UnfinishedTest(MethodsTest):

    FLAGS = ("--max_install_header_ms=3000",)

    def begin(self, timeout=None):
        """Calls each method, on a connection of its own, with a part of a message.
        {row: (connection, result)}."""
        calls = {}
        for row in METHODS:
            connection, stream = self.caller.start(row.name, None, self.caller.connect(),
                                                   timeout=timeout)
            connection.send_data(stream, b"\0" + MIB.to_bytes(4, "big") + bytes(1000))
            calls[row] = (connection, connection.results[stream])
        return calls

    def wait(self, calls):
        self.wait_for("{} are ended".format([row.name for row in calls]), lambda: all(
            connection.read(0) is None or result.ended != http2.OPEN
            for connection, result in calls.values()))

    def test_the_time_of_a_message_that_is_not_finished(self):
        calls = self.begin()
        limited = {row: call for row, call in calls.items() if row.unfinished != "kHeld"}
        self.assertEqual({row.unfinished for row in limited}, {"kTimed", "kUpload"})
        self.wait(limited)
        for row, (connection, result) in calls.items():
            with self.subTest(row.name):
                if row.unfinished == "kHeld":
                    # Nothing that the daemon has sent until now ends the call.
                    connection.send_ping()
                    connection.read_until(lambda c=connection: c.pongs == 1)
                    self.assertEqual(result.ended, http2.OPEN, result)
                elif row.unfinished == "kUpload":
                    self.assertEqual(result.grpc_status, DEADLINE_EXCEEDED, result)
                    self.assertIn("header", text_of(result))
                else:
                    self.assertNotEqual(result.grpc_status, OK, result)
        for connection, _ in calls.values():
            connection.close(reset=True)
        self.check_nothing_charged()

    def test_a_call_ends_at_its_deadline_before_its_message_is_finished(self):
        calls = self.begin(timeout="200m")
        self.wait(calls)
        for row, (connection, result) in calls.items():
            with self.subTest(row.name):
                self.assertIn(result.grpc_status, AT_DEADLINE, result)
            connection.close(reset=True)
        self.check_nothing_charged()


class UnreadTest(MethodsTest):

    def test_answers_that_nobody_reads(self):
        self.check_each(self.check)

    def check(self, row, message):
        if row.name in OF_THE_DAEMON:
            self.assertEqual(row.unread, "kTiny")
            return
        read = self.caller.call(row.name, message)
        longest = max([len(one) for one in read.messages], default=0)
        if row.unread == "kTiny":
            self.assertLessEqual(longest, TINY, "its answer is not short")
        # Of the others, how many parts one answer joins depends on when the client reads.
        if row.unread == "kTiny" or row.name in SHORT_HERE:
            return
        self.assertGreater(longest, TINY, (read, "the table or the example is wrong"))
        example = self.caller.examples()[row.name]  # A new one, for calls that need new names.
        connection, stream = self.caller.start(row.name, example, self.caller.connect(
            settings={http2.ENABLE_PUSH: 0, http2.INITIAL_WINDOW_SIZE: 0}))
        peak = 0

        def charged():
            nonlocal peak
            peak = max(peak, self.world.charged("answers", "downloads"))
            return peak > 0

        self.wait_for("an answer of {} bytes is charged".format(longest), charged,
                      connection.results[stream])
        connection.send_rst(stream)
        # By one of the two only. A download is charged where it is read and where it is written.
        copies = 2 if row.name == "/resident.v1.Buffers/Download" else 1
        self.assertLess(peak, (copies + 0.5) * sum(len(one) for one in read.messages) + TINY)
        self.check_nothing_charged()
        connection.close()


class Blocked:
    """While this is entered, tasks wait, and after fill() the caller's checks of graphs."""

    def __init__(self, caller):
        self.world, self.caller = caller.world, caller

    def __enter__(self):
        assert self.caller.call("/resident.v1.Admin/Park", b"").grpc_status == OK
        self.connection = None
        self.checks = []
        return self

    def fill(self):
        """Begins checks until all threads are busy that the caller may have."""
        if self.connection is None:
            self.connection = self.caller.connect()
        busy = sum(check.ended == http2.OPEN for check in self.checks)
        slow = graphs_pb2.ValidateGraphRequest(graph=make_slow_graph()).SerializeToString()
        for _ in range(CHECKS_AT_ONCE - busy):
            stream = self.caller.start(VALIDATE, slow, self.connection)[1]
            self.checks.append(self.connection.results[stream])
        pongs = self.connection.pongs + 1
        self.connection.send_ping()
        self.connection.read_until(lambda: self.connection.pongs == pongs)

    def empty(self):
        """Ends the checks."""
        if self.connection is not None:
            self.connection.close(reset=True)
            self.connection, self.checks = None, []

    def __exit__(self, *_):
        self.empty()
        assert self.caller.call("/resident.v1.Admin/Resume", b"").grpc_status == OK


class Ends(MethodsTest):
    """Deadlines and cancellations of calls that wait."""

    def charged(self, row=None):
        """The bytes that are charged; while checks are under way, whose memory changes, those of
        messages."""
        if row is not None and row.places == "kChecks":
            return self.world.charged("requests")
        staging = re.findall(r"^resident_staging_used_bytes\{.*\} (\S+)$", self.world.metrics(),
                             re.MULTILINE)
        return self.world.charged() + sum(map(float, staging))

    def begin(self, row, message, timeout=None):
        connection, stream = self.caller.start(row.name, message, self.caller.connect(),
                                               timeout=timeout)
        return connection, stream, connection.results[stream]

    def check_soon(self, row, message):
        """It is answered although nothing else is."""
        self.assertNotEqual(row.places, "kInstalls")  # A compiler is not awaited here.
        before = self.world.charged("requests")
        connection, _, result = self.begin(row, message)
        connection.read_until(lambda: result.ended != http2.OPEN, WAIT_S / 4)
        self.assertEqual(result.ended, http2.ANSWERED, result)
        connection.close()
        # The next call must not take the memory of this message, released late, for its own.
        self.wait_for("its message is released",
                      lambda: self.world.charged("requests") < before + PADDING_BYTES / 2)

    def check_end(self, row, value, before):
        if value == "kEngine":
            self.assertGreater(self.charged(row), before + PADDING_BYTES / 2)
        else:
            self.wait_for("it is released",
                          lambda: self.charged(row) < before + PADDING_BYTES / 2)

    def end_at_deadline(self, row, value, message):
        if value == "kSoon":
            self.check_soon(row, message)
            return
        before = self.charged(row)
        # A small source is compiled in a tenth of a second.
        timeout = "50m" if row.places == "kInstalls" else "300m"
        connection, _, result = self.begin(row, message, timeout=timeout)
        connection.read_until(lambda: result.ended != http2.OPEN, WAIT_S / 4)
        # The batches of Submit have its deadline, too, and the stream may end with their results.
        ended = AT_DEADLINE + ((OK,) if row.name == "/resident.v1.Executor/Submit" else ())
        self.assertIn(result.grpc_status, ended, result)
        self.check_end(row, value, before)
        connection.close()

    def end_by_cancel(self, row, value, message):
        if value == "kSoon":
            self.check_soon(row, message)
            return
        before = self.charged(row)
        connection, stream, result = self.begin(row, message)
        # What an install or a load sends is not charged as a message; its place shows that it is under
        # way (PlacesTest).
        if row.name not in ("/resident.v1.Operators/Install", "/resident.v1.Models/Load"):
            # What an earlier call had may be released only after `before` was read.
            seen = {before}

            def is_charged():
                now = self.charged(row)
                seen.add(now)
                return now > min(seen) + PADDING_BYTES / 2

            self.wait_for("it is charged", is_charged, seen)
            before = min(seen)
        self.assertEqual(result.ended, http2.OPEN, result)
        connection.send_rst(stream)
        connection.send_ping()
        connection.read_until(lambda: connection.pongs == 1)
        self.check_end(row, value, before)
        connection.close()


class EndsTest(Ends):

    def waiting_examples(self, number):
        """For the methods that otherwise would not wait: what is in use by a task that waits, and
        code to compile."""
        removed = "methods.used{}".format(number)
        unloaded = "methods.used{}".format(number + 1)
        region = "used{}".format(number)
        for name in (removed, unloaded):
            flux = executor_pb2.Batch()
            flux.programs.operator, flux.programs.count = name, 1
            self.caller.start("/resident.v1.Executor/Run",
                              executor_pb2.RunRequest(batch=flux).SerializeToString(), self.using)
        infer = self.caller.infer()
        del infer.raw_input_contents[:]
        for i, tensor in enumerate(infer.inputs):
            tensor.parameters["shared_memory_region"].string_param = region
            tensor.parameters["shared_memory_byte_size"].int64_param = 4 * LARGE
        self.caller.start("/inference.GRPCInferenceService/ModelInfer", infer.SerializeToString(),
                          self.using)
        return {"/resident.v1.Operators/Install": field(1, field(1, "methods.e{}".format(number)) +
                                                        field(6, "x + {}".format(number))),
                "/resident.v1.Models/Load": make_model(
                    "methods.m{}".format(number)).SerializeToString(),
                "/resident.v1.Operators/Remove": field(1, removed),
                "/inference.GRPCInferenceService/RepositoryModelUnload": field(2, unloaded),
                "/inference.GRPCInferenceService/SystemSharedMemoryUnregister": field(1, region)}

    def prepare_waiting(self, number):
        for name in ("methods.used{}".format(number), "methods.used{}".format(number + 1)):
            self.caller.call("/resident.v1.Operators/Install",
                             field(1, field(1, name) + field(7, b"\0") + ACTIVE))
        self.caller.call("/inference.GRPCInferenceService/SystemSharedMemoryRegister",
                         oip.SystemSharedMemoryRegisterRequest(
                             name="used{}".format(number), key=self.world.memory,
                             byte_size=4 * LARGE).SerializeToString())

    def check_ends(self, column, end, values, examples, before_each=lambda row: None):
        # Checks last: the memory of those that are under way changes.
        for row in sorted(METHODS, key=lambda row: row.places == "kChecks"):
            value = getattr(row, column)
            if value not in values or row.name in OF_THE_DAEMON | WAIT_ON_GPUS:
                continue
            self.caller.keep_alive()
            before_each(row)
            with self.subTest("{} of {}".format(column, row.name)):
                end(row, value, examples[row.name] + PADDING)

    def test_while_tasks_and_checks_wait(self):
        for number in (1000, 2000):
            self.prepare_waiting(number)
        self.using = self.caller.connect()
        with Blocked(self.caller) as blocked:
            # Both before the first of them ends.
            waiting = {number: self.waiting_examples(number) for number in (1000, 2000)}
            for column, end, number in (("deadline", self.end_at_deadline, 1000),
                                        ("cancel", self.end_by_cancel, 2000)):
                self.check_ends(column, end, ("kSoon", "kStops"),
                                dict(self.caller.examples(), **waiting[number]),
                                lambda row: blocked.fill() if row.places == "kChecks" else None)
                blocked.empty()
                self.wait_for("no check is under way", lambda: self.world.charged("requests") == 0)

    def test_while_the_engine_is_asked(self):
        for column, end in (("deadline", self.end_at_deadline), ("cancel", self.end_by_cancel)):
            before = self.charged()
            examples = self.caller.examples()
            self.world.freeze()
            self.check_ends(column, end, ("kEngine",), examples)
            self.world.thaw()
            self.wait_for("what the engine was asked is released",
                          lambda: self.charged() < before + PADDING_BYTES / 2)


class DaemonEndsTest(Ends):
    """For the methods that change the whole daemon."""

    def end(self, name):
        row = next(row for row in METHODS if row.name == name)
        message = self.caller.examples()[name] + PADDING
        for column, end in (("deadline", self.end_at_deadline), ("cancel", self.end_by_cancel)):
            with self.subTest("{} of {}".format(column, name)):
                end(row, getattr(row, column), message)

    def test_while_the_engine_and_tasks_wait(self):
        park, resume, drain = ("/resident.v1.Admin/" + name for name in ("Park", "Resume", "Drain"))
        self.world.freeze()
        self.end(park)
        self.world.thaw()
        self.assertEqual(self.caller.call(park, b"").grpc_status, OK)
        self.world.freeze()
        self.end(resume)
        self.world.thaw()
        self.assertEqual(self.caller.call(park, b"").grpc_status, OK)
        self.caller.start("/resident.v1.Executor/Run",
                          executor_pb2.RunRequest(batch=self.caller.run()).SerializeToString())
        self.end(drain)


class PlacesTest(MethodsTest):
    """One caller takes all the places that it can have."""

    FLAGS = ("--max_install_header_ms=600000",)
    # Of each kind of place: what the error says, and the method whose calls take them.
    KINDS = {
        "kSessions": ("32 sessions", "/resident.v1.Sessions/Open"),
        "kConnection": ("32 connections", "/resident.v1.Executor/Submit"),
        "kWatches": ("Operators.Watch streams", "/resident.v1.Operators/Watch"),
        "kHealthWatches": ("Health.Watch streams", "/grpc.health.v1.Health/Watch"),
        "kInstalls": ("installs under way", "/resident.v1.Operators/Install"),
        "kLoads": ("calls of Buffers.LoadFile", "/resident.v1.Buffers/LoadFile"),
        "kShared": ("buffers in shared memory",
                    "/inference.GRPCInferenceService/SystemSharedMemoryRegister"),
        "kChecks": ("checks of graphs", VALIDATE),
        "kGraphRuns": ("runs of graphs", "/resident.v1.Graphs/Run"),
        "kGraphSessions": ("graph sessions", "/resident.v1.Graphs/OpenSession"),
        "kLanes": ("local lanes", "/resident.v1.Lanes/Open"),
    }
    # They stay taken after the call.
    KEPT = ("kShared", "kGraphSessions")

    def refused(self, kind, result):
        return (result.grpc_status == RESOURCE_EXHAUSTED and
                self.KINDS[kind][0] in text_of(result))

    def fill(self, kind):
        """Takes places of this kind until none is left for the caller. Returns the connections."""
        method = self.KINDS[kind][1]
        if kind == "kConnection":
            return self.fill_connections(method)
        connection = self.caller.connect()
        slow = graphs_pb2.ValidateGraphRequest(graph=make_slow_graph()).SerializeToString()
        small = graphs_pb2.Graph(name="small", format=1)
        small.tensors.add(name="s", kind=graphs_pb2.GraphTensor.KIND_STATE,
                          dtype=F32).shape.add(size=4)
        small.nodes.add(name="n", operator="zero").arguments.add(
            parameter="out").tensor.name = "s"
        if kind == "kGraphSessions":
            loaded = self.caller.get("/resident.v1.Graphs/Load", graphs_pb2.LoadGraphRequest(
                graph=small).SerializeToString(), graphs_pb2.LoadGraphResponse).graph_id
        for number in range(2000):
            message = {"kChecks": slow, "kInstalls": None}.get(kind, b"")
            if kind == "kGraphSessions":
                message = field(1, loaded)
            elif kind == "kShared":
                message = oip.SystemSharedMemoryRegisterRequest(
                    name="kept{}".format(self.world.next_number()), key=self.world.memory,
                    byte_size=4096).SerializeToString()
            elif kind in ("kLoads", "kGraphRuns"):
                message = self.caller.examples(shared=False)[method]
            self.caller.start(method, message, connection)
            if number % 16 == 0:
                pongs = connection.pongs + 1
                connection.send_ping()
                connection.read_until(lambda p=pongs: connection.pongs == p)
            self.caller.keep_alive()
            if any(self.refused(kind, result) for result in connection.results.values()):
                return [connection]
        self.fail("no call was refused")

    def fill_connections(self, method):
        connections = []
        submit = executor_pb2.SubmitRequest(batch=self.caller.run()).SerializeToString()
        while len(connections) < 100:
            connection = self.caller.connect()
            connections.append(connection)
            stream = self.caller.start(method, submit, connection, headers=self.caller.bearer)[1]
            connection.send_ping()
            connection.read_until(lambda: connection.pongs == 1)
            self.caller.keep_alive()
            if self.refused("kConnection", connection.results[stream]):
                return connections
        self.fail("no connection was refused")

    def call(self, kind, rows):
        """{row: result} of a call of each method."""
        examples = self.caller.examples()
        calls = {}
        for row in rows:
            headers = self.caller.bearer if row.places == kind == "kConnection" else None
            connection = self.caller.connect()
            if row.places == kind == "kHealthWatches":  # The first one is part of the connection.
                stream = self.caller.start(row.name, examples[row.name], connection)[1]
                self.wait_for("it begins", lambda c=connection, s=stream: c.results[s].messages)
            calls[row] = self.caller.start(row.name, examples[row.name], connection,
                                           headers=headers, timeout="2S")
        results = {}
        for row, (connection, stream) in calls.items():
            result = results[row] = connection.results[stream]
            self.wait_for("it ends", lambda r=result: r.ended != http2.OPEN)
            connection.close()
        return results

    def check_kind(self, kind, address):
        taken = self.fill(kind)
        rows = [row for row in METHODS if row.name not in OF_THE_DAEMON]
        self.assertEqual({row.places for row in METHODS if row not in rows}, {"kNone"})
        for row, result in self.call(kind, rows).items():
            with self.subTest("{} {}".format(kind, row.name)):
                self.assertEqual(self.refused(kind, result), row.places == kind, result)
        # A caller that has none gets one: a session, and what the calls take.
        other = self.world.caller(source=address)
        for name in ("buffer", "uploaded", "durable", "graph", "graph_session", "lane"):
            setattr(other, name, getattr(self.caller, name))
        if kind != "kSessions":
            method = self.KINDS[kind][1]
            result = other.call(method, other.examples()[method], timeout="2S",
                                headers=[] if kind == "kConnection" else None)
            self.assertFalse(self.refused(kind, result), result)
        other.close()
        # What is cancelled leaves its place, while tasks still wait.
        for connection in taken:
            connection.close(reset=True)
        if kind not in self.KEPT:
            rows = [row for row in METHODS if row.places == kind]
            self.wait_for("places of {} are free".format(kind), lambda: not any(
                self.refused(kind, result) for result in self.call(kind, rows).values()))

    def test_places_of_one_caller(self):
        self.assertEqual({row.places for row in METHODS} - {"kNone", "kSession"}, set(self.KINDS))
        addresses = {kind: "127.0.0.{}".format(i) for i, kind in enumerate(self.KINDS, 2)}
        for kind in self.KEPT:
            self.check_kind(kind, addresses[kind])
        with Blocked(self.caller):
            for kind in self.KINDS:
                if kind not in self.KEPT:
                    with self.subTest(kind):
                        self.check_kind(kind, addresses[kind])

    def test_methods_that_need_a_session(self):
        needs = ("kSession", "kLoads", "kGraphSessions", "kLanes")

        def check(row, message):
            result = self.caller.call(row.name, message, headers=[], timeout="2S")
            self.assertEqual("the call has no session" in text_of(result),
                             row.places in needs or "/Import" in row.name, result)

        self.check_each(lambda row, message: row.name in OF_THE_DAEMON or check(row, message))


class QuotaTest(unittest.TestCase):
    """Identities whose quotas are lowered to nothing once they have what the examples need."""

    # Of each quota of the policy: what the error names.
    NAMES = {
        "tasks_in_flight": "(tasks_in_flight)",
        "buffer_mib": "(buffer_mib",
        "sessions": "(quotas.sessions)",
        "watches": "(quotas.watches)",
        "installs": "(quotas.installs)",
        "installs_per_minute": "(installs_per_minute)",
    }
    QUOTAS = {
        "kNoQuota": [],
        "kTasks": ["tasks_in_flight"],
        "kBytes": ["buffer_mib"],
        "kBoth": ["tasks_in_flight", "buffer_mib"],
        "kSessionQuota": ["sessions"],
        "kWatchQuota": ["watches"],
        "kInstallQuota": ["installs", "installs_per_minute"],
    }

    def write(self, lowered):
        identities = {name: {"roles": ["submit", "install", "admin"],
                             "quotas": {name: 0} if lowered else {}} for name in self.NAMES}
        self.policy.with_suffix(".new").write_text(json.dumps({"identities": identities}))
        self.policy.with_suffix(".new").rename(self.policy)

    def test_quotas(self):
        folder = tempfile.TemporaryDirectory(prefix="residentd-quotas-")
        self.addCleanup(folder.cleanup)
        self.policy = pathlib.Path(folder.name) / "policy"
        self.write(lowered=False)
        tokens = pathlib.Path(folder.name) / "tokens"
        tokens.write_text("".join(
            "{} {}\n".format(name, hashlib.sha256(name.encode()).hexdigest())
            for name in self.NAMES))
        tokens.chmod(0o600)
        world = World("--policy={}".format(self.policy), "--token_file={}".format(tokens),
                      local=True)
        self.addCleanup(world.close)
        callers = {}
        for name in sorted(self.NAMES, key="watches".__ne__):  # That one first.
            callers[name] = world.caller(token=name)
            callers[name].prepare()
            if name == "watches":
                world.prepare(callers[name])
            world.keep_alive()
        self.write(lowered=True)
        os.kill(world.daemon.process.pid, signal.SIGHUP)
        deadline = time.monotonic() + WAIT_S
        while "reloaded --policy" not in world.daemon.log.read_text(errors="replace"):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        for quota, caller in callers.items():
            world.keep_alive()
            examples = caller.examples()
            for row in METHODS:
                world.keep_alive()
                with self.subTest("{} {}".format(quota, row.name)):
                    if row.name in OF_THE_DAEMON:
                        self.assertEqual(row.quota, "kNoQuota")
                        continue
                    result = caller.call(row.name, examples[row.name], timeout="20S")
                    self.assertEqual(self.NAMES[quota] in text_of(result),
                                     quota in self.QUOTAS[row.quota], (result, text_of(result)))


if __name__ == "__main__":
    unittest_main.main()
