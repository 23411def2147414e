#!/usr/bin/python3
"""Models: loads, requests, versions and errors, with both clients."""

import asyncio
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402

import onnx_file  # noqa: E402
import residentd.aio  # noqa: E402
from graph_support import GraphTest  # noqa: E402


class Models(GraphTest):

    def affine(self):
        """y = relu(x w' + b), for 1 to 8 rows of x; s = scale * y."""
        b = self.builder("affine")
        rows = b.integer("rows", 1, 8)
        x = b.input("x", (rows, 4))
        y = b.call("relu", b.call("gemv", x, b.weight("w", (3, 4)), b.weight("bias", (3,))))
        b.output("y", y)
        b.output("a.s", b.call("scale", y, s=b.real("scale", -8, 8)))
        return b.build()

    def load(self, seed, **options):
        random = np.random.default_rng(seed)
        weights = {"w": random.normal(size=(3, 4)).astype(np.float32),
                   "bias": random.normal(size=3).astype(np.float32)}
        loaded = self.rd.models.load("affine", self.affine(), weights, **options)
        return loaded, lambda x: np.maximum(x.astype(np.float64) @ weights["w"].T + weights["bias"], 0)

    def setUp(self):
        super().setUp()
        self.addCleanup(lambda: [self.rd.models.remove(each.name) for each in self.rd.models.list()])

    def test_requests_and_versions(self):
        first, one = self.load(1)
        self.assertFalse(first.already_loaded)
        self.assertTrue(self.load(1)[0].already_loaded)
        second, two = self.load(2, activate=False)
        random = np.random.default_rng()
        for rows in range(1, 9):
            x = random.normal(size=(rows, 4)).astype(np.float32)
            result = self.rd.models.run("affine", x=x, scale=2)
            self.assertEqual(result.version, first.version)
            self.assertEqual(list(result.outputs), ["y", "a.s"])
            np.testing.assert_allclose(result.outputs["y"], one(x), atol=1e-5)
            np.testing.assert_allclose(result.outputs["a.s"], 2 * one(x), atol=1e-5)
            result = self.rd.models.run("affine", x=x, scale=2.5, version=second.version, outputs=["a.s"])
            np.testing.assert_allclose(result.outputs["a.s"], 2.5 * two(x), atol=1e-5)
        self.rd.models.share("affine", second.version, 50)
        served = {self.rd.models.run("affine", x=x, scale=2).version for _ in range(4)}
        self.assertEqual(served, {first.version, second.version})
        self.assertEqual(self.rd.models.describe("affine").share_version, second.version)
        bake = residentd.Bake(action="roll_back", time_ms=3_600_000)
        self.assertEqual(self.rd.models.activate("affine", bake=bake), second.version)
        self.assertEqual(self.rd.models.describe("affine").share_version, 0)
        self.assertGreater(self.rd.models.describe("affine").active.max_batch, 1)
        info = self.rd.models.describe("affine")
        self.assertEqual(info.active.version, second.version)
        self.assertEqual(info.versions[first.version].state, "previous")
        self.assertEqual(info.active.inputs["x"].shape, (-1, 4))
        self.assertEqual(info.active.inputs["x"].max, 8)
        self.assertEqual(self.rd.models.rollback("affine"), first.version)
        with self.assertRaises(residentd.Aborted):
            self.rd.models.activate("affine", expected_revision=info.revision)
        with self.assertRaises(residentd.FailedPrecondition):
            self.rd.models.remove("affine", first.version)
        self.rd.models.remove("affine", second.version)
        self.assertEqual(list(self.rd.models.describe("affine").versions), [first.version])

    def test_errors(self):
        self.load(1)
        x = np.ones((2, 4), np.float32)
        for error, part, values in (
                (residentd.InvalidArgument, "needs the input 'x'", {"scale": 1}),
                (residentd.InvalidArgument, "dtype f64", {"x": x.astype(np.float64), "scale": 1}),
                (residentd.InvalidArgument, "shape [9, 4]", {"x": np.ones((9, 4), np.float32), "scale": 1}),
                (residentd.InvalidArgument, "scale", {"x": x}),
                (residentd.InvalidArgument, "no input 'z'", {"x": x, "z": x, "scale": 1})):
            with self.assertRaises(error) as caught:
                self.rd.models.run("affine", values)
            self.assertIn(part, str(caught.exception))
        with self.assertRaises(residentd.NotFound):
            self.rd.models.run("affin", x=x)
        with self.assertRaises(residentd.AlreadyExists):
            self.rd.models.load("relu", self.affine())
        with self.assertRaises(residentd.InvalidArgument) as caught:
            self.rd.models.load("other", self.affine(), {"w": np.ones((3, 4), np.float32)})
        self.assertIn("weight 'bias' has 12 bytes, and 0 were sent", str(caught.exception))
        with self.assertRaises(residentd.InvalidArgument) as caught:
            self.rd.models.load("other", self.affine(), {"w": np.ones((3, 4))})
        self.assertIn("dtype", str(caught.exception))

    def test_onnx(self):
        random = np.random.default_rng()
        w, b = random.normal(size=(3, 4)).astype(np.float32), random.normal(size=3).astype(np.float32)
        model = onnx_file.affine(w.tolist(), b.tolist(), location="w.bin")
        loaded = self.rd.models.load_onnx("net", model, data={"w.bin": w})
        for rows in (1, 64):
            x = random.normal(size=(rows, 4)).astype(np.float32)
            y = self.rd.models.run("net", x=x).outputs["y"]
            np.testing.assert_allclose(y, np.maximum(x.astype(np.float64) @ w.T + b, 0), atol=1e-5)
        self.assertEqual(loaded.version, self.rd.models.describe("net").active.version)
        small = self.rd.models.load_onnx("net", model, data={"w.bin": w.tobytes()}, max_batch=2)
        self.assertEqual(self.rd.models.describe("net").versions[small.version].inputs["x"].max, 2)
        with self.assertRaises(residentd.GraphRefused) as caught:
            self.rd.models.load_onnx("net", model)
        self.assertEqual(caught.exception.report.findings[0].code, "MODEL_E107")
        with self.assertRaises(residentd.GraphRefused) as caught:
            self.rd.models.load_onnx("net", b"no model", sizes={"batch": 2}, fixed_inputs={"x": "1"})
        self.assertEqual(caught.exception.report.findings[0].code, "MODEL_E101")

        async def run():
            async with await residentd.aio.connect(self.daemon.address) as rd:
                await rd.models.load_onnx("other", model, data={"w.bin": w}, sizes={"batch": 1})
                return await rd.models.run("other", x=x[:1])

        np.testing.assert_allclose(asyncio.run(run()).outputs["y"], y[:1], atol=1e-5)

    def test_plans(self):
        w = np.random.default_rng().normal(size=(4, 3)).astype(np.float32)
        model = onnx_file.tokens(w.tolist())
        self.rd.models.load_onnx("tokens", model, max_sizes={"seq": 9}, warmup=[{"x": (1, 2, 4)}, {"x": (1, 3, 4)}])
        for seq in (3, 9, 1):
            x = np.random.default_rng(seq).normal(size=(2, seq, 4)).astype(np.float32)
            y = self.rd.models.run("tokens", x=x).outputs["y"]
            np.testing.assert_allclose(y, np.maximum(x.astype(np.float64) @ w, 0), atol=1e-5)
        version = self.rd.models.describe("tokens").active
        self.assertEqual(version.dimensions, {"seq": 9})
        self.assertEqual([plan.sizes for plan in version.plans], [{"seq": 1}, {"seq": 9}, {"seq": 3}, {"seq": 2}])
        self.assertEqual(version.plan_misses, 2)
        self.assertEqual((version.inputs["x"].shape, version.inputs["x"].most), ((-1, -1, 4), (64, 9, 4)))
        with self.assertRaises(residentd.InvalidArgument) as caught:
            self.rd.models.run("tokens", x=np.zeros((1, 10, 4), np.float32))
        self.assertIn("seq is 10, the model was loaded for 9", str(caught.exception))

    def test_asyncio(self):
        _, one = self.load(3)

        async def run():
            async with await residentd.aio.connect(self.daemon.address) as rd:
                xs = [np.random.default_rng(i).normal(size=(1 + i % 8, 4)).astype(np.float32)
                      for i in range(40)]
                results = await asyncio.gather(*(rd.models.run("affine", x=x, scale=1) for x in xs))
                for x, result in zip(xs, results):
                    np.testing.assert_allclose(result.outputs["y"], one(x), atol=1e-5)
                self.assertEqual([each.name for each in await rd.models.list()], ["affine"])

        asyncio.run(run())


if __name__ == "__main__":
    support.unittest_main.main()
