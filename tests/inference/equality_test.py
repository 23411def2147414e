#!/usr/bin/python3
"""The Open Inference Protocol and the native API give the same bytes: random requests to one daemon.
Also hostile requests: random changes of the bytes of a request never end the daemon.

$RESIDENT_SEED repeats a run. The last line is `N passed, N failed`.
"""

import concurrent.futures
import os
import pathlib
import random
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "cli")]
import grpc  # noqa: E402
import numpy  # noqa: E402

import inference_client  # noqa: E402
import unittest_main  # noqa: E402
from inference_client import array, pb, request  # noqa: E402
from inference_test import F32, InferenceTest, X, Y  # noqa: E402
from resident.v1 import executor_pb2, types_pb2  # noqa: E402

REQUESTS = 10_000
THREADS = 8
# Inputs, and the scalars of a request.
OPERATORS = [
    ("add", 2, [2.0]),
    ("add", 2, []),
    ("sub", 2, [0.5]),
    ("mul", 2, []),
    ("maximum", 2, []),
    ("relu", 1, []),
    ("silu", 1, []),
    ("tanh", 1, []),
    ("scale", 1, [-3.0]),
    ("clamp", 1, [-1.0, 1.0]),
]
SCALARS = {"add": ["alpha"], "sub": ["alpha"], "scale": ["s"], "clamp": ["lo", "hi"]}
DTYPES = {"FP32": types_pb2.DTYPE_F32, "FP16": types_pb2.DTYPE_F16}


class Equality(InferenceTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.seed = int(os.environ.get("RESIDENT_SEED") or random.SystemRandom().getrandbits(32))
        print("RESIDENT_SEED={}".format(cls.seed))
        cls.run_native = staticmethod(cls.client.channel.unary_unary(
            "/resident.v1.Executor/Run", executor_pb2.RunRequest.SerializeToString,
            executor_pb2.RunResponse.FromString))
        signatures = {}
        for name in SCALARS:
            config = cls.client.ModelConfig(name=name).config
            signatures[name] = config.parameters["signature"].string_value
        # The names of the scalars are those of the signatures.
        for name, scalars in SCALARS.items():
            for scalar in scalars:
                assert scalar + ": scalar" in signatures[name], signatures[name]

    def compare(self, seed):
        choose = random.Random(seed)
        numbers = numpy.random.default_rng(seed)
        name, count, scalars = choose.choice(OPERATORS)
        datatype = choose.choice(list(DTYPES))
        shape = tuple(choose.randrange(0, 9) for _ in range(choose.randrange(0, 4)))
        batch = choose.random() < 0.3
        tasks = choose.randrange(1, 9) if batch else 1
        lead = (tasks,) if batch else ()
        inputs = {}
        for key in ("x", "y")[:count]:
            values = numbers.standard_normal(lead + shape)
            inputs[key] = values.astype(inference_client.DATATYPES[datatype])
        typed = datatype == "FP32" and choose.random() < 0.5
        answer = self.client.ModelInfer(request(
            name + (":batch" if batch else ""), inputs, typed=typed,
            parameters=dict(zip(SCALARS.get(name, []), scalars))))

        native = executor_pb2.RunRequest()
        work = native.batch.tasks
        work.operator, work.count = name, tasks
        for values in inputs.values():
            column = work.arguments.add().inline
            column.dtype, column.data = DTYPES[datatype], values.tobytes()
            column.shape.extend(shape)
        work.arguments.add().returned.infer_shape = True
        for value in scalars:
            work.arguments.add().scalar.f64.append(value)
        result = self.run_native(native, timeout=60).result
        self.assertEqual(answer.raw_output_contents[0], result.outputs[0], (seed, name, shape))
        self.assertEqual(tuple(answer.outputs[0].shape), lead + shape, (seed, name))
        self.assertEqual(answer.model_version, str(result.version))

    def test_random_requests_give_the_bytes_of_the_native_api(self):
        first = self.seed << 20
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            for _ in pool.map(self.compare, range(first, first + REQUESTS)):
                pass

    def test_hostile_bytes_get_a_status_and_the_daemon_serves(self):
        choose = random.Random(self.seed)
        call = self.client.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        good = [request("add", {"x": X, "y": Y}, typed=typed, parameters={"alpha": 2.0}, id="1",
                        outputs=["out"]).SerializeToString() for typed in (False, True)]

        def send(message):
            try:
                call(message, timeout=60)
            except grpc.RpcError as error:
                # gRPC has no message for these in other cases.
                self.assertIn(error.code(), (grpc.StatusCode.INVALID_ARGUMENT,
                                             grpc.StatusCode.NOT_FOUND,
                                             grpc.StatusCode.DEADLINE_EXCEEDED), error.details())
                self.assertIn("Fix: ", error.details())

        def mutate(_):
            message = bytearray(choose.choice(good))
            for _ in range(choose.randrange(1, 4)):
                at = choose.randrange(len(message))
                kind = choose.randrange(3)
                if kind == 0:
                    message[at] = choose.randrange(256)
                elif kind == 1:
                    del message[at:at + choose.randrange(1, 8)]
                else:
                    message[at:at] = bytes(choose.randrange(256) for _ in range(choose.randrange(8)))
                if not message:
                    break
            return bytes(message)

        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            for _ in pool.map(send, map(mutate, range(3000))):
                pass
        numpy.testing.assert_array_equal(
            array(self.client.infer("add", {"x": X, "y": Y}), "out"), (X + Y).astype(F32))

    def test_sizes_that_overflow_are_refused_before_anything_is_allocated(self):
        for shape in ([1 << 62], [1 << 31, 1 << 31, 1 << 31], [1 << 40, 0, 1 << 40], [1] * 9,
                      [(1 << 63) - 1]):
            for model in ("copy", "copy:batch", "sum_rows"):
                message = pb.ModelInferRequest(model_name=model)
                message.inputs.add(name="x", datatype="FP32", shape=shape)
                with self.subTest(model=model, shape=shape), self.invalid():
                    self.client.ModelInfer(message)


if __name__ == "__main__":
    unittest_main.main()
