#!/usr/bin/python3
"""The Open Inference Protocol of a running daemon.

The last line is `N passed, N failed`.
"""

import json
import os
import pathlib
import signal
import sys
import time
import urllib.request

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "cli")]
import grpc  # noqa: E402
import numpy  # noqa: E402

import daemon as daemons  # noqa: E402
import inference_client  # noqa: E402
import onnx_file  # noqa: E402
import unittest_main  # noqa: E402
from inference_client import array, pb, request  # noqa: E402

F32 = numpy.float32
X = numpy.array([1, 2, 3], F32)
Y = numpy.array([10, 20, 30], F32)

TWICE = """\
// signature: x: in f32[*S], out: out f32[*S]
RESIDENT_OPERATOR({name})(resident::Block& block, const resident::Args& args) {{
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  block.for_each(block.share(x.size()), [&](resident::i64 i) {{ out[i] = {factor} * x[i]; }});
}}
"""


def eventually(condition):
    """Waits until the condition returns something true."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class InferenceTest(daemons.CommandTest):
    """All tests of a class share one daemon, started with FLAGS."""

    FLAGS = ("--test_operators",)

    @classmethod
    def setUpClass(cls):
        cls.daemon = daemons.Daemon(*cls.FLAGS)
        cls.addClassCleanup(cls.daemon.stop)
        cls.client = inference_client.Client(cls.daemon.address)
        cls.addClassCleanup(cls.client.channel.close)

    def ctl(self, *words, code=daemons.OK, **options):
        return self.check(self.daemon.ctl(*words, **options), code)

    def refused(self, code, *parts):
        """Expects an error of this code, whose message contains all parts and a fix."""
        test = self

        class Context:
            def __enter__(self):
                return self

            def __exit__(self, kind, error, _):
                test.assertIsInstance(error, grpc.RpcError)
                test.assertEqual(error.code(), code, error.details())
                for part in (*parts, "Fix: "):
                    test.assertIn(part, error.details())
                return True

        return Context()

    def invalid(self, *parts):
        return self.refused(grpc.StatusCode.INVALID_ARGUMENT, *parts)


class Server(InferenceTest):
    def test_a_daemon_that_serves_is_live_and_ready(self):
        self.assertTrue(self.client.ServerLive().live)
        self.assertTrue(self.client.ServerReady().ready)

    def test_http_probes_of_the_metrics_address(self):
        for path in ("livez", "readyz"):
            url = "http://{}/{}".format(self.daemon.metrics_address, path)
            with urllib.request.urlopen(url, timeout=60) as answer:
                self.assertEqual((answer.status, answer.read()), (200, b"ok\n"))

    def test_metadata_names_the_extensions(self):
        metadata = self.client.ServerMetadata()
        self.assertEqual(metadata.name, "residentd")
        self.assertIn("statistics", metadata.extensions)
        self.assertIn("system_shared_memory", metadata.extensions)
        on_cuda = os.environ.get("RESIDENT_TEST_ENGINE") == "cuda"
        self.assertEqual("cuda_shared_memory" in metadata.extensions, on_cuda)

    def test_model_ready(self):
        self.assertTrue(self.client.ModelReady(name="add").ready)
        self.assertTrue(self.client.ModelReady(name="add:batch", version="1").ready)
        self.assertFalse(self.client.ModelReady(name="add", version="7").ready)
        self.assertFalse(self.client.ModelReady(name="nothing").ready)
        with self.invalid("version 'x'"):
            self.client.ModelReady(name="add", version="x")

    def test_settings_are_readable_and_cannot_be_written(self):
        self.assertEqual(list(self.client.TraceSetting().settings["trace_level"].value), ["OFF"])
        self.assertEqual(self.client.LogSettings().settings["log_verbose_level"].uint32_param, 0)
        message = pb.TraceSettingRequest()
        message.settings["trace_level"].value.append("TIMESTAMPS")
        with self.refused(grpc.StatusCode.UNIMPLEMENTED, "tracing"):
            self.client.TraceSetting(message)
        message = pb.LogSettingsRequest()
        message.settings["log_verbose_level"].uint32_param = 1
        with self.refused(grpc.StatusCode.UNIMPLEMENTED, "log"):
            self.client.LogSettings(message)


class Readiness(InferenceTest):

    def test_a_daemon_without_a_usable_device_is_live_and_not_ready(self):
        killed = set()

        def unhealthy():
            device = self.ctl("status", "--json").json["devices"][0]
            pid = int(device["engine_pid"])
            if pid and pid not in killed:
                killed.add(pid)
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            return device["state"] == "unhealthy"

        eventually(unhealthy)
        self.assertTrue(self.client.ServerLive().live)
        self.assertFalse(self.client.ServerReady().ready)
        self.assertFalse(self.client.ModelReady(name="add").ready)
        with self.refused(grpc.StatusCode.UNAVAILABLE):
            self.client.infer("add", {"x": X, "y": Y})
        self.ctl("admin", "resume", "0")
        eventually(lambda: self.client.ServerReady().ready)
        self.assertTrue(self.client.ModelReady(name="add").ready)
        numpy.testing.assert_array_equal(array(self.client.infer("add", {"x": X, "y": Y}), "out"), X + Y)


class Models(InferenceTest):
    def test_a_scalar_with_a_default_is_not_an_input(self):
        metadata = self.client.ModelMetadata(name="add")
        self.assertEqual([(t.name, t.datatype, list(t.shape)) for t in metadata.inputs],
                         [("x", "FP32", [-1]), ("y", "FP32", [-1])])
        self.assertEqual([(t.name, t.datatype, list(t.shape)) for t in metadata.outputs],
                         [("out", "FP32", [-1])])
        self.assertEqual(list(metadata.versions), ["1"])
        config = self.client.ModelConfig(name="add").config
        self.assertEqual(config.max_batch_size, 0)
        self.assertEqual([t.name for t in config.input], ["x", "y"])
        self.assertIn("default 1", config.parameters["scalar.alpha"].string_value)
        self.assertIn("BF16", config.parameters["dtypes.x"].string_value)

    def test_a_scalar_without_a_default_is_an_input_of_one_element(self):
        metadata = self.client.ModelMetadata(name="fill")
        self.assertEqual([(t.name, t.datatype, list(t.shape)) for t in metadata.inputs],
                         [("value", "FP64", [1])])

    def test_an_inout_parameter_is_an_input_and_an_output(self):
        metadata = self.client.ModelMetadata(name="gemm")
        self.assertEqual([t.name for t in metadata.inputs], ["a", "b", "c"])
        self.assertEqual([t.name for t in metadata.outputs], ["c"])

    def test_a_batch_has_one_more_dimension_and_a_largest_size(self):
        metadata = self.client.ModelMetadata(name="sum_rows:batch")
        self.assertEqual([list(t.shape) for t in metadata.inputs], [[-1, -1, -1]])
        config = self.client.ModelConfig(name="sum_rows:batch").config
        self.assertEqual(config.name, "sum_rows:batch")
        self.assertEqual(config.max_batch_size, 4 << 20)
        self.assertEqual([list(t.dims) for t in config.input], [[-1, -1]])

    def test_metadata_and_config_of_every_model_agree(self):
        """Benchmark tools require that the inputs of both agree, and send random data to all of them."""
        models = {m.name for m in self.client.RepositoryIndex().models}
        self.assertGreater(len(models), 50)
        for name in sorted(models):
            for model in (name, name + ":batch"):
                with self.subTest(model=model):
                    metadata = self.client.ModelMetadata(name=model)
                    config = self.client.ModelConfig(name=model).config
                    self.assertEqual((metadata.name, config.name), (model, model))
                    self.assertTrue(metadata.versions)
                    for version in metadata.versions:
                        self.assertEqual(version, str(int(version)))
                    batched = config.max_batch_size > 0
                    self.assertEqual(batched, model != name)
                    for of_metadata, of_config in ((metadata.inputs, config.input),
                                                   (metadata.outputs, config.output)):
                        self.assertEqual(
                            [("TYPE_" + t.datatype, t.name, list(t.shape)) for t in of_metadata],
                            [(pb.DataType.Name(t.data_type), t.name, [-1] * batched + list(t.dims))
                             for t in of_config])
                    # Scalars with a default are parameters, and no inputs.
                    inputs = {t.name for t in metadata.inputs}
                    for key, value in config.parameters.items():
                        kind, _, parameter = key.partition(".")
                        if kind == "scalar":
                            self.assertEqual(parameter in inputs,
                                             "default" not in value.string_value, key)

    def test_unknown_models_and_versions_are_errors(self):
        with self.refused(grpc.StatusCode.NOT_FOUND, "'ad'", "add", "RepositoryIndex lists all models"):
            self.client.ModelMetadata(name="ad")
        with self.refused(grpc.StatusCode.NOT_FOUND, "version 7"):
            self.client.ModelConfig(name="add", version="7")
        for internal in ("flux.run", "compare"):
            with self.refused(grpc.StatusCode.NOT_FOUND, internal):
                self.client.ModelMetadata(name=internal)
            with self.refused(grpc.StatusCode.NOT_FOUND, internal):
                self.client.infer(internal, {"x": X})

    def test_the_index_lists_every_version_in_the_kernel(self):
        models = self.client.RepositoryIndex().models
        self.assertIn(("add", "1", "READY"), [(m.name, m.version, m.state) for m in models])
        self.assertNotIn("flux.run", [m.name for m in models])
        with self.refused(grpc.StatusCode.NOT_FOUND, "repository"):
            self.client.RepositoryIndex(repository_name="other")


class Infer(InferenceTest):
    def test_raw_and_typed_contents_give_the_same_answer(self):
        for typed in (False, True):
            answer = self.client.infer("add", {"x": X, "y": Y}, typed=typed, id="a7")
            numpy.testing.assert_array_equal(array(answer, "out"), X + Y)
            self.assertEqual((answer.model_name, answer.model_version, answer.id), ("add", "1", "a7"))
            self.assertEqual(answer.outputs[0].datatype, "FP32")

    def test_every_datatype(self):
        for datatype, dtype in inference_client.DATATYPES.items():
            x = numpy.array([[1, 2], [3, 4]]).astype(dtype)
            with self.subTest(datatype):
                message = request("zero", parameters={"dtype.out": datatype, "shape.out": "2,3"})
                answer = self.client.ModelInfer(message)
                numpy.testing.assert_array_equal(array(answer, "out"), numpy.zeros((2, 3), dtype))
                self.assertEqual(answer.outputs[0].datatype, datatype)
        for datatype in ("FP32", "FP16", "BF16", "INT32", "FP64"):
            x = numpy.array([[1, 2], [3, 4]]).astype(inference_client.DATATYPES[datatype])
            with self.subTest("copy " + datatype):
                answer = self.client.infer("copy", {"x": x}, datatypes={"x": datatype})
                self.assertEqual(answer.outputs[0].datatype, datatype)
                numpy.testing.assert_array_equal(array(answer, "out"), x)

    def test_typed_contents_of_integers(self):
        for x in (numpy.array([-5, 7], numpy.int32), numpy.array([1.5, -2], numpy.float64)):
            answer = self.client.infer("copy", {"x": x}, typed=True)
            numpy.testing.assert_array_equal(array(answer, "out"), x)

    def test_datatypes_that_operators_do_not_have_are_refused_with_the_list(self):
        message = request("copy", {"x": X})
        message.inputs[0].datatype = "BYTES"
        with self.invalid("BYTES", "FP32, FP16"):
            self.client.ModelInfer(message)

    def test_scalars_by_parameter_and_by_input(self):
        for alpha in (2, 2.0, "2", True):
            answer = self.client.infer("add", {"x": X, "y": Y}, parameters={"alpha": alpha})
            numpy.testing.assert_array_equal(array(answer, "out"), X + float(alpha) * Y)
        answer = self.client.infer("add", {"x": X, "y": Y, "alpha": numpy.array([3.0])})
        numpy.testing.assert_array_equal(array(answer, "out"), X + 3 * Y)
        with self.invalid("alpha", "also a parameter"):
            self.client.infer("add", {"x": X, "y": Y, "alpha": numpy.array([3.0])},
                              parameters={"alpha": 1})
        with self.invalid("'alpha'", "FP64"):
            self.client.infer("add", {"x": X, "y": Y}, parameters={"alpha": "much"})
        with self.invalid("alpha", "[1]"):
            self.client.infer("add", {"x": X, "y": Y, "alpha": numpy.array([3.0, 4.0])})
        with self.invalid("'alpa'", "one of: timeout, ", "alpha"):
            self.client.infer("add", {"x": X, "y": Y}, parameters={"alpa": 1})

    def test_outputs_whose_shape_does_not_follow_from_the_inputs(self):
        x = numpy.arange(6, dtype=F32).reshape(2, 3)
        answer = self.client.infer("sum", {"x": x, "axes": numpy.array([2], numpy.uint32)},
                                   parameters={"shape.out": "2"})
        numpy.testing.assert_array_equal(array(answer, "out"), x.sum(1))
        with self.invalid("'out' of sum", "cannot be inferred"):
            self.client.infer("sum", {"x": x}, parameters={"axes": 2})

    def test_inputs_broadcast(self):
        answer = self.client.infer("add", {"x": X.reshape(3, 1), "y": Y})
        numpy.testing.assert_array_equal(array(answer, "out"), X.reshape(3, 1) + Y)

    def test_an_inout_parameter_returns_its_elements_after_the_task(self):
        a = numpy.arange(6, dtype=F32).reshape(2, 3)
        b = numpy.ones((3, 2), F32)
        c = numpy.full((2, 2), 5, F32)
        answer = self.client.infer("gemm", {"a": a, "b": b, "c": c}, parameters={"beta": 1.0})
        numpy.testing.assert_array_equal(array(answer, "c"), a @ b + c)
        batch = self.client.infer(
            "gemm:batch", {"a": numpy.stack([a, 2 * a]), "b": numpy.stack([b, b]),
                           "c": numpy.stack([c, 0 * c])}, parameters={"beta": 1.0})
        numpy.testing.assert_array_equal(array(batch, "c"), [a @ b + c, 2 * a @ b])

    def test_only_requested_outputs_are_returned(self):
        x = numpy.arange(8, dtype=F32).reshape(2, 4)
        inputs = {"x": x, "r": x, "w": numpy.ones(4, F32)}
        metadata = self.client.ModelMetadata(name="rmsnorm_residual")
        names = [t.name for t in metadata.outputs]
        self.assertGreater(len(names), 1)
        every = self.client.infer("rmsnorm_residual", inputs)
        self.assertEqual([t.name for t in every.outputs], names)
        for name in names:
            answer = self.client.infer("rmsnorm_residual", inputs, outputs=[name])
            self.assertEqual([t.name for t in answer.outputs], [name])
            numpy.testing.assert_array_equal(array(answer, name), array(every, name))
        reverse = self.client.infer("rmsnorm_residual", inputs, outputs=names[::-1])
        self.assertEqual([t.name for t in reverse.outputs], names[::-1])
        with self.invalid("no output 'sum'"):
            self.client.infer("rmsnorm_residual", inputs, outputs=["sum"])
        with self.invalid("twice"):
            self.client.infer("rmsnorm_residual", inputs, outputs=[names[0], names[0]])

    def test_the_first_dimension_of_a_batch_counts_tasks(self):
        x = numpy.arange(24, dtype=F32).reshape(4, 2, 3)
        answer = self.client.infer("sum_rows:batch", {"x": x})
        numpy.testing.assert_array_equal(array(answer, "out"), x.sum(2))
        self.assertEqual(answer.model_name, "sum_rows:batch")
        answer = self.client.infer("fill:batch", {"value": numpy.array([[1.0], [2.0]])},
                                   parameters={"shape.out": "3", "dtype.out": "FP32"})
        numpy.testing.assert_array_equal(array(answer, "out"), [[1, 1, 1], [2, 2, 2]])
        with self.invalid("'y' of add:batch", "is 1 and that of 'x' is 2"):
            self.client.infer("add:batch", {"x": numpy.ones((2, 3), F32), "y": numpy.ones((1, 3), F32)})
        with self.invalid("no dimensions"):
            self.client.infer("copy:batch", {"x": numpy.float32(1)})
        with self.invalid("0 tasks"):
            self.client.infer("copy:batch", {"x": numpy.ones((0, 3), F32)})

    def test_parameters_that_clients_send_to_every_server(self):
        answer = self.client.infer("add", {"x": X, "y": Y}, parameters={
            "timeout": 60_000_000, "priority": 3, "sequence_id": 0, "sequence_start": False,
            "triton_enable_empty_final_response": True})
        numpy.testing.assert_array_equal(array(answer, "out"), X + Y)
        with self.invalid("sequence"):
            self.client.infer("add", {"x": X, "y": Y}, parameters={"sequence_id": 7})

    def test_parameters_of_tensors_that_the_sdk_of_kserve_sends(self):
        message = request("add", {"x": X, "y": Y}, outputs=["out"])
        for tensor in message.inputs:
            inference_client.set_parameter(tensor.parameters, "binary_data_size", X.nbytes)
        inference_client.set_parameter(message.outputs[0].parameters, "binary_data", True)
        answer = self.client.ModelInfer(message)
        numpy.testing.assert_array_equal(array(answer, "out"), X + Y)
        self.assertFalse(answer.outputs[0].parameters)
        inference_client.set_parameter(message.inputs[0].parameters, "binary_data_sise", 12)
        with self.invalid("'binary_data_sise' is not known", "one of: shared_memory_region"):
            self.client.ModelInfer(message)

    def test_the_timeout_ends_a_request_that_waits(self):
        spin = request("test.spin:batch", {"ns": numpy.full((64, 1), 20_000_000)},
                       parameters={"shape.out": "1", "timeout": 1})
        with self.refused(grpc.StatusCode.DEADLINE_EXCEEDED):
            self.client.ModelInfer(spin)

    def test_the_failure_of_a_task_is_the_error_of_the_call(self):
        with self.invalid("test.refuse", "detail 5"):
            self.client.infer("test.refuse", parameters={"shape.out": "1", "detail": 5})
        with self.invalid("task 0 of 3 (3 failed)"):
            self.client.infer("test.refuse:batch", {"detail": numpy.full((3, 1), 5)},
                              parameters={"shape.out": "1"})

    def test_errors_are_those_of_the_daemon(self):
        with self.invalid("argument 2 'y' of add: shape [2]"):
            self.client.infer("add", {"x": X, "y": Y[:2]})
        with self.invalid("argument 1 'x' of sum_rows", "dtype i32"):
            self.client.infer("sum_rows", {"x": numpy.ones((2, 2), numpy.int32)})
        with self.refused(grpc.StatusCode.NOT_FOUND, "version 9", "send no version for the active one (1 now)"):
            self.client.infer("add", {"x": X, "y": Y}, model_version="9")
        for version in ("0", "-1", "v1"):
            with self.invalid("version '{}' cannot exist: versions are numbers from 1 on".format(version),
                              "nothing for the active one"):
                self.client.infer("add", {"x": X, "y": Y}, model_version=version)
        with self.invalid("give it as the parameter shape.NAME", 'shape.out="2,3"'):
            self.client.infer("sum", {"x": numpy.ones((2, 2), numpy.float32), "axes": numpy.uint32([1])})
        with self.refused(grpc.StatusCode.NOT_FOUND, "'ad'"):
            self.client.infer("ad", {"x": X, "y": Y})

    def test_a_request_that_contradicts_itself_is_refused(self):
        good = request("add", {"x": X, "y": Y})
        cases = [
            ("raw_input_contents and also", lambda m: m.inputs[0].contents.fp32_contents.append(1)),
            ("1 entries for 2 inputs", lambda m: m.raw_input_contents.pop()),
            ("3 entries for 2 inputs", lambda m: m.raw_input_contents.append(b"")),
            ("'x' of add has 8 bytes", lambda m: m.raw_input_contents.__setitem__(0, bytes(8))),
            ("a dimension is -3", lambda m: m.inputs[0].shape.__setitem__(0, -3)),
            ("has 10 dimensions, over the limit of 9",
             lambda m: m.inputs[0].shape.extend([1] * 9)),
            ("overflows", lambda m: m.inputs[0].shape.extend([1 << 40, 1 << 40])),
            ("no input 'z'", lambda m: setattr(m.inputs[0], "name", "z")),
            ("'x' of add occurs twice", lambda m: setattr(m.inputs[1], "name", "x")),
            ("is missing", lambda m: (m.inputs.pop(), m.raw_input_contents.pop())),
            ("'' is not supported", lambda m: setattr(m.inputs[0], "datatype", "")),
            ("version 'v1'", lambda m: setattr(m, "model_version", "v1")),
            ("shared_memory_region", lambda m: inference_client.set_parameter(
                m.inputs[0].parameters, "shared_memory_offset", 3)),
            ("classification", lambda m: inference_client.set_parameter(
                m.outputs.add(name="out").parameters, "classification", 3)),
        ]
        for part, change in cases:
            with self.subTest(part):
                message = pb.ModelInferRequest()
                message.CopyFrom(good)
                change(message)
                with self.invalid(part):
                    self.client.ModelInfer(message)
        numpy.testing.assert_array_equal(array(self.client.ModelInfer(good), "out"), X + Y)

    def test_typed_contents_are_checked(self):
        with self.invalid("wrong field of contents", "fp32_contents"):
            message = request("copy", {"x": X}, typed=True)
            message.inputs[0].contents.int_contents.append(1)
            self.client.ModelInfer(message)
        with self.invalid("2 elements", "requires 3"):
            message = request("copy", {"x": X}, typed=True)
            message.inputs[0].contents.fp32_contents.pop()
            self.client.ModelInfer(message)
        with self.invalid("FP16", "raw_input_contents"):
            message = request("copy", {"x": X}, typed=True)
            message.inputs[0].datatype = "FP16"
            self.client.ModelInfer(message)
        with self.invalid("element 1 is 300", "UINT8"):
            message = request("copy", {"x": numpy.array([1, 300], numpy.uint32)}, typed=True)
            message.inputs[0].datatype = "UINT8"
            self.client.ModelInfer(message)

    def test_a_message_that_is_none_is_refused(self):
        call = self.client.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with self.invalid("inference.ModelInferRequest"):
            call(b"\xff\xff\xff", timeout=60)


class Streams(InferenceTest):
    def test_each_request_gets_one_answer_and_errors_do_not_end_the_stream(self):
        requests = []
        for i in range(100):
            inputs = {"x": X * i, "y": Y if i % 10 else Y[:2]}
            requests.append(request("add", inputs, id=str(i)))
        answers = {}
        for answer in self.client.ModelStreamInfer(iter(requests)):
            self.assertNotIn(answer.infer_response.id, answers)
            answers[answer.infer_response.id] = answer
        self.assertEqual(len(answers), 100)
        for i in range(100):
            answer = answers[str(i)]
            if i % 10:
                self.assertEqual(answer.error_message, "")
                numpy.testing.assert_array_equal(array(answer.infer_response, "out"), X * i + Y)
            else:
                self.assertIn("Fix: ", answer.error_message)

    def test_the_last_answer_of_a_request_is_marked_if_the_client_asks(self):
        parameters = {"triton_enable_empty_final_response": True}
        message = request("add", {"x": X, "y": Y}, parameters=parameters)
        (answer,) = self.client.ModelStreamInfer(iter([message]))
        self.assertTrue(answer.infer_response.parameters["triton_final_response"].bool_param)

    def test_with_the_header_the_first_error_ends_the_stream(self):
        messages = [request("add", {"x": X, "y": Y}, id="1"), request("ad", {"x": X}, id="2")]
        answers = self.client.ModelStreamInfer(iter(messages),
                                               metadata=(("triton_grpc_error", "true"),))
        self.assertEqual(next(answers).infer_response.id, "1")
        with self.refused(grpc.StatusCode.NOT_FOUND, "'ad'"):
            next(answers)


class Statistics(InferenceTest):
    def one(self, name, version=""):
        (statistics,) = self.client.ModelStatistics(name=name, version=version).model_stats
        return statistics

    def test_requests_and_tasks_are_counted_by_model_and_version(self):
        before = self.one("sub")
        self.assertEqual((before.version, before.inference_count, before.last_inference), ("1", 0, 0))
        for _ in range(5):
            self.client.infer("sub", {"x": X, "y": Y})
        self.client.infer("sub:batch", {"x": numpy.ones((7, 3), F32), "y": numpy.ones((7, 3), F32)})
        with self.invalid():
            self.client.infer("sub", {"x": X, "y": Y, "alpha": numpy.array([1.0, 2.0])})
        after = self.one("sub")
        self.assertEqual((after.inference_count, after.execution_count), (5, 5))
        self.assertGreater(after.last_inference, 0)
        stats = after.inference_stats
        self.assertEqual((stats.success.count, stats.fail.count, stats.queue.count), (5, 0, 5))
        parts = (stats.queue.ns + stats.compute_input.ns + stats.compute_infer.ns +
                 stats.compute_output.ns)
        self.assertLessEqual(parts, stats.success.ns)
        batch = self.one("sub:batch")
        self.assertEqual((batch.inference_count, batch.execution_count), (7, 1))
        with self.subTest("all models"):
            names = {s.name for s in self.client.ModelStatistics().model_stats}
            self.assertLessEqual({"sub", "sub:batch", "add"}, names)

    def metric(self, name, *labels):
        """The sum of the values of a metric with these labels."""
        url = "http://{}/metrics".format(self.daemon.metrics_address)
        with urllib.request.urlopen(url, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines
                   if line.startswith(name + "{") and all(label in line for label in labels))

    def test_the_metrics_count_both_protocols_together(self):
        def counted():
            return (self.metric("resident_tasks_total", 'operator="mul"', 'status="ok"'),
                    self.metric("resident_refused_batches_total", 'code="invalid_argument"'))

        tasks, refused = counted()
        self.client.infer("mul", {"x": X, "y": Y})
        self.assertEqual(counted(), (tasks + 1, refused))
        rows = numpy.ones((7, 3), F32)
        self.client.infer("mul:batch", {"x": rows, "y": rows})
        list(self.client.ModelStreamInfer(iter([request("mul", {"x": X, "y": Y})])))
        self.assertEqual(counted(), (tasks + 9, refused))
        self.ctl("run", "mul", "x=1", "y=2")
        self.assertEqual(counted(), (tasks + 10, refused))
        with self.invalid():
            self.client.infer("mul", {"x": X, "y": Y[:2]})
        (answer,) = self.client.ModelStreamInfer(iter([request("mul", {"x": X, "y": Y[:2]})]))
        self.assertIn("Fix: ", answer.error_message)
        self.ctl("run", "mul", "x=1,2,3", "y=1,2", code=daemons.REFUSED)
        self.assertEqual(counted(), (tasks + 10, refused + 3))

    def test_failures_are_counted(self):
        with self.invalid():
            self.client.infer("test.refuse", parameters={"shape.out": "1", "detail": 5})
        stats = self.one("test.refuse").inference_stats
        self.assertEqual((stats.success.count, stats.fail.count), (0, 1))


class Repository(InferenceTest):
    def load(self, name, source, signature="x: in f32[*S], out: out f32[*S]", **parameters):
        message = pb.RepositoryModelLoadRequest(model_name=name)
        config = ('{"name": "%s", "parameters": {"signature": {"string_value": "%s"}, '
                  '"split": {"string_value": "out 4096"}}}' % (name, signature))
        message.parameters["config"].string_param = config
        message.parameters["file:1/{}.cc".format(name)].bytes_param = source.encode()
        self.client.RepositoryModelLoad(message)

    def versions(self, name):
        return {m.version: (m.state, m.reason) for m in self.client.RepositoryIndex().models
                if m.name == name}

    def test_load_with_files_installs_and_activates(self):
        self.load("twice", TWICE.format(name="twice", factor=2))
        answer = self.client.infer("twice", {"x": X})
        self.assertEqual(answer.model_version, "1")
        numpy.testing.assert_array_equal(array(answer, "out"), 2 * X)
        self.load("twice", TWICE.format(name="twice", factor=3))
        answer = self.client.infer("twice", {"x": X})
        self.assertEqual(answer.model_version, "2")
        numpy.testing.assert_array_equal(array(answer, "out"), 3 * X)
        # The previous version serves requests that name it.
        answer = self.client.infer("twice", {"x": X}, model_version="1")
        self.assertEqual(answer.model_version, "1")
        self.assertEqual({v: s for v, (s, _) in self.versions("twice").items()},
                         {"1": "READY", "2": "READY"})
        # A version that does not compile changes nothing, and the error has the compiler's words.
        with self.invalid("error"):
            self.load("twice", TWICE.format(name="twice", factor="nonsense"))
        self.assertEqual(self.client.infer("twice", {"x": X}).model_version, "2")
        # Loading what serves changes nothing.
        self.client.RepositoryModelLoad(model_name="twice")
        self.assertEqual(self.client.infer("twice", {"x": X}).model_version, "2")

    def test_load_activates_the_version_that_is_loaded(self):
        folder = pathlib.Path(self.daemon.folder)
        (folder / "five.cc").write_text(TWICE.format(name="five", factor=5))
        self.ctl("ops", "install", "five", str(folder / "five.cc"), "--wait=loaded")
        self.assertFalse(self.client.ModelReady(name="five").ready)
        (state, reason), = self.versions("five").values()
        self.assertEqual(state, "UNAVAILABLE")
        self.assertIn("not active", reason)
        self.client.RepositoryModelLoad(model_name="five")
        self.assertTrue(self.client.ModelReady(name="five").ready)
        numpy.testing.assert_array_equal(array(self.client.infer("five", {"x": X}), "out"), 5 * X)

    def load_model(self, name, files, config=None):
        message = pb.RepositoryModelLoadRequest(model_name=name)
        if config is not None:
            message.parameters["config"].string_param = json.dumps(config)
        for file, data in files.items():
            message.parameters["file:1/" + file].bytes_param = data
        self.client.RepositoryModelLoad(message)

    def test_load_with_an_onnx_file_loads_a_version_of_a_model(self):
        rows = numpy.array([[1, 2, 3], [-1, 0, -2]], F32)
        for number in (1, 2):
            w = [[number, 0, 0], [1, 1, 1]]
            self.load_model("affine", {"affine.onnx": onnx_file.affine(w, [0, number])})
            answer = self.client.infer("affine", {"x": rows})
            self.assertEqual(answer.model_version, str(number))
            numpy.testing.assert_array_equal(array(answer, "y"), numpy.maximum(rows @ numpy.transpose(w) + [0, number], 0))
        self.assertEqual(self.versions("affine"), {"1": ("READY", ""), "2": ("READY", "")})
        # Data in another file, and everything that a configuration may say.
        files = {"net.onnx": onnx_file.affine(w, [0, 2], location="w.bin"), "w.bin": numpy.array(w, F32).tobytes()}
        config = {"name": "external", "platform": "onnxruntime_onnx", "backend": "onnxruntime", "max_batch_size": 5,
                  "instance_group": [{"count": 3}]}
        self.load_model("external", files, config)
        numpy.testing.assert_array_equal(array(self.client.infer("external", {"x": rows}), "y"),
                                         numpy.maximum(rows @ numpy.transpose(w) + [0, 2], 0))
        with self.invalid("6", "5"):
            self.client.infer("external", {"x": numpy.ones((6, 3), F32)})
        (version,) = self.ctl("model", "describe", "external", "--json").json["versions"]
        self.assertEqual(version["max_instances"], 3)
        fixed = {"parameters": {"sizes.batch": {"string_value": "2"}}}
        self.load_model("fixed", {"m.onnx": onnx_file.affine(w, [0, 2])}, fixed)
        self.assertEqual(list(self.client.ModelMetadata(name="fixed").inputs[0].shape), [2, 3])
        bound = {"parameters": {"max.seq": "7"}}
        self.load_model("tokens", {"m.onnx": onnx_file.tokens([[1, 2], [0, -1]])}, bound)
        self.assertEqual(list(self.client.ModelMetadata(name="tokens").inputs[0].shape), [-1, -1, 2])
        for tokens in (7, 3):
            x = numpy.random.default_rng(tokens).normal(size=(2, tokens, 2)).astype(F32)
            numpy.testing.assert_allclose(array(self.client.infer("tokens", {"x": x}), "y"),
                                          numpy.maximum(x @ [[1, 2], [0, -1]], 0), atol=1e-5)
        with self.invalid("seq is 8, the model was loaded for 7"):
            self.client.infer("tokens", {"x": numpy.ones((1, 8, 2), F32)})

    def test_a_model_that_is_refused_changes_nothing(self):
        good = {"m.onnx": onnx_file.affine([[1, 2]], [0])}
        self.load_model("kept", good)
        before = self.client.RepositoryIndex()
        for words, files, config in (
                (("MODEL_E101",), {"m.onnx": b"nothing"}, None),
                (("MODEL_E107", "w.bin"), {"m.onnx": onnx_file.affine([[1, 2]], [0], location="w.bin")}, None),
                (("two models", "a.onnx", "b.onnx"), {"a.onnx": b"1", "b.onnx": b"2"}, None),
                (("MODEL_E108", "rows"), good, {"parameters": {"sizes.rows": "3"}}),
                (("'sizes.batch' is not a number",), good, {"parameters": {"sizes.batch": "-3"}}),
                (("'seed' is not known",), good, {"parameters": {"seed": "3"}}),
                (("'version_policy' is not known",), good, {"version_policy": {}}),
                (("is not the model's name",), good, {"name": "other"}),
                (("'max_batch_size'",), good, {"max_batch_size": -1}),
                (("'instance_group'",), good, {"instance_group": [{"count": 1, "kind": "KIND_CPU"}]}),
                (("17",), good, {"instance_group": [{"count": 17}]}),
                (("not a JSON object",), good, [])):
            with self.subTest(words), self.invalid(*words):
                self.load_model("kept", files, config)
        self.assertEqual(self.client.RepositoryIndex(), before)
        # An operator has the name.
        with self.refused(grpc.StatusCode.ALREADY_EXISTS, "add"):
            self.load_model("add", good)

    def test_a_version_that_was_quarantined_is_listed_with_the_reason(self):
        self.load("faulty", TWICE.format(name="faulty", factor=2))
        self.load("faulty", TWICE.format(name="faulty", factor=3).replace(
            "out[i] =", "if (x[i] == 1234) *reinterpret_cast<volatile float*>(16) = 1; out[i] ="))
        self.assertEqual(self.client.infer("faulty", {"x": X}).model_version, "2")
        with self.refused(grpc.StatusCode.ABORTED, "faulty"):
            self.client.infer("faulty", {"x": numpy.array([1234], F32)})
        eventually(lambda: self.versions("faulty")["2"][0] == "UNAVAILABLE")
        self.assertIn("quarantined: ", self.versions("faulty")["2"][1])
        self.assertEqual(self.versions("faulty")["1"], ("READY", ""))
        self.assertEqual([m.version for m in self.client.RepositoryIndex(ready=True).models
                          if m.name == "faulty"], ["1"])
        self.assertFalse(self.client.ModelReady(name="faulty", version="2").ready)

        def served():
            try:
                return self.client.infer("faulty", {"x": X})
            except grpc.RpcError as error:
                self.assertEqual(error.code(), grpc.StatusCode.UNAVAILABLE, error.details())
                return None

        eventually(served)
        answer = served()
        self.assertEqual(answer.model_version, "1")
        numpy.testing.assert_array_equal(array(answer, "out"), 2 * X)

    def test_an_expression_is_installed_without_files(self):
        message = pb.RepositoryModelLoadRequest(model_name="halve")
        message.parameters["config"].string_param = '{"parameters": {"expression": "x * 0.5"}}'
        self.client.RepositoryModelLoad(message)
        numpy.testing.assert_array_equal(array(self.client.infer("halve", {"x": X}), "out"), X / 2)

    def test_requests_that_load_nothing_are_refused(self):
        with self.refused(grpc.StatusCode.NOT_FOUND, "'nothing'"):
            self.client.RepositoryModelLoad(model_name="nothing")
        self.client.RepositoryModelLoad(model_name="add")
        for part, parameters in (
            ("not a JSON object", {"config": "["}),
            ("no object 'parameters'", {"config": "{}"}),
            ("'shape' is not known", {"config": '{"parameters": {"shape": "x"}}'}),
            ("65537 bytes, over the limit of 65536", {"config": " " * 65537}),
            ("is not a string", {"config": '{"parameters": {"signature": 3}}'}),
            ("two files 'x.cc'", {"config": '{"parameters": {"signature": "x: in f32[*S]"}}',
                                  "file:1/x.cc": b"", "file:2/x.cc": b""}),
            ("no parameter 'config'", {"file:1/x.cc": b""}),
            ("'color'", {"color": "red"}),
        ):
            message = pb.RepositoryModelLoadRequest(model_name="fresh")
            for name, value in parameters.items():
                kind = "bytes_param" if isinstance(value, bytes) else "string_param"
                setattr(message.parameters[name], kind, value)
            with self.subTest(part), self.invalid(part):
                self.client.RepositoryModelLoad(message)

    def test_unload_is_off_by_default(self):
        with self.refused(grpc.StatusCode.PERMISSION_DENIED, "--oip_unload=true"):
            self.client.RepositoryModelUnload(model_name="add")


class Unload(InferenceTest):
    FLAGS = ("--oip_unload=true",)

    def test_unload_removes_the_operator(self):
        message = pb.RepositoryModelLoadRequest(model_name="thrice")
        message.parameters["config"].string_param = '{"parameters": {"expression": "x * 3"}}'
        self.client.RepositoryModelLoad(message)
        self.assertTrue(self.client.ModelReady(name="thrice").ready)
        message = pb.RepositoryModelUnloadRequest(model_name="thrice")
        message.parameters["unload_dependents"].bool_param = False
        self.client.RepositoryModelUnload(message)
        self.assertFalse(self.client.ModelReady(name="thrice").ready)
        with self.refused(grpc.StatusCode.FAILED_PRECONDITION, "add"):
            self.client.RepositoryModelUnload(model_name="add")


class Bytecode(InferenceTest):
    """FLUX programs: factorial of R1 in R0."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        source = pathlib.Path(cls.daemon.folder) / "factorial.s"
        source.write_text("MOVI R0, 1\nagain: MUL R0, R0, R1\nLOOP R1, again\nHALT\n")
        done = cls.daemon.ctl("ops", "install", "factorial", "--flux=" + str(source), "--wait=active")
        assert done.code == daemons.OK, done

    def test_registers_are_inputs_and_outputs(self):
        registers = numpy.array([[0, 3], [0, 4], [0, 5]], numpy.int32)
        answer = self.client.infer("factorial", {"registers": registers})
        self.assertEqual([t.name for t in answer.outputs], ["registers", "errors", "cycles"])
        numpy.testing.assert_array_equal(array(answer, "registers")[:, 0], [6, 24, 120])
        numpy.testing.assert_array_equal(array(answer, "errors"), [0, 0, 0])
        self.assertEqual(array(answer, "cycles").shape, (3,))
        self.assertEqual(answer.model_version, "1")
        answer = self.client.infer("factorial", {"registers": registers}, outputs=["registers"],
                                   parameters={"wanted": "0"})
        numpy.testing.assert_array_equal(array(answer, "registers"), [[6], [24], [120]])

    def test_limits_and_shapes(self):
        registers = numpy.array([[0, 3]], numpy.int32)
        answer = self.client.infer("factorial", {"registers": registers}, parameters={"max_cycles": 2})
        numpy.testing.assert_array_equal(array(answer, "errors"), [5])
        with self.invalid("[runs, registers]"):
            self.client.infer("factorial", {"registers": registers[0]})
        with self.invalid("'wanted'"):
            self.client.infer("factorial", {"registers": registers}, parameters={"wanted": "R0"})
        with self.invalid("INT32"):
            self.client.infer("factorial", {"registers": registers.astype(numpy.int64)})
        metadata = self.client.ModelMetadata(name="factorial")
        self.assertEqual([(t.name, t.datatype, list(t.shape)) for t in metadata.inputs],
                         [("registers", "INT32", [-1, -1])])


def varint(number):
    out = b""
    while number >= 128:
        out += bytes([number % 128 + 128])
        number //= 128
    return out + bytes([number])


class ManyEntries(InferenceTest):
    """Messages of few bytes and many objects."""

    # Empty inputs, outputs, raw contents, parameters; parameters and contents of an input; unknown
    # fields.
    EMPTY = (b"\x2a\x00", b"\x32\x00", b"\x3a\x00", b"\x22\x00", b"\x2a\x02\x22\x00",
             b"\x2a\x04\x2a\x02\x42\x00", b"\xfa\x07\x00", b"\xf8\x07\x01")
    COUNT = 2 << 20

    @staticmethod
    def field(tag, value):
        return bytes([tag]) + varint(len(value)) + value

    def peak(self):
        for line in pathlib.Path("/proc/{}/status".format(self.daemon.process.pid)).read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) >> 10

    def test_a_message_with_millions_of_objects_is_refused_before_it_is_parsed(self):
        infer = self.client.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        stream = self.client.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        head = request("add", {"x": X, "y": Y}).SerializeToString()
        before = self.peak()
        for empty in self.EMPTY:
            message = head + self.COUNT * empty
            with self.invalid("more than 4096 sub-messages"):
                infer(message, timeout=60)
            with self.invalid("more than 4096 sub-messages"):
                list(stream(iter([message]), timeout=60))
        # The type of a bool, with the length of a string: an unknown field.
        unknown = self.field(0x22, self.field(0x12, self.COUNT * b"\x0a\x00"))
        with self.invalid("more than 4096 sub-messages"):
            infer(head + unknown, timeout=60)
        # A length beyond the end of the message around it.
        rest = self.field(0x12, self.COUNT * b"\x7a\x00")
        with self.invalid("cannot be parsed"):
            infer(head + b"\x2a\x05\x22" + varint(len(rest) + (1 << 24)) + rest, timeout=60)
        # Parsed, one of these messages takes 100 MiB and more; its bytes take 4 to 12.
        self.assertLess(self.peak() - before, 100)
        numpy.testing.assert_array_equal(array(self.client.infer("add", {"x": X, "y": Y}), "out"), X + Y)

    def test_what_cannot_be_parsed_is_refused(self):
        infer = self.client.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        # A group is refused in a message that is measured: one that could have too many objects.
        group = self.field(0x7a, bytes(9000)) + b"\x2b\x2c"
        for message in (b"\x2a\x05\x00", group, b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x2a\x02\x0a\x05"):
            with self.invalid("cannot be parsed"):
                infer(message, timeout=60)

    def test_elements_are_not_counted(self):
        values = numpy.arange(100000, dtype=F32)
        for typed in (False, True):
            answer = self.client.infer("copy", {"x": values}, typed=typed)
            numpy.testing.assert_array_equal(array(answer, "out"), values)
        # Elements that are not packed, as an old encoder sends them.
        message = pb.ModelInferRequest(model_name="copy")
        tensor = message.inputs.add(name="x", datatype="INT32", shape=[5000])
        inner = tensor.SerializeToString() + b"".join(
            field + size for field, size in ((b"\x2a", b"\x90\x4e"),)) + 5000 * b"\x10\x07"
        message.ClearField("inputs")
        whole = message.SerializeToString() + b"\x2a" + bytes(
            (len(inner) & 0x7f | 0x80, len(inner) >> 7)) + inner
        infer = self.client.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer = pb.ModelInferResponse.FromString(infer(whole, timeout=60))
        numpy.testing.assert_array_equal(array(answer, "out"), numpy.full(5000, 7))


if __name__ == "__main__":
    unittest_main.main()
