#!/usr/bin/python3
"""Task graphs: runs and their values, records, loaded graphs, and errors."""

import gc
import os
import pathlib
import pickle
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402

import residentd.graph_run  # noqa: E402
from graph_support import GraphTest  # noqa: E402

X = np.float32([[1, 2, 3, 4], [-1, 2, -3, 4]])


class Runs(GraphTest):

    def copying(self):
        """A graph that copies an input, a state and a weight, each of shape [2, 4], to outputs, and adds 1
        to the state."""
        b = self.builder("copying")
        for kind in ("input", "state", "weight"):
            tensor = getattr(b, kind)(kind, (2, 4))
            b.output("of." + kind, b.call("copy", tensor))
            if kind == "state":
                one = b.call("fill", value=1, shape=(1,), dtype="f32", node="one")
                b.call("copy", b.call("add", tensor, one), out=tensor)
        return b.build()

    def test_values_may_be_buffers(self):
        graph = self.copying()
        with self.rd.upload(X) as x, self.rd.upload(2 * X) as state, self.rd.upload(
                3 * X, name="weight"), self.rd.empty((2, 4)) as y:
            result = self.rd.graphs.run(graph, {"of.input": y}, input=x, state=state)
            self.assertIs(result.outputs["of.input"], y)
            np.testing.assert_array_equal(y.numpy(), X)
            np.testing.assert_array_equal(result.outputs["of.state"], 2 * X)
            np.testing.assert_array_equal(result.outputs["of.weight"], 3 * X)  # By its name.
            np.testing.assert_array_equal(state.numpy(), 2 * X + 1)

    def test_outputs_may_be_arrays(self):
        out = np.zeros((2, 4), np.float32)
        outputs = self.rd.graphs.run(self.copying(), {"of.input": out}, input=X, weight=X).outputs
        self.assertIs(outputs["of.input"], out)
        np.testing.assert_array_equal(out, X)
        np.testing.assert_array_equal(outputs["of.state"], 0)

    def test_shared_arrays_are_used_in_place(self):
        graph = self.copying()
        x, y, state = (self.rd.shared((2, 4)) for _ in range(3))
        x[:] = X
        values = {"of.input": y, "input": x, "state": state, "weight": x[::-1]}
        calls = self.rd.graphs._calls
        prepared = self.rd._drive(calls.prepare(graph, values, residentd.graph_run.RunOptions()))
        self.assertEqual({each.tensor: each.WhichOneof("memory") for each in prepared.request.bindings},
                         {"of.input": "buffer_id", "input": "buffer_id", "state": "buffer_id", "weight": "data"})
        outputs = self.rd.graphs.run(graph, values).outputs
        self.assertIs(outputs["of.input"], y)
        np.testing.assert_array_equal(y, X)
        np.testing.assert_array_equal(state, 1)
        np.testing.assert_array_equal(outputs["of.weight"], X[::-1])

    def test_memory_that_is_not_dense(self):
        graph = residentd.Graph.from_json("""{"format": 1, "tensors": [
            {"name": "x", "kind": "KIND_INPUT", "dtype": "DTYPE_F32", "shape": [{"size": 2}, {"size": 3}],
             "strides": [1, -2], "offset": 16},
            {"name": "y", "kind": "KIND_OUTPUT", "dtype": "DTYPE_F32", "shape": [{"size": 2}, {"size": 3}]}],
            "nodes": [{"operator": "copy", "arguments": [{"tensor": {"name": "x"}}, {"tensor": {"name": "y"}}]}]}""")
        np.testing.assert_array_equal(self.rd.graphs.run(graph, x=X[:, :3]).outputs["y"], X[:, :3])

    def test_lists_numbers_and_bfloat16(self):
        b = self.builder()
        b.output("y", b.call("add", b.input("x", 2, "bf16"), b.input("one", (), "bf16")))
        result = self.rd.graphs.run(b.build(), x=[1.5, 2], one=residentd.bfloat16(1))
        self.assertIsInstance(result.outputs["y"], residentd.BFloat16Array)
        np.testing.assert_array_equal(result.outputs["y"].to_float32(), [2.5, 3])

    def test_values_that_do_not_fit(self):
        graph, run = self.copying(), self.rd.graphs.run

        def refused(text, values=None, **named):
            self.refused(residentd.InvalidArgument, text, run, graph, values, **named)

        refused("has no tensor or scalar 'inputs'\nFix: use its names: input, of.input", inputs=X)
        refused("tensor 'input': it is f64, and must be f32", input=X.astype(np.float64))
        refused("tensor 'input': it is complex64, and must be f32", input=X.astype(np.complex64))
        refused("it has the shape [4, 2], and must have [2, 4]", input=X.reshape(4, 2))
        refused("tensor 'of.input': it is an output, and list cannot be written", {"of.input": [4 * [0]] * 2})
        refused("it is an output, and this array cannot be written", {"of.input": np.broadcast_to(X[0], (2, 4))})
        refused("tensor 'one': it is an activation", one=X)
        refused("'input' is given twice", {"input": X}, input=X)
        refused("max_steps=-1", input=X, max_steps=-1)
        refused("timeout='1' is not a time", input=X, timeout="1")
        refused("device=True is not the index", input=X, device=True)
        with self.rd.upload(X) as buffer, self.rd.upload(X[0]) as short, self.rd.upload(
                X.astype(np.float64)) as wide:
            refused("it is given a part of a buffer", input=buffer[1:])
            refused("the buffer has the shape [4], and must have [2, 4]", input=short)
            refused("the buffer is f64, and must be f32", input=wide)
        refused("tensor 'input' is an input and has no memory", weight=X)  # By the daemon.
        self.refused(residentd.InvalidArgument, "int is not a graph", run, 1)
        series = self.series()
        self.refused(residentd.InvalidArgument, "scalar 'k' is 'a'", run, series, pair=self.PAIR, k="a")
        self.refused(residentd.InvalidArgument, "scalar 'k' is 99 and may be 0 to 8", run, series,
                     pair=self.PAIR, k=99)

    def test_a_trace(self):
        result = self.rd.graphs.run(self.series(), pair=self.PAIR, k=0, max_steps=2, trace=True)
        self.assertEqual(sorted(set(result.trace["step"])), [0, 1])
        self.assertTrue((result.trace["begin_ns"] <= result.trace["end_ns"]).all())
        self.assertEqual(result.dropped_trace_events, 0)

    def test_a_graph_that_is_too_large_for_a_message(self):
        b = self.builder()
        b.output("y", b.call("relu", b.input("x", 1 << 25)))
        self.refused(residentd.ResourceExhausted, "larger than max", self.rd.graphs.run, b.build(),
                     x=np.zeros(1 << 25, np.float32))

    def test_a_node_that_fails(self):
        b = self.builder()
        b.output("y", b.call("embedding", b.input("index", 1, "i64"), b.input("table", (3, 2)), node="look up"))
        with self.assertRaises(residentd.TaskFailed) as caught:
            self.rd.graphs.run(b.build(), index=[7], table=X[:, :3].reshape(3, 2))
        error = caught.exception
        self.assertIsInstance(error, residentd.NodeFailed)
        self.assertEqual((error.node, error.operator, error.version, error.step, error.code),
                         ("look up", "embedding", 1, 0, "INVALID_ARGUMENT"))
        self.assertTrue(error.may_have_run)
        self.assertIn("node 'look up' (embedding) failed in step 0", str(error))
        self.assertRegex(str(error), r"\nFix: \S")
        made = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(made), str(made), made.node), (type(error), str(error), error.node))


class Loops(GraphTest):

    def test_records_and_the_end_of_a_loop(self):
        graph = self.series()
        result = self.rd.graphs.run(graph, pair=self.PAIR, k=0)
        self.assertEqual((result.steps, result.end), (8, "steps"))
        np.testing.assert_array_equal(result.records["sum"], self.sums(0, 8))
        result = self.rd.graphs.run(graph, pair=self.PAIR, k=0, max_steps=3)
        np.testing.assert_array_equal(result.records["sum"], self.sums(0, 3))
        result = self.rd.graphs.run(graph, pair=self.PAIR, k=7)
        self.assertEqual((result.steps, result.end), (2, "scalar_range"))

    def test_a_stop_value(self):
        b = self.builder()
        k = b.real("k", 0, 99)
        token = b.call("fill", value=k, shape=1, dtype="i32")
        b.loop(50, updates={k: 2 * k}, stop=(token, [3, 16]))
        b.stream("token", token)
        result = self.rd.graphs.run(b.build(), k=1)
        self.assertEqual((result.steps, result.end, result.records["token"].ravel().tolist()),
                         (5, "stop", [1, 2, 4, 8, 16]))

    def test_records_whose_shapes_differ(self):
        b = self.builder()
        n = b.integer("n", 1, 4)
        b.stream("rows", b.call("relu", b.input("x", 4)[:n]))
        b.loop(3, updates={n: n + 1})
        records = self.rd.graphs.run(b.build(), x=X[0], n=1).records["rows"]
        self.assertEqual([each.tolist() for each in records], [[1], [1, 2], [1, 2, 3]])

    def test_each_record_arrives_while_the_run_continues(self):
        with self.rd.graphs.load(self.series()) as loaded:
            with loaded.run_stream(pair=self.PAIR, k=0) as records:
                self.refused(residentd.FailedPrecondition, "has not ended", lambda: records.result)
                for step, record in enumerate(records):
                    self.assertEqual(record.step, step)
                    np.testing.assert_array_equal(record["sum"], self.sums(step, 1)[0])
                self.assertEqual((records.result.steps, records.result.records, list(records)), (8, {}, []))
        with self.rd.graphs.load(self.endless()) as loaded:
            with loaded.run_stream(x=[1, -1]) as records:
                np.testing.assert_array_equal(next(records)["ones"], [1, 0])
                self.assertEqual(loaded.describe().runs, 0)

    def test_each_record_has_the_versions_of_its_step(self):
        x = np.ones(4096, np.float32)
        with self.rd.graphs.load(self.scaled_twice()) as loaded, loaded.open() as session:
            for version in (1, 2):
                self.rd.operators.activate("scaled", version)
                with session.run_stream(x=x, max_steps=3) as records:
                    versions = [record.versions for record in records]
                self.assertEqual(versions, 3 * [(residentd.GraphVersion("scaled", version, tasks=2),)])
                self.assertIs(versions[2], versions[0])
                self.assertEqual(records.result.versions, {"scaled": {version: 6}})
            active, changes = 2, 0  # Within a run.
            with session.run_stream(x=x) as records:
                for record in records:
                    self.check_versions(record)
                    if record["y"][0] != (active + 1)**2:
                        continue
                    if changes == 4:
                        break
                    active, changes = 3 - active, changes + 1
                    self.rd.operators.activate("scaled", active)
            self.assertEqual(changes, 4)
            made = pickle.loads(pickle.dumps(record))
            self.assertEqual((made.step, made.versions), (record.step, record.versions))

    def test_a_run_that_is_closed_ends(self):
        with self.rd.graphs.load(self.endless()) as loaded:
            ended = iter(range(1, 9))

            def check_it_ends():
                count = next(ended)
                self.wait_for(lambda: loaded.describe().runs == count)
                self.assertLess(loaded.describe().steps, count << 20)

            records = loaded.run_stream(x=[1, 1])
            next(records)
            records.close()
            records.close()
            self.assertEqual(list(records), [])
            check_it_ends()
            records = loaded.run_stream(x=[1, 1])  # Garbage collected.
            next(records)
            del records
            gc.collect()
            check_it_ends()
            with self.assertRaises(KeyError), loaded.run_stream(x=[1, 1]) as records:
                raise KeyError(next(records).step)
            check_it_ends()
            records = loaded.run_stream(x=[1, 1])
            first, closed = threading.Event(), []

            def read():
                for _ in records:
                    first.set()
                closed.append(True)

            thread = threading.Thread(target=read)
            thread.start()
            first.wait()
            records.close()  # By another thread than the one that reads.
            thread.join()
            self.assertEqual(closed, [True])
            check_it_ends()
            with loaded.run_stream(x=[1, 1], timeout=2) as records:
                self.assertRaises(residentd.DeadlineExceeded, list, records)
            check_it_ends()


class Loaded(GraphTest):

    def test_a_loaded_graph(self):
        graphs = self.rd.graphs
        with graphs.load(self.series()) as loaded:
            self.assertTrue(loaded.report.accepted)
            self.assertFalse(loaded.already_loaded)
            self.assertRegex(loaded.id, "^[0-9a-f]{64}$")
            with graphs.load(self.series()) as again:
                self.assertEqual((again.id, again.already_loaded), (loaded.id, True))
            self.assertEqual([(each.id, each.name, each.state, each.nodes, each.runs) for each in graphs.list()],
                             [(loaded.id, "series", "ready", 3, 0)])
            for word in ("series", loaded.id):
                with graphs.find(word) as found:
                    self.assertEqual(found.id, loaded.id)
                    np.testing.assert_array_equal(
                        found.run(pair=self.PAIR, k=0, max_steps=2).records["sum"], self.sums(0, 2))
                    self.assertEqual(found.graph.message, loaded.graph.message)
            info = loaded.describe()
            self.assertEqual((info.runs, info.steps, info.sessions), (2, 4, 0))
            with graphs.load(self.series(9)) as other:
                self.refused(residentd.AlreadyExists, "2 loaded graphs have the name 'series'", graphs.find,
                             "series")
                self.assertTrue(other.unload(for_all=True))
        self.assertEqual(graphs.list(), [])
        self.refused(residentd.NotFound, "no graph with the id or name 'series'", graphs.find, "series")
        self.refused(residentd.NotFound, "is loaded", graphs.find, loaded.id)
        self.refused(residentd.NotFound, "is loaded", loaded.run, pair=self.PAIR, k=0)

    def test_the_error_of_a_block_is_kept(self):
        with self.assertRaises(KeyError):
            with self.rd.graphs.load(self.series()) as loaded:
                self.rd.graphs.find("series").unload()
                raise KeyError
        self.refused(residentd.NotFound, "is loaded", loaded.unload)

    def test_findings(self):
        b = self.builder("warned")
        b.output("y", b.call("relu", b.input("x", 4)))
        b.call("relu", b.input("z", 4), node="dead")
        report = self.rd.graphs.validate(b.build())
        self.assertEqual((report.accepted, report.errors, report.warnings), (True, 0, 1))
        self.assertEqual((report.findings[0].code, report.findings[0].warning), ("GRAPH_E408", True))
        self.assertIn("GRAPH_E408 (warning), node dead", str(report))
        b = self.builder("wrong")
        y = b.new_output("y", 4)
        b.call("relu", b.activation("a", 4), out=y)
        graph = b.build()
        report = self.rd.graphs.validate(graph)
        self.assertEqual((report.accepted, report.errors, report.warnings), (False, 1, 0))
        finding = report.findings[0]
        self.assertEqual((finding.code, finding.warning, finding.node, finding.tensor),
                         ("GRAPH_E401", False, "relu0", "a"))
        self.assertTrue(finding.message and finding.fix)
        for call in (self.rd.graphs.load, self.rd.graphs.render):
            refused = self.refused(residentd.GraphRefused, "graph 'wrong' is refused: GRAPH_E401, node relu0",
                                   call, graph)
            self.assertEqual(refused.report.errors, 1)
            self.assertEqual(str(pickle.loads(pickle.dumps(refused)).report), str(refused.report))
        self.refused(residentd.InvalidArgument, "GRAPH_E401", self.rd.graphs.run, graph)
        b.call("relu", b.activation("a2", 4), out=y)
        self.refused(residentd.GraphRefused, "2 errors\n  GRAPH_E401", self.rd.graphs.load, b.build())

    def test_dependencies_and_sizes(self):
        report = self.rd.graphs.validate(self.series(), dependencies=True)
        self.assertEqual(report.dependency_count, len(report.dependencies))
        self.assertIn((1, 0, "read_after_write"), report.dependencies)
        self.assertEqual((report.longest_chain, report.state_bytes), (3, 8))

    def test_nodes_that_are_executed_together(self):
        b = residentd.GraphBuilder("gated", self.rd)
        gate, x = b.input("gate", 64), b.input("x", 64)
        b.output("y", b.call("mul", b.call("silu", gate), x))
        report = self.rd.graphs.validate(b.build())
        self.assertEqual(report.fusions, [("silu_mul", (0, 1))])
        self.assertEqual((report.fusions[0].operator, report.fusions[0].nodes), ("silu_mul", (0, 1)))

    def test_a_picture(self):
        graph = self.series()
        self.assertTrue(self.rd.graphs.render(graph).startswith("<svg"))
        with self.rd.graphs.load(graph) as loaded:
            self.assertTrue(self.rd.graphs.render(loaded, "dot").startswith('digraph "series"'))
        self.refused(residentd.InvalidArgument, "'png' is not a format", self.rd.graphs.render, graph, "png")


class Import(GraphTest):

    def test_graphs_are_imported_when_they_are_used(self):
        text = subprocess.run(
            [sys.executable, "-c", "import sys; sys.path[:0] = {!r}\n"
             "import residentd, residentd.aio\n"
             "print([name for name in sys.modules if 'graph' in name and 'residentd' in name])\n"
             "residentd.GraphBuilder, residentd.LoadedGraph\n"
             "print(set(residentd.__all__) - set(dir(residentd)) - set(residentd._LAZY))\n"
             "try: residentd.none\n"
             "except AttributeError as error: print(error)".format(sys.path)],
            check=True, capture_output=True, text=True, env=dict(os.environ)).stdout
        self.assertEqual(text, "[]\nset()\nmodule 'residentd' has no attribute 'none'\n")


if __name__ == "__main__":
    support.unittest_main.main()
