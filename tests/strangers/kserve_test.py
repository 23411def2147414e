"""The gRPC client of KServe's SDK, unmodified, with a running daemon: see tests/strangers/run.

The last line is `N passed, N failed`.
"""

import asyncio
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "cli")]
import grpc  # noqa: E402
import numpy  # noqa: E402
from kserve import InferenceGRPCClient, InferInput, InferRequest  # noqa: E402

import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402

X = numpy.array([[1, 2, 3], [4, 5, 6]], numpy.float32)


class KServe(unittest.IsolatedAsyncioTestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = daemons.Daemon()
        cls.addClassCleanup(cls.daemon.stop)

    async def asyncSetUp(self):
        self.client = InferenceGRPCClient(url=self.daemon.address)

    async def asyncTearDown(self):
        await self.client.close()

    def request(self, model="add", parameters=None, **fields):
        """fields: those of InferInput for both inputs; without them, the array is set."""
        inputs = [InferInput(name=name, shape=list(X.shape), datatype="FP32", **fields) for name in "xy"]
        return InferRequest(model_name=model, infer_inputs=inputs, parameters=parameters)

    async def test_health(self):
        self.assertTrue(await self.client.is_server_live())
        self.assertTrue(await self.client.is_server_ready())
        self.assertTrue(await self.client.is_model_ready("add"))
        self.assertFalse(await self.client.is_model_ready("nothing"))

    async def test_arrays_and_lists(self):
        for binary in (True, False, None):
            request = self.request(parameters={"alpha": 2}, **(
                {"data": X.reshape(-1).tolist()} if binary is None else {}))
            if binary is not None:
                for each in request.inputs:
                    each.set_data_from_numpy(X, binary_data=binary)
            with self.subTest(binary=binary):
                answer = await self.client.infer(request)
                self.assertEqual((answer.model_name, answer.model_version), ("add", "1"))
                self.assertEqual([output.name for output in answer.outputs], ["out"])
                numpy.testing.assert_array_equal(answer.outputs[0].as_numpy(), 3 * X)

    async def test_requests_at_the_same_time(self):
        answers = await asyncio.gather(*(
            self.client.infer(self.request(parameters={"alpha": i}, data=X.reshape(-1).tolist()))
            for i in range(20)))
        for i, answer in enumerate(answers):
            numpy.testing.assert_array_equal(answer.outputs[0].as_numpy(), (1 + i) * X)

    async def test_errors_have_a_fix(self):
        with self.assertRaises(grpc.RpcError) as caught:
            await self.client.infer(self.request(model="nothing", data=X.reshape(-1).tolist()))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)
        self.assertIn("Fix: ", caught.exception.details())


if __name__ == "__main__":
    unittest_main.main()
