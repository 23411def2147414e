#!/usr/bin/python3
"""What clients see that balance their calls over several daemons: real daemons on addresses of the
loopback interface, gRPC's own round_robin policy with health checks, and a real DNS server.

The last line is `N passed, N failed`.
"""

import contextlib
import json
import os
import pathlib
import queue
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
from fleet import WAIT_S, Dns, FleetTest, Load, page, tasks_of  # noqa: E402
import grpc  # noqa: E402
import inference_client  # noqa: E402
import numpy  # noqa: E402
from support import message, residentd, unittest_main  # noqa: E402

# The service config that balances: docs/operations.md.
BALANCED = json.dumps({"loadBalancingConfig": [{"round_robin": {}}],
                       "healthCheckConfig": {"serviceName": ""}})
# grpc.health.v1.HealthCheckResponse.
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
F32 = 1  # resident.v1.DType.
CLIENTS = 300
BATCHES = 20  # Of a stream.


def add():
    """A request for 1 + 2."""
    request = message("resident.v1.RunRequest")()
    tasks = request.batch.tasks
    tasks.operator, tasks.count = "add", 1
    for value in (1.0, 2.0):
        tensor = tasks.arguments.add().inline
        tensor.dtype = F32
        tensor.shape.append(1)
        tensor.data = numpy.float32([value]).tobytes()
    tasks.arguments.add().returned.infer_shape = True
    tasks.arguments.add().scalar.f64.append(1.0)
    return request


def balanced(target, **options):
    """A channel that shares no connection with other channels. gRPC itself may send a call again that
    no server has seen, as the GOAWAY of a connection's age can need, unless enable_retries is 0."""
    options = {"grpc.service_config": BALANCED,
               "grpc.use_local_subchannel_pool": 1, "grpc.initial_reconnect_backoff_ms": 100,
               "grpc.max_reconnect_backoff_ms": 500,
               **{"grpc." + name: value for name, value in options.items()}}
    return grpc.insecure_channel(target, options=list(options.items()))


class NodesTest(FleetTest):
    def run_on(self, channel):
        """Returns a function that runs a task, checks its answer, and raises RpcError."""
        request = add().SerializeToString()
        call = channel.unary_unary("/resident.v1.Executor/Run",
                                   response_deserializer=message(
                                       "resident.v1.RunResponse").FromString)

        def run():
            result = call(request, timeout=WAIT_S).result
            self.assertEqual(numpy.frombuffer(result.outputs[0], numpy.float32), [3.0])

        return run

    def stream_on(self, channel):
        """Returns a function that opens a stream, which gRPC keeps on one node, sends BATCHES batches on it,
        each after the answer of the one before, and ends it."""
        call = channel.stream_stream("/resident.v1.Executor/Submit",
                                     response_deserializer=message("resident.v1.SubmitResponse").FromString)

        def stream():
            requests = queue.SimpleQueue()
            answers = call(iter(requests.get, None), timeout=WAIT_S)
            try:
                for number in range(BATCHES):
                    request = message("resident.v1.SubmitRequest")()
                    request.batch.CopyFrom(add().batch)
                    request.batch.id = number
                    requests.put(request.SerializeToString())
                    result = next(answers).result
                    self.assertEqual((result.id, result.refused.message), (number, ""))
                    self.assertEqual(numpy.frombuffer(result.outputs[0], numpy.float32), [3.0])
            finally:
                requests.put(None)
            self.assertEqual(list(answers), [])

        return stream

    def test_each_of_300_clients_behind_one_address_is_served(self):
        """Each keeps a Health.Watch open, of which one address may have 224 beyond the first of
        each connection."""
        node = self.node()
        with contextlib.ExitStack() as open_channels:
            calls = []
            for _ in range(CLIENTS):
                channel = open_channels.enter_context(balanced("ipv4:" + node.address))
                call = channel.unary_unary("/resident.v1.Executor/Run")
                calls.append(call.future(add().SerializeToString(), timeout=WAIT_S))
            codes = [call.code() for call in calls]
            self.assertEqual(codes.count(grpc.StatusCode.OK), CLIENTS, [
                call.details() for call in calls if call.code() != grpc.StatusCode.OK][:3])
            open_now = re.search(r"^resident_connections (\d+)$", page(node, "metrics"), re.M)
            self.assertGreaterEqual(int(open_now.group(1)), CLIENTS)

    def test_work_goes_on_when_a_connection_reaches_its_age(self):
        node = self.node("--max_connection_age=1s")
        connected = []
        with residentd.connect(node.address) as rd, \
                grpc.insecure_channel(node.address) as channel:
            buffer = rd.upload(numpy.arange(8, dtype=numpy.float32))
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=WAIT_S)
            self.assertEqual(next(watch), SERVING)
            channel.subscribe(lambda state: connected.append(state)
                              if state == grpc.ChannelConnectivity.READY else None)
            run = self.run_on(channel)

            def three_connections():
                run()
                self.assertEqual(rd.op("add")(buffer[:1], buffer[1:2]), 1)
                return len(connected) >= 3

            self.wait_for("further connections", three_connections)
            # The first connection is still open for what began on it.
            self.assertFalse(watch.done())
            numpy.testing.assert_array_equal(buffer.numpy(), numpy.arange(8))

    def test_a_node_that_is_added_to_dns_gets_work(self):
        first = self.node("--max_connection_age=1s", "--address=127.0.0.11:0")
        port = first.address.rpartition(":")[2]
        second = self.node("--max_connection_age=1s", "--address=127.0.0.12:" + port)
        with Dns() as dns:
            dns.set("127.0.0.11")
            with balanced("dns://127.0.0.1:{}/nodes.test:{}".format(dns.port, port),
                          dns_min_time_between_resolutions_ms=100) as channel:
                run = self.run_on(channel)
                run()
                self.assertEqual((tasks_of(first), tasks_of(second)), (1, 0))
                dns.set("127.0.0.11", "127.0.0.12")
                with Load(run) as load:
                    self.wait_for("work on the new node", lambda: tasks_of(second) > 0)
                self.assertEqual(load.errors, [])

    def test_no_call_fails_when_three_nodes_are_restarted_one_after_the_other(self):
        flags = ("--drain_notice=10m",)
        nodes = [self.node(*flags, "--address=127.0.0.{}:0".format(last)) for last in (11, 12, 13)]
        addresses = [node.address for node in nodes]
        with balanced("ipv4:" + ",".join(addresses), enable_retries=0) as channel, \
                contextlib.ExitStack() as opened:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            x = numpy.float32([1])
            request = inference_client.request("add", {"x": x, "y": x}).SerializeToString()
            # And the package's own streams, which live through all restarts.
            rd = opened.enter_context(residentd.connect(targets="ipv4:" + ",".join(addresses)))
            stream = opened.enter_context(rd.stream(max_age=0.2))
            op = rd.op("add")

            def submit():
                self.assertEqual(stream.submit(op, x, x).result(WAIT_S), [2])

            with Load(self.run_on(channel), lambda: infer(request, timeout=WAIT_S), self.stream_on(channel),
                      submit) as load:

                def get_no_work(node):
                    """While the clients make 50 calls."""
                    before, done = tasks_of(node), load.done
                    self.wait_for("50 calls", lambda: load.done >= done + 50)
                    return tasks_of(node) == before

                for number, node in enumerate(nodes):
                    # Also the node that was restarted last has its share again.
                    for each in nodes:
                        self.wait_for("work", lambda n=each: tasks_of(n) > 0)
                    node.process.send_signal(signal.SIGTERM)
                    self.wait_for("no work", lambda n=node: get_no_work(n))
                    # The notice of this test has no end of its own.
                    node.process.send_signal(signal.SIGTERM)
                    self.assertEqual(node.process.wait(WAIT_S), 0)
                    nodes[number] = self.node(*flags, "--address=" + addresses[number])
                for node in nodes:
                    self.wait_for("work", lambda n=node: tasks_of(n) > 0)
            self.assertEqual(load.errors, [])

    def test_work_is_accepted_during_the_notice(self):
        node = self.node("--drain_notice=10m")
        with grpc.insecure_channel(node.address) as channel, \
                inference_client.Client(node.address) as inference:
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=WAIT_S)
            self.assertEqual(next(watch), SERVING)
            self.assertEqual(page(node, "readyz"), "ok\n")
            node.process.send_signal(signal.SIGTERM)
            self.assertEqual(next(watch), NOT_SERVING)
            with self.assertRaises(urllib.error.HTTPError) as unready:
                page(node, "readyz")
            self.assertEqual(unready.exception.code, 503)
            self.assertFalse(inference.ServerReady().ready)
            self.run_on(channel)()
            with residentd.connect(node.address) as rd:
                self.assertEqual(rd.op("add")(numpy.float32([1]), numpy.float32([2])), [3])
            # A second signal ends the notice.
            node.process.send_signal(signal.SIGTERM)
            self.assertEqual(node.process.wait(WAIT_S), 0)

    def test_the_notice_ends_by_itself(self):
        node = self.node("--drain_notice=300ms")
        began = time.monotonic()
        node.process.send_signal(signal.SIGTERM)
        self.assertEqual(node.process.wait(WAIT_S), 0)
        self.assertGreaterEqual(time.monotonic() - began, 0.3)


class VolumesTest(FleetTest):
    """Folders as Kubernetes mounts them: with the mode 2777, and those of ConfigMaps read-only."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="residentd-volumes-")
        self.addCleanup(temporary.cleanup)
        self.volume = pathlib.Path(temporary.name) / "volume"
        self.volume.mkdir()
        self.volume.chmod(0o2777)

    def test_the_state_folder_is_made_inside_a_volume(self):
        with self.assertRaises(RuntimeError) as refused:
            self.node("--state_dir={}".format(self.volume))
        self.assertIn("mode 2777", str(refused.exception))
        self.assertRegex(str(refused.exception),
                         "Fix: .*in Kubernetes.* use a folder inside the volume")
        state = self.volume / "state"
        self.node("--state_dir={}".format(state))
        # It inherits the volume's set-group-ID bit.
        self.assertEqual(stat.S_IMODE(state.stat().st_mode) & 0o777, 0o700)

    def test_a_folder_on_a_read_only_mount_counts_as_not_writable(self):
        mount = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
        if subprocess.run(mount + ["true"], capture_output=True).returncode != 0:
            self.skipTest("this machine lets the test make no mount namespace")
        policy = self.volume / "policy"
        policy.write_text('{"identities": {"anonymous": {"roles": ["submit"]}}}')
        policy.chmod(0o666)
        with self.assertRaises(RuntimeError) as refused:
            self.node("--policy={}".format(policy))
        self.assertIn("may be written by every user", str(refused.exception))
        script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
        node = self.node("--policy={}".format(policy),
                         before=mount + ["sh", "-c", script, str(self.volume)])
        self.assertNotIn("may be written", node.log.read_text())


if __name__ == "__main__":
    unittest_main.main()
