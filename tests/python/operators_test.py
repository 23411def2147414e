#!/usr/bin/python3
"""Installing operators from Python, and changing which version serves."""

import asyncio
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402

import residentd.aio  # noqa: E402
from residentd.expression import trace  # noqa: E402

X = np.float32([-2, -0.5, 0, 0.5, 3])
SOURCE = """
RESIDENT_OPERATOR(twice)(resident::Block& block, const resident::Args& args) {
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  block.for_each(block.share(x.size()), [&](resident::i64 i) { out[i] = FACTOR * x[i]; });
}
"""
SIGNATURE = "x: in f32[*S], out: out f32[*S]"


def source(factor):
    return '#include "factor.h"\n#include "kernels/sdk/operator.h"\n' + SOURCE, {
        "factor.h": "#define FACTOR {}\n".format(factor)}


class Operators(support.PackageTest):

    def tearDown(self):
        for operator in self.rd.operators.list():
            if not operator.message.versions[0].builtin:
                self.rd.operators.remove(operator.name)

    def test_an_expression_serves_after_its_activation(self):
        installed = self.rd.operators.install("swish", expr="x * sigmoid(x)", summary="x sigmoid(x)")
        self.assertEqual((installed.name, installed.version, installed.state), ("swish", 1, "loaded"))
        self.assertEqual([state for state, _ in installed.steps][-1], "loaded")
        self.assertEqual(installed.activate(), 1)
        np.testing.assert_allclose(self.rd.op("swish")(X), X / (1 + np.exp(-X)), rtol=1e-5)
        self.assertEqual(self.rd.operators.describe("swish").versions, {1: "active"})
        self.assertIn("swish", [operator.name for operator in self.rd.operators.list()])

    def test_source_is_validated_on_examples_and_rolled_back(self):
        text, files = source(2)
        examples = [residentd.Example(X, 2 * X), residentd.Example(X[:1], residentd.Output((1,)))]
        operators = self.rd.operators
        operators.install("twice", source=text, files=files, signature=SIGNATURE, split="out 4096",
                          examples=examples[:1], wait="active")
        twice = self.rd.op("twice")
        np.testing.assert_array_equal(twice(X), 2 * X)
        text, files = source(3)
        error = self.refused(residentd.InvalidArgument, "element 0 is -6, not -4", operators.install, "twice", source=text,
                             files=files, signature=SIGNATURE, examples=examples)
        self.assertEqual(error.operator, "twice")
        operators.install("twice", source=text, files=files, signature=SIGNATURE,
                          examples=[residentd.Example(X, 3 * X)])
        np.testing.assert_array_equal(twice(X), 2 * X)
        self.assertEqual(operators.activate("twice"), 2)
        self.assertEqual(twice.run(X).version, 2)
        np.testing.assert_array_equal(twice(X), 3 * X)
        np.testing.assert_array_equal(self.rd.op("twice", version=1)(X), 2 * X)
        self.assertEqual(operators.rollback("twice"), 1)
        np.testing.assert_array_equal(twice(X), 2 * X)
        self.assertGreater(operators.promote("twice", traffic_percent=100), 0)
        self.assertEqual(twice.run(X).version, 2)
        kinds = [event.kind for event in operators.audit("twice", count=100)]
        self.assertEqual(kinds[:2], ["promoted", "rolled_back"])
        self.refused(residentd.Aborted, "revision", operators.activate, "twice", expected_revision=1)

    def test_what_does_not_compile_has_the_compilers_output(self):
        error = self.refused(residentd.InvalidArgument, "", self.rd.operators.install, "twice",
                             source=SOURCE.replace("FACTOR", "unknown_name"), signature=SIGNATURE)
        self.assertIn("unknown_name", error.details["log"] + error.message)
        self.refused(residentd.InvalidArgument, "did you mean sigmoid", self.rd.operators.install, "s",
                     expr="sgimoid(x)")
        self.refused(residentd.AlreadyExists, "add", self.rd.operators.install, "add", expr="x + y")
        self.refused(residentd.InvalidArgument, "exactly one of", self.rd.operators.install, "s")
        self.refused(residentd.NotFound, "nothing", self.rd.operators.remove, "nothing")

    def test_a_description_is_read_again_after_a_removal(self):
        self.rd.operators.install("f", expr="x + 1", wait="active")
        np.testing.assert_array_equal(self.rd.op("f")(X), X + 1)
        self.rd.operators.remove("f")
        with self.connect() as other:
            other.operators.install("f", expr="x + y", wait="active")
        np.testing.assert_array_equal(self.rd.op("f")(X, X), 2 * X)

    def test_another_client_replaces_an_operator_by_one_with_another_signature(self):
        self.rd.operators.install("sum2", expr="x + y", wait="active")
        sum2 = self.rd.op("sum2")
        np.testing.assert_array_equal(sum2(X, X), 2 * X)
        with self.connect() as other:
            other.operators.remove("sum2")
            other.operators.install("sum2", expr="x + y + z", wait="active")
        np.testing.assert_array_equal(sum2(X, X, X), 3 * X)  # Refused by the old description.
        with self.connect() as other:
            other.operators.remove("sum2")
            other.operators.install("sum2", expr="x + y", wait="active")
        with self.assertRaises(residentd.InvalidArgument):
            sum2(X, X, X)  # Refused by the daemon.
        np.testing.assert_array_equal(sum2(X, X), 2 * X)

    def test_bytecode(self):
        self.rd.operators.install("sum2", bytecode=b"\x20\x00\x00\x01", wait="active")
        np.testing.assert_array_equal(self.rd.flux("sum2", [[1, 2], [5, 6]]).registers, [[3], [11]])

    def test_native_code_of_bytecode(self):
        for native, state in (("wait", "serving"), ("off", "off")):
            self.rd.operators.install("sum3", bytecode=b"\x20\x00\x00\x01", wait="active", native=native)
            described = self.rd.operators.describe("sum3")
            self.assertEqual(described.native[max(described.versions)], state)
            np.testing.assert_array_equal(self.rd.flux("sum3", [[1, 2]]).registers, [[3]])
        self.assertEqual(self.rd.operators.describe("add").native, {})
        self.refused(residentd.InvalidArgument, "native='on'", self.rd.operators.install, "sum3",
                     bytecode=b"\x00", native="on")

    def test_isolation(self):
        for isolation in ("stoppable", "trusted"):
            self.rd.operators.install("kept", expr="x + 1", isolation=isolation)
            described = self.rd.operators.describe("kept")
            version = max(described.versions)
            self.assertEqual(described.isolation[version], isolation)
            kept = self.rd.op("kept", version=version)
            self.assertEqual(kept([1.0], require_isolation=isolation), [2.0])
        self.assertEqual(self.rd.operators.describe("add").isolation, {})
        self.refused(residentd.FailedPrecondition, "is trusted, and the batch requires stoppable", kept, [1.0],
                     require_isolation="stoppable")
        self.refused(residentd.InvalidArgument, "require_isolation='safe'", kept, [1.0], require_isolation="safe")
        self.refused(residentd.InvalidArgument, "isolation='safe'", self.rd.operators.install, "kept",
                     expr="x + 1", isolation="safe")

    def test_watch_yields_changes(self):
        seen = []
        with self.rd.operators.watch("watched") as watch:
            def read():
                for event in watch:
                    seen.append((event.kind, event.operator))

            thread = threading.Thread(target=read)
            thread.start()
            self.rd.operators.install("watched", expr="x + 1", wait="active")
            self.wait_for(lambda: ("activated", "watched") in seen)
        thread.join(support.WAIT_S)
        self.assertFalse(thread.is_alive())

    def test_asyncio(self):
        async def main():
            async with residentd.aio.connect(self.daemon.address) as rd:
                installed = await rd.operators.install("g", expr="x - 1")
                self.assertEqual(await rd.operators.activate("g"), installed.version)
                np.testing.assert_array_equal(await rd.op("g")(X), X - 1)
                self.assertEqual((await rd.operators.describe("g")).active_version, 1)
                self.assertIn("g", [operator.name for operator in await rd.operators.list()])
                async for event in rd.operators.watch("g", after_revision=1):
                    self.assertEqual(event.operator, "g")
                    break
                await rd.operators.remove("g")

        asyncio.run(main())

    def test_a_python_function_is_published(self):
        def squash(x, y, beta=1.5, limit=2.0):
            """A squashed sum."""
            z = np.tanh(beta * x) + np.where((x > 0) & ~(y >= 1), x**2, np.clip(y, -1, 1))
            return np.minimum(abs(z), limit) - np.sqrt(np.square(y) + 1) / 3

        self.rd.operators.publish(squash, wait="active")
        operator = self.rd.op("squash")
        self.assertTrue(operator.signature.startswith("x: in strided f32|f16|bf16[*S~], y: in"),
                        operator.signature)
        y = np.linspace(-2, 2, 5, dtype=np.float32)
        np.testing.assert_allclose(operator(X, y), squash(X, y), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(operator(X[:, None], y, beta=-1, limit=0.5),
                                   squash(X[:, None], y, -1, 0.5), rtol=1e-5, atol=1e-6)
        self.assertEqual(self.rd.operators.describe("squash").summary, "A squashed sum.")

    def test_what_cannot_be_published(self):
        wrong = residentd.InvalidArgument
        self.refused(wrong, "branches on a value", trace, lambda x: x if x > 0 else -x)
        self.refused(wrong, "numpy.sort", trace, lambda x: np.sort(x))
        self.refused(wrong, "numpy.arctan", trace, lambda x: np.arctan(x))
        self.refused(wrong, "returns a comparison", trace, lambda x: x > 1)
        self.refused(wrong, "does not use 'y'", trace, lambda x, y: x)
        self.refused(wrong, "type ndarray", trace, lambda x: x + X)
        self.refused(wrong, "default of 'y'", trace, lambda x, y="a": x)


if __name__ == "__main__":
    support.unittest_main.main()
