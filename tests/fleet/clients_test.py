#!/usr/bin/python3
"""The clients of several nodes: what spreads over the nodes, what sticks to one, and what happens when a
node is added, drained, killed or restarted.

The last line is `N passed, N failed`.
"""

import asyncio
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
from fleet import WAIT_S, Dns, FleetTest, Load, Nginx, page, tasks_of  # noqa: E402
import grpc  # noqa: E402
import inference_client  # noqa: E402
import numpy as np  # noqa: E402
from support import daemons, package_path, residentd, unittest_main  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent.parent / "auth"))
import certificates  # noqa: E402
import residentd.aio  # noqa: E402

X, Y = np.float32([1, 2]), np.float32([10, 20])
THREADS = 2


def target_of(nodes):
    return "ipv4:" + ",".join(node.address for node in nodes)


def sessions_of(node):
    return int(re.search(r"^resident_clients (\d+)$", page(node, "metrics"), re.M).group(1))


def doubling(rd):
    """A graph."""
    builder = residentd.GraphBuilder("doubling", rd)
    x = builder.input("x", 2)
    builder.output("y", builder.call("add", x, x))
    return builder.build()


class ClientsTest(FleetTest):

    def connect(self, nodes, **options):
        client = residentd.connect(targets=target_of(nodes), **options)
        self.addCleanup(client.close)
        return client

    def the_one(self, nodes, address):
        return next(node for node in nodes if node.address == address)

    def node_left(self, address, call, *args, **options):
        with self.assertRaises(residentd.Unavailable) as left:
            call(*args, **options)
        self.assertEqual((left.exception.reason, left.exception.details), ("NODE_LEFT", {"node": address}),
                         left.exception)
        self.assertIn(address, left.exception.message)
        self.assertIn("upload()", left.exception.fix)

    def spreads(self, nodes, call):
        """Makes calls until each node has done some: connections to the nodes come one after the other."""
        before = [tasks_of(node) for node in nodes]

        def each_has_work():
            call()
            return all(tasks_of(node) > count for node, count in zip(nodes, before))

        self.wait_for("work on each node", each_has_work)

    def stop(self, node):
        """Drains the node and waits for its end."""
        node.process.send_signal(signal.SIGTERM)
        self.assertEqual(node.process.wait(WAIT_S), 0)

    def kill(self, node):
        node.process.kill()
        node.process.wait(WAIT_S)


class SpreadTest(ClientsTest):

    def test_calls_without_state_go_to_all_nodes_and_need_no_session(self):
        nodes = self.nodes()
        rd = self.connect(nodes)
        add = rd.op("add")
        calls = [lambda: self.assertEqual(add(X, Y).tolist(), [11, 22]),
                 lambda: add.map(np.stack([X, X]), Y, shared=("y",)),
                 lambda: rd.flux(bytes([0x20, 0, 0, 1]), [[1, 2]]),
                 # More than what goes through shared memory, where there is one daemon.
                 lambda: add(np.zeros(1 << 16, np.float32), np.float32(1))]
        for call in calls:
            self.spreads(nodes, call)
        self.assertEqual([sessions_of(node) for node in nodes], [0, 0, 0])

    def test_a_stream_with_an_age_goes_to_all_nodes_and_outlives_them(self):
        nodes = self.nodes()
        rd = self.connect(nodes)
        add = rd.op("add")
        with rd.stream(max_age=0.01) as stream:
            self.spreads(nodes, lambda: self.assertEqual(stream.submit(add, X, Y).result().tolist(), [11, 22]))
            self.assertEqual([sessions_of(node) for node in nodes], [0, 0, 0])
            x = rd.upload(X)
            with self.assertRaisesRegex(residentd.InvalidArgument, "max_age moves between nodes"):
                stream.submit(add, x, Y)
        # One that was idle while its node went.
        with rd.stream(max_age=0.01) as stream:
            stream.submit(add, X, Y).result()
            for node in nodes[:2]:
                self.stop(node)
            self.spreads(nodes[2:], lambda: self.assertEqual(stream.submit(add, X, Y).result().tolist(), [11, 22]))

    def test_a_graph_of_every_node_runs_on_every_node_and_a_loaded_one_where_it_was_loaded(self):
        nodes = self.nodes(count=2)
        rd = self.connect(nodes)
        graph = doubling(rd)
        loaded = rd.graphs.load(graph)
        for _ in range(4):
            np.testing.assert_array_equal(loaded.run(x=X).outputs["y"], 2 * X)
        for node in nodes:
            with residentd.connect(node.address) as one:
                one.graphs.load(graph)
        found = rd.graphs.find("doubling")

        def run():
            np.testing.assert_array_equal(found.run(x=X).outputs["y"], 2 * X)

        def run_stream():
            with found.run_stream(x=X) as records:
                list(records)
                np.testing.assert_array_equal(records.result.outputs["y"], 2 * X)

        self.spreads(nodes, run)
        self.spreads(nodes, run_stream)

    def test_a_node_that_is_added_to_dns_gets_work(self):
        first = self.node("--max_connection_age=1s", "--address=127.0.0.11:0")
        port = first.address.rpartition(":")[2]
        second = self.node("--max_connection_age=1s", "--address=127.0.0.12:" + port)
        with Dns() as dns, unittest.mock.patch("residentd.credentials._RESOLVE_MS", 100):
            dns.set("127.0.0.11")
            target = "dns://127.0.0.1:{}/nodes.test:{}".format(dns.port, port)
            with residentd.connect(targets=target, retry=True) as rd:
                add = rd.op("add")
                add(X, Y)
                self.assertEqual((tasks_of(first), tasks_of(second)), (1, 0))
                dns.set("127.0.0.11", "127.0.0.12")
                with Load(lambda: add(X, Y)) as load:
                    self.wait_for("work on the new node", lambda: tasks_of(second) > 0)
                self.assertEqual(load.errors, [])
                with self.assertRaisesRegex(residentd.FailedPrecondition, "dns:///nodes.test"):
                    rd.upload(X)

    def test_mistakes_are_explained(self):
        with self.assertRaisesRegex(residentd.InvalidArgument, "both given"):
            residentd.connect("127.0.0.1:1", targets="ipv4:127.0.0.1:1")
        with self.assertRaisesRegex(residentd.InvalidArgument, "not HOST:PORT"):
            residentd.connect(targets="dns:///nodes.test")
        with self.assertRaisesRegex(residentd.InvalidArgument, "tls_server_name"):
            residentd.connect(targets="ipv4:127.0.0.1:1,127.0.0.1:2", tls_ca="ca.pem")
        with self.assertRaisesRegex(residentd.FailedPrecondition, "in the clear"):
            residentd.connect(targets="ipv4:127.0.0.1:1,10.0.0.1:2", token_file="token")
        with self.assertRaisesRegex(residentd.Unavailable, "cannot reach ipv4:127.0.0.1:1"):
            residentd.connect(targets="ipv4:127.0.0.1:1,127.0.0.1:2")
        with residentd.connect(self.node().address) as rd, \
                self.assertRaisesRegex(residentd.FailedPrecondition, "targets="):
            rd.pin()

    def test_only_calls_in_flight_on_a_killed_node_fail(self):
        """Each node is drained, killed and restarted, under calls of the package and of inference."""
        nodes = self.nodes("--drain_notice=10m")
        rd = self.connect(nodes, retry=True)
        add = rd.op("add")

        def native():
            self.assertEqual(add(X, Y).tolist(), [11, 22])

        with grpc.insecure_channel(target_of(nodes), options=list(residentd.credentials.target_and_options(
                rd._connection._settings)[1])) as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            request = inference_client.request("add", {"x": X, "y": Y}).SerializeToString()
            with Load(native, threads=THREADS) as load, \
                    Load(lambda: infer(request, timeout=WAIT_S), threads=THREADS) as inference:

                def gets_no_work(node):
                    """While the clients make 50 calls."""
                    before, done = tasks_of(node), load.done
                    self.wait_for("50 calls", lambda: load.done >= done + 50)
                    return tasks_of(node) == before

                def drain(node):
                    node.process.send_signal(signal.SIGTERM)
                    self.wait_for("no work", lambda: gets_no_work(node))
                    self.stop(node)  # The notice of this test has no end of its own.

                for number, node in enumerate(nodes):
                    for end in (drain, self.kill):
                        self.wait_for("work", lambda n=node: tasks_of(n) > 10)
                        errors = len(load.errors)
                        end(node)
                        done = load.done
                        self.wait_for("50 calls", lambda: load.done >= done + 50)
                        self.assertLessEqual(len(load.errors) - errors, THREADS if end == self.kill else 0,
                                             load.errors)
                        node = nodes[number] = self.node("--drain_notice=10m", "--address=" + node.address)
                for node in nodes:
                    self.wait_for("work", lambda n=node: tasks_of(n) > 10)
        for error in load.errors:
            self.assertIsInstance(error, residentd.Unavailable)
            self.assertTrue(error.may_have_run, error)
        for error in inference.errors:
            self.assertEqual(error.code(), grpc.StatusCode.UNAVAILABLE, error)


class StickTest(ClientsTest):

    def test_what_belongs_to_a_node_stays_there(self):
        nodes = self.nodes()
        rd = self.connect(nodes)
        add = rd.op("add")
        x, y = rd.upload(X), rd.upload(Y)
        before = {node.address: tasks_of(node) for node in nodes}
        for _ in range(6):
            self.assertEqual(add(x, y).tolist(), [11, 22])
            self.assertEqual(add.submit(x, y).result().tolist(), [11, 22])
        home = [node for node in nodes if tasks_of(node) > before[node.address]]
        self.assertEqual(len(home), 1)
        self.assertEqual(sum(sessions_of(node) for node in nodes), 1)
        # Each further client is one of a further node, and all of its calls go there.
        for _ in range(2):
            pinned = rd.pin()
            self.addCleanup(pinned.close)
            node = self.the_one(nodes, pinned._connection.address)
            self.assertNotIn(node, home)
            home.append(node)
            count = tasks_of(node)
            for _ in range(3):
                pinned.op("add")(X, Y)
            self.assertEqual(tasks_of(node), count + 3)
            self.assertEqual(pinned.upload(X).numpy().tolist(), X.tolist())

    def test_handles_of_a_node_that_was_killed_name_it_and_the_next_upload_uses_another(self):
        nodes = self.nodes()
        rd = self.connect(nodes)
        add = rd.op("add")
        x = rd.upload(X)
        graph = rd.graphs.load(doubling(rd))
        session = graph.open()
        stream = rd.stream()
        stream.submit(add, x, x).result()
        home = rd._connection.current.address
        self.kill(self.the_one(nodes, home))
        for call in (x.numpy, lambda: x.write(Y), lambda: add(x, x), lambda: add(x, x, retry=True),
                     lambda: add(x, x, retry="may_run_twice"), lambda: stream.submit(add, X, X).result(),
                     lambda: session.run(x=X)):
            self.node_left(home, call)
        again = rd.upload(X)
        self.assertNotEqual(rd._connection.current.address, home)
        self.assertEqual(add(again, again).tolist(), [2, 4])
        self.assertEqual(add.submit(again, again).result().tolist(), [2, 4])
        for call in (x.numpy, lambda: add(x, again), lambda: graph.run(x=X)):
            self.node_left(home, call)
        x.free()  # It is gone already.

    def test_a_node_that_drains_gets_no_upload(self):
        nodes = self.nodes("--drain_notice=10m")
        rd = self.connect(nodes)
        x = rd.upload(X)
        home = rd._connection.current.address
        draining = self.the_one(nodes, home)
        draining.process.send_signal(signal.SIGTERM)
        # The notice: what is there works.
        self.assertEqual(rd.op("add")(x, x).tolist(), [2, 4])
        self.stop(draining)
        y = rd.upload(Y)
        self.assertNotEqual(rd._connection.current.address, home)
        self.assertEqual(y.numpy().tolist(), Y.tolist())
        self.node_left(home, x.numpy)

    def test_uploads_go_on_while_nodes_are_restarted(self):
        nodes = self.nodes(count=2)
        rd = self.connect(nodes, retry=True)
        add = rd.op("add")

        def upload_and_use():
            x = rd.upload(X)
            self.assertEqual(add(x, Y).tolist(), [11, 22])

        with Load(upload_and_use) as load:
            for number, node in enumerate(nodes):
                for end in (self.stop, self.kill):
                    self.wait_for("work", lambda n=node: tasks_of(n) > 10 or rd._connection.current is None or
                                  rd._connection.current.address != n.address)
                    end(node)
                    done = load.done
                    self.wait_for("20 calls", lambda: load.done >= done + 20)
                    node = nodes[number] = self.node("--address=" + node.address)
        addresses = [node.address for node in nodes]
        for error in load.errors:
            self.assertEqual(error.reason, "NODE_LEFT", error)
            self.assertIn(error.details["node"], addresses)

    def test_without_a_node_that_serves_the_error_names_them(self):
        nodes = self.nodes(count=2)
        rd = self.connect(nodes)
        for node in nodes:
            self.kill(node)
        with self.assertRaises(residentd.Unavailable) as none:
            rd.upload(X)
        for node in nodes:
            self.assertIn(node.address, none.exception.message)
        self.assertIn("residentctl status --targets", none.exception.fix)


class ProxyTest(ClientsTest):
    """Behind a proxy that chooses the node of each call, the target has one address."""

    def test_sessions_work_behind_a_proxy_that_hashes_the_header(self):
        nodes = self.nodes()
        nginx = Nginx(nodes)
        self.addCleanup(nginx.stop)
        rd = residentd.connect(targets=nginx.address)
        self.addCleanup(rd.close)
        add = rd.op("add")
        self.spreads(nodes, lambda: add(X, Y))
        pins = [rd.pin() for _ in range(6)]
        for client in pins:
            self.addCleanup(client.close)
        affinities = {client._connection._settings.affinity for client in pins}
        self.assertEqual(len(affinities), 6)
        for affinity in affinities:
            self.assertRegex(affinity, "^[0-9a-f]{32}$")
        for client in [rd] + pins:
            x = client.upload(X)
            for _ in range(6):
                self.assertEqual(client.op("add")(x, x).tolist(), [2, 4])
                self.assertEqual(x.numpy().tolist(), X.tolist())
            self.assertEqual(client.op("add").submit(x, x).result().tolist(), [2, 4])
        self.assertEqual(sum(sessions_of(node) for node in nodes), 7)

    def test_a_session_ends_when_its_calls_reach_another_node(self):
        nodes = self.nodes(count=2)
        nginx = Nginx(nodes[:1])
        self.addCleanup(nginx.stop)
        rd = residentd.connect(targets=nginx.address)
        self.addCleanup(rd.close)
        x = rd.upload(X)
        nginx.reload(nodes[1:])

        def lost():
            try:
                x.numpy()
                return None
            except residentd.Unavailable as error:
                return error

        found = []
        self.wait_for("the other node", lambda: found.append(lost()) or found[-1])
        self.assertEqual(found[-1].reason, "NODE_LEFT", found[-1])
        self.assertEqual(rd.upload(X).numpy().tolist(), X.tolist())
        self.node_left(nginx.address, x.numpy)

    def test_a_node_tells_a_session_of_another_one(self):
        nodes = self.nodes(count=2)
        with residentd.connect(nodes[0].address) as first, residentd.connect(nodes[1].address) as second:
            x = second.upload(X)
            session = first._connection.session()[0]
            for id, reason in ((session, "SESSION_ELSEWHERE"), ("none", "UNKNOWN_SESSION")):
                second._connection._set_session((id, ""))
                with self.assertRaises(residentd.Unauthenticated) as refused:
                    x.numpy()
                self.assertEqual(refused.exception.reason, reason)
                self.assertRegex(refused.exception.fix, ".")


# Run where /etc/hosts is a file of the test. Arguments: the port, the authority's certificate.
BY_NAME = """
import sys
import numpy as np
import residentd

with residentd.connect(targets="dns:///nodes.test:" + sys.argv[1], tls_ca=sys.argv[2]) as rd:
    x = np.float32([1, 2])
    for _ in range(12):
        assert rd.op("add")(x, x).tolist() == [2, 4]
    assert rd.upload(x).numpy().tolist() == [1, 2]
    nodes = [rd._connection.current.address]
    for _ in range(2):
        with rd.pin() as pinned:
            assert pinned.upload(x).numpy().tolist() == [1, 2]
            nodes.append(pinned._connection.address)
    print(*sorted(nodes))
"""


class NamesTest(ClientsTest):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="residentd-names-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.authority = certificates.Authority(self.folder)
        server = self.authority.issue("server", "DNS:nodes.test")
        self.servers = self.nodes("--tls_cert=" + server.certificate, "--tls_key=" + server.key)

    def test_tls_checks_the_name_and_not_the_address(self):
        rd = self.connect(self.servers, tls_ca=self.authority.certificate, tls_server_name="nodes.test")
        self.assertEqual(rd.op("add")(X, Y).tolist(), [11, 22])
        self.assertEqual(rd.upload(X).numpy().tolist(), X.tolist())
        with self.assertRaises(residentd.Unavailable):
            self.connect(self.servers, tls_ca=self.authority.certificate, tls_server_name="other.test")
        shown = daemons.ctl("status", "--targets=" + target_of(self.servers), "--tls_ca",
                            self.authority.certificate, "--tls_server_name=nodes.test")
        self.assertEqual(shown.code, daemons.OK, shown)

    def test_a_name_is_resolved_and_checked(self):
        mount = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
        if subprocess.run(mount + ["true"], capture_output=True).returncode != 0:
            self.skipTest("this machine lets the test make no mount namespace")
        hosts = self.folder / "hosts"
        hosts.write_text("".join(node.address.rpartition(":")[0] + " nodes.test\n" for node in self.servers))
        port = self.servers[0].address.rpartition(":")[2]
        inside = mount + ["sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', hosts]
        done = subprocess.run([*inside, sys.executable, "-c", BY_NAME, port, self.authority.certificate],
                              capture_output=True, text=True, timeout=WAIT_S,
                              env=dict(os.environ, PYTHONPATH=str(package_path())))
        self.assertEqual(done.stdout.split(), [node.address for node in self.servers], done.stderr)
        shown = subprocess.run([*inside, daemons.RESIDENTCTL, "status", "--targets=dns:///nodes.test:" + port,
                                "--tls_ca=" + self.authority.certificate],
                               capture_output=True, text=True, timeout=WAIT_S)
        self.assertEqual(shown.returncode, 0, shown)
        self.assertIn("3 nodes, 0 down", shown.stdout)


class CommandsTest(ClientsTest):

    def test_status_has_a_row_for_each_node(self):
        nodes = self.nodes("--drain_notice=10m")
        target = target_of(nodes)
        shown = daemons.ctl("status", "--targets=" + target)
        self.assertEqual(shown.code, daemons.OK, shown)
        lines = shown.out.splitlines()
        self.assertEqual(lines[0].split(), ["NODE", "STATE", "DEVICES", "LOAD", "QUEUED", "SET",
                                            "OPERATORS", "UP"])
        for node, line in zip(nodes, lines[1:]):
            self.assertRegex(line, r"^{}  serving +1 cpu +\d\.\d\d +0 +- +- +\d".format(re.escape(node.address)))
        self.assertEqual(lines[-1], "3 nodes, 0 down")

        nodes[1].process.send_signal(signal.SIGTERM)
        self.kill(nodes[2])
        self.wait_for("not serving", lambda: "not serving" in
                      daemons.ctl("status", "--targets=" + target).out)
        shown = daemons.ctl("status", "--targets=" + target)
        self.assertEqual(shown.code, daemons.FAILED, shown)
        self.assertRegex(shown.out, r"(?m)^{} +down +- +- +- +- +- +-$".format(re.escape(nodes[2].address)))
        self.assertRegex(shown.out, r"(?m)^{}: cannot reach".format(re.escape(nodes[2].address)))
        self.assertIn("3 nodes, 1 down", shown.out)
        listed = daemons.ctl("status", "--targets=" + target, "--json")
        self.assertEqual(listed.code, daemons.FAILED, listed)
        self.assertEqual([row["state"] for row in listed.json["nodes"]], ["serving", "not serving", "down"])
        self.assertEqual(listed.json["down"], 1)
        self.assertEqual(listed.json["nodes"][0]["node"], nodes[0].address)
        self.assertIn("devices", listed.json["nodes"][0]["status"])
        self.assertIn("error", listed.json["nodes"][2])

    def test_mistakes_of_targets(self):
        for target, code, text in (("nodes.test", daemons.USAGE, "Fix: "),
                                   ("dns://127.0.0.1:5353/nodes.test:1", daemons.USAGE, "dns:///nodes.test:1"),
                                   ("dns:///nodes.invalid:1", daemons.UNREACHABLE, "cannot find the addresses")):
            shown = daemons.ctl("status", "--targets=" + target)
            self.assertEqual(shown.code, code, shown)
            self.assertIn(text, shown.err)

    def test_a_target_as_the_server_is_one_node(self):
        nodes = self.nodes(count=2)
        self.kill(nodes[0])
        port = nodes[1].address.rpartition(":")[2]
        with Dns() as dns:
            dns.set("127.0.0.11", "127.0.0.12")
            for server in (target_of(nodes), "dns:///" + nodes[1].address,
                           "dns://127.0.0.1:{}/nodes.test:{}".format(dns.port, port)):
                shown = daemons.ctl("run", "add", "x=1,2", "y=1,2", server=server)
                self.assertEqual(shown.code, daemons.OK, shown)


class AsyncTest(ClientsTest):

    def test_the_client_for_asyncio_does_the_same(self):
        nodes = self.nodes()

        async def use():
            async with residentd.aio.connect(targets=target_of(nodes), retry=True) as rd:
                add = rd.op("add")
                while not all(tasks_of(node) > 0 for node in nodes):
                    self.assertEqual((await add(X, Y)).tolist(), [11, 22])
                self.assertEqual([sessions_of(node) for node in nodes], [0, 0, 0])
                x = await rd.upload(X)
                self.assertEqual((await add(x, x)).tolist(), [2, 4])
                self.assertEqual((await (await add.submit(x, x))).tolist(), [2, 4])
                home = rd._connection.current.address
                pinned = await rd.pin()
                self.assertNotEqual(pinned._connection.address, home)
                self.assertEqual((await pinned.op("add")(X, Y)).tolist(), [11, 22])
                await pinned.close()
                async with rd.stream() as stream:
                    await (await stream.submit(add, x, x))
                    self.kill(self.the_one(nodes, home))

                    async def submit():
                        return await (await stream.submit(add, X, X))

                    for call in (x.numpy, lambda: add(x, x), submit):
                        with self.assertRaises(residentd.Unavailable) as left:
                            await call()
                        self.assertEqual(left.exception.reason, "NODE_LEFT", left.exception)
                        self.assertEqual(left.exception.details, {"node": home})
                again = await rd.upload(X)
                self.assertNotEqual(rd._connection.current.address, home)
                self.assertEqual((await again.numpy()).tolist(), X.tolist())
                for _ in range(12):
                    await add(X, Y)

        asyncio.run(use())


if __name__ == "__main__":
    unittest_main.main()
