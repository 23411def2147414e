"""tritonclient and perf_analyzer, unmodified, with a running daemon: see tests/strangers/run.

The last line is `N passed, N failed`.
"""

import asyncio
import contextlib
import csv
import io
import os
import pathlib
import queue
import re
import subprocess
import sys
import threading
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "cli")]
import numpy  # noqa: E402
import tritonclient.grpc as triton  # noqa: E402
import tritonclient.grpc.aio as triton_aio  # noqa: E402
import tritonclient.utils.shared_memory as shared_memory  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402

if os.environ.get("ENCODER_FOLDER"):
    import onnxruntime
    import sentence_encoder
    import tokenizers

X = numpy.array([1, 2, 3], numpy.float32)
Y = numpy.array([10, 20, 30], numpy.float32)
TWICE = """\
RESIDENT_OPERATOR(twice)(resident::Block& block, const resident::Args& args) {
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  block.for_each(block.share(x.size()), [&](resident::i64 i) { out[i] = 2 * x[i]; });
}
"""
TWICE_CONFIG = """{"name": "twice", "parameters": {
    "signature": {"string_value": "x: in f32[*S], out: out f32[*S]"},
    "split": {"string_value": "out 4096"}}}"""


def inputs(library, **arrays):
    made = []
    for name, array in arrays.items():
        tensor = library.InferInput(name, list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


class Stranger(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = daemons.Daemon("--oip_unload=true")
        cls.addClassCleanup(cls.daemon.stop)


class TritonClient(Stranger):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = triton.InferenceServerClient(cls.daemon.address)
        cls.addClassCleanup(cls.client.close)

    def test_health_metadata_and_config(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready("add"))
        self.assertFalse(self.client.is_model_ready("nothing"))
        self.assertIn("statistics", self.client.get_server_metadata().extensions)
        metadata = self.client.get_model_metadata("add", as_json=True)
        self.assertEqual([t["name"] for t in metadata["inputs"]], ["x", "y"])
        config = self.client.get_model_config("add:batch").config
        self.assertGreater(config.max_batch_size, 0)
        self.assertEqual(config.parameters["scalar.alpha"].string_value, "FP64, default 1")

    def test_infer(self):
        result = self.client.infer(
            "add", inputs(triton, x=X, y=Y), outputs=[triton.InferRequestedOutput("out")],
            request_id="7", parameters={"alpha": 2}, timeout=10_000_000, priority=1)
        numpy.testing.assert_array_equal(result.as_numpy("out"), X + 2 * Y)
        self.assertEqual(result.get_response().id, "7")
        self.assertEqual(result.get_response().model_version, "1")

    def test_errors_arrive_with_their_code_and_fix(self):
        with self.assertRaises(InferenceServerException) as caught:
            self.client.infer("add", inputs(triton, x=X, y=Y[:2]))
        self.assertIn("INVALID_ARGUMENT", str(caught.exception.status()))
        self.assertIn("Fix: make each dimension of 'y'", caught.exception.message())

    def test_asynchronous_calls(self):
        results = queue.Queue()
        for _ in range(50):
            self.client.async_infer("add", inputs(triton, x=X, y=Y),
                                    lambda result, error: results.put((result, error)))
        for _ in range(50):
            result, error = results.get(timeout=60)
            self.assertIsNone(error)
            numpy.testing.assert_array_equal(result.as_numpy("out"), X + Y)

    def test_a_stream_continues_after_an_error(self):
        results = queue.Queue()
        with triton.InferenceServerClient(self.daemon.address) as client:
            client.start_stream(lambda result, error: results.put((result, error)))
            for i in range(20):
                client.async_stream_infer("add", inputs(triton, x=X, y=Y if i != 7 else Y[:2]),
                                          request_id=str(i))
            answers = [results.get(timeout=60) for _ in range(20)]
            client.stop_stream()
        errors = [error for _, error in answers if error is not None]
        self.assertEqual(len(errors), 1)
        self.assertIn("Fix: ", errors[0].message())
        ids = {result.get_response().id for result, error in answers if error is None}
        self.assertEqual(ids, {str(i) for i in range(20) if i != 7})

    def test_system_shared_memory(self):
        size = X.nbytes
        source = shared_memory.create_shared_memory_region("in", "/residentd-stranger-in", 2 * size)
        target = shared_memory.create_shared_memory_region("out", "/residentd-stranger-out", size)
        try:
            shared_memory.set_shared_memory_region(source, [X, Y])
            self.client.register_system_shared_memory("in", "/residentd-stranger-in", 2 * size)
            self.client.register_system_shared_memory("out", "/residentd-stranger-out", size)
            self.assertEqual(
                set(self.client.get_system_shared_memory_status().regions), {"in", "out"})
            tensors = [triton.InferInput(name, [3], "FP32") for name in "xy"]
            for i, tensor in enumerate(tensors):
                tensor.set_shared_memory("in", size, offset=i * size)
            output = triton.InferRequestedOutput("out")
            output.set_shared_memory("out", size)
            result = self.client.infer("add", tensors, outputs=[output])
            self.assertIsNotNone(result.get_output("out"))
            numpy.testing.assert_array_equal(
                shared_memory.get_contents_as_numpy(target, numpy.float32, [3]), X + Y)
            self.client.unregister_system_shared_memory()
            self.assertEqual(len(self.client.get_system_shared_memory_status().regions), 0)
        finally:
            shared_memory.destroy_shared_memory_region(source)
            shared_memory.destroy_shared_memory_region(target)

    def test_repository_and_statistics(self):
        self.client.load_model("twice", config=TWICE_CONFIG,
                               files={"file:1/twice.cc": TWICE.encode()})
        result = self.client.infer("twice", inputs(triton, x=X))
        numpy.testing.assert_array_equal(result.as_numpy("out"), 2 * X)
        index = self.client.get_model_repository_index().models
        self.assertIn(("twice", "1", "READY"), [(m.name, m.version, m.state) for m in index])
        (statistics,) = self.client.get_inference_statistics("twice").model_stats
        self.assertEqual((statistics.version, statistics.inference_count), ("1", 1))
        self.client.unload_model("twice")
        self.assertFalse(self.client.is_model_ready("twice"))

    def test_settings(self):
        self.assertIn("trace_level", self.client.get_trace_settings().settings)
        self.assertIn("log_info", self.client.get_log_settings().settings)
        with self.assertRaises(InferenceServerException) as caught:
            self.client.update_log_settings({"log_verbose_level": 1})
        self.assertIn("UNIMPLEMENTED", str(caught.exception.status()))

    def test_the_examples_of_the_document(self):
        blocks = re.findall(r"^```python\n(.*?)^```", (HERE.parent.parent / "docs/inference.md").read_text(),
                            re.DOTALL | re.MULTILINE)
        self.assertEqual(len(blocks), 2)
        (pathlib.Path(self.daemon.folder) / "twice.cc").write_text(TWICE)
        names, printed = {}, io.StringIO()
        with contextlib.redirect_stdout(printed):
            for block in blocks:
                block = block.replace("127.0.0.1:50051", self.daemon.address)
                exec(block.replace("twice.cc\", \"rb", "{}/twice.cc\", \"rb".format(self.daemon.folder)), names)
        self.assertEqual(printed.getvalue(), re.search(r"# (\[.*\])$", blocks[0], re.MULTILINE)[1] + "\n")
        result = self.client.infer("twice", inputs(triton, x=X))
        numpy.testing.assert_array_equal(result.as_numpy("out"), 2 * X)
        self.client.unload_model("twice")
        names["client"].close()

    def test_asyncio(self):
        asyncio.run(self.use_asyncio())

    async def use_asyncio(self):
        async with triton_aio.InferenceServerClient(self.daemon.address) as client:
            self.assertTrue(await client.is_server_ready())
            results = await asyncio.gather(*(client.infer("add", inputs(triton_aio, x=X * i, y=Y))
                                             for i in range(50)))
            for i, result in enumerate(results):
                numpy.testing.assert_array_equal(result.as_numpy("out"), X * i + Y)

            async def requests():
                for i in range(20):
                    yield {"model_name": "add", "inputs": inputs(triton_aio, x=X, y=Y),
                           "request_id": str(i)}

            ids = set()
            async for result, error in client.stream_infer(requests()):
                self.assertIsNone(error)
                ids.add(result.get_response().id)
            self.assertEqual(ids, {str(i) for i in range(20)})


@unittest.skipUnless(os.environ.get("PERF_ANALYZER"), "perf_analyzer could not be downloaded")
class PerfAnalyzer(Stranger):
    """Each mode runs to its end without a failed request, and counts as the daemon counts."""

    def analyze(self, model, *flags):
        report = pathlib.Path(self.daemon.folder) / "report.csv"
        before = self.statistics(model)
        # Any result is stable: this is not a measurement.
        command = [
            os.environ["PERF_ANALYZER"], "-m", model, "-u", self.daemon.address, "-i", "grpc",
            "--stability-percentage=999", "--max-trials=3", "--measurement-mode=count_windows",
            "--measurement-request-count=100", "-f", str(report), *flags
        ]
        environment = dict(os.environ)
        environment["LD_LIBRARY_PATH"] = os.environ["PERF_ANALYZER_LIBRARIES"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        output = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, output)
        self.assertIn("Inferences/Second vs.", output)
        self.assertNotRegex(output, r"(?i)failed request|failed to")
        with open(report, newline="") as file:
            (row,) = csv.DictReader(file)
        self.assertGreater(float(row["Inferences/Second"]), 0)
        after = self.statistics(model)
        self.assertEqual(after.inference_stats.fail.count, before.inference_stats.fail.count)
        # The daemon also counted the requests outside of the tool's windows.
        (of_client,) = re.findall(r"Request count: (\d+)", output)
        self.assertGreaterEqual(after.execution_count - before.execution_count, int(of_client))
        self.assertGreater(int(of_client), 0)

    def statistics(self, model):
        """Of the active version and the others."""
        with triton.InferenceServerClient(self.daemon.address) as client:
            models = client.get_inference_statistics(model).model_stats
        total = models[0]
        for other in models[1:]:
            total.execution_count += other.execution_count
            total.inference_stats.fail.count += other.inference_stats.fail.count
        return total

    SHAPES = {
        "add": ["--shape=x:64", "--shape=y:64"],
        "add:batch": ["-b", "64", "--shape=x:64", "--shape=y:64"],
        "sum_rows": ["--shape=x:8,8"],
        "installed": ["--shape=x:64"],
        "installed:batch": ["-b", "64", "--shape=x:64"],
    }

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with triton.InferenceServerClient(cls.daemon.address) as client:
            client.load_model("installed", config=TWICE_CONFIG.replace("twice", "installed"),
                              files={"file:1/installed.cc": TWICE.replace("twice", "installed").encode()})

    def run_all(self, *flags):
        for model, shapes in self.SHAPES.items():
            with self.subTest(model=model):
                self.analyze(model, *shapes, *flags)

    def test_synchronous(self):
        self.run_all("--sync")

    def test_asynchronous(self):
        self.run_all("--async", "--concurrency-range=8")

    def test_streaming(self):
        self.run_all("--async", "--streaming", "--concurrency-range=8")

    def test_request_rate(self):
        self.run_all("--async", "--request-rate-range=200")

    def test_shared_memory(self):
        self.run_all("--shared-memory=system", "--output-shared-memory-size=65536")

    @unittest.skipUnless(os.environ.get("RESIDENT_TEST_DEVICES", "cpu") != "cpu", "needs a GPU")
    def test_cuda_shared_memory(self):
        self.run_all("--shared-memory=cuda", "--output-shared-memory-size=65536")

    def test_a_version_that_is_activated_meanwhile_causes_no_error(self):
        for factor in (2, 3):
            source = pathlib.Path(self.daemon.folder) / "times.cc"
            source.write_text("// signature: x: in f32[*S], out: out f32[*S]\n" +
                              TWICE.replace("twice", "times").replace("2 *", str(factor) + " *"))
            installed = self.daemon.ctl("ops", "install", "times", str(source),
                                        "--wait=" + ("active" if factor == 2 else "loaded"))
            self.assertEqual(installed.code, daemons.OK, installed)
        done = queue.Queue()

        def analyze():
            try:
                self.analyze("times:batch", "--shape=x:64", "--async", "--concurrency-range=4")
                done.put(None)
            except AssertionError as error:
                done.put(error)

        thread = threading.Thread(target=analyze)
        thread.start()
        client = triton.InferenceServerClient(self.daemon.address)
        versions = []
        while thread.is_alive():
            result = client.infer("times", inputs(triton, x=X))
            version = result.get_response().model_version
            numpy.testing.assert_array_equal(result.as_numpy("out"), (int(version) + 1) * X)
            versions.append(version)
            if len(versions) == 20:
                activated = self.daemon.ctl("ops", "activate", "times")
                self.assertEqual(activated.code, daemons.OK, activated)
        thread.join()
        client.close()
        self.assertIsNone(done.get_nowait())
        self.assertEqual([v for i, v in enumerate(versions) if i == 0 or v != versions[i - 1]],
                         ["1", "2"])


@unittest.skipUnless(os.environ.get("ENCODER_FOLDER"), "the sentence encoder could not be downloaded")
class SentenceEncoder(Stranger):
    """An encoder of 22 million parameters, loaded by one command for sentences of any number of tokens."""

    TOKENS = 48  # At most: the CPU engine computes a row in a fraction of a second.
    SENTENCES = ("A man is eating food.", "Someone eats a meal.", "The rocket was launched into orbit.",
                 "A spacecraft left the Earth.")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = pathlib.Path(os.environ["ENCODER_FOLDER"])
        model = sentence_encoder.write_folder(cls.folder)
        cls.session = onnxruntime.InferenceSession(model)
        cls.tokenizer = tokenizers.Tokenizer.from_file(str(cls.folder / sentence_encoder.TOKENIZER))
        cls.tokenizer.enable_padding()  # To the longest sentence of a request.
        cls.tokenizer.enable_truncation(cls.TOKENS)
        loaded = cls.daemon.ctl("model", "load", str(model), "--name=encoder",
                                "--data=" + str(cls.folder / sentence_encoder.WEIGHTS),
                                "--max=sequence={}".format(cls.TOKENS), "--max_batch=8",
                                "--warmup=input_ids=1x8")
        if loaded.code != daemons.OK:
            raise AssertionError(loaded)
        cls.client = triton.InferenceServerClient(cls.daemon.address)
        cls.addClassCleanup(cls.client.close)

    def encode(self, *sentences):
        """The inputs of the model."""
        rows = self.tokenizer.encode_batch(sentences)
        return {name: numpy.array([getattr(row, attribute) for row in rows], numpy.int64)
                for name, attribute in (("input_ids", "ids"), ("attention_mask", "attention_mask"),
                                        ("token_type_ids", "type_ids"))}

    def infer(self, *sentences):
        tensors = []
        for name, array in self.encode(*sentences).items():
            tensor = triton.InferInput(name, list(array.shape), "INT64")
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        result = self.client.infer("encoder", tensors)
        return {name: result.as_numpy(name) for name in ("last_hidden_state", "sentence_embedding")}

    def test_metadata(self):
        metadata = self.client.get_model_metadata("encoder", as_json=True)
        self.assertEqual({each["name"]: each["shape"] for each in metadata["inputs"]},
                         dict.fromkeys(self.encode("a"), ["-1", "-1"]))
        self.assertEqual({each["name"]: each["shape"] for each in metadata["outputs"]},
                         {"last_hidden_state": ["-1", "-1", "384"], "sentence_embedding": ["-1", "384"]})

    def test_embeddings_are_those_of_onnx_runtime(self):
        for count in range(1, len(self.SENTENCES) + 1):
            sentences = self.SENTENCES[:count]
            self.compare(sentences)

    def compare(self, sentences):
        inputs = self.encode(*sentences)
        answer = self.infer(*sentences)
        expected = dict(zip(("last_hidden_state", "sentence_embedding"), self.session.run(None, inputs)))
        for name, array in expected.items():
            self.assertEqual(answer[name].shape, array.shape)
            numpy.testing.assert_allclose(answer[name], array, rtol=0, atol=1e-4 * numpy.abs(array).max())
        return inputs["input_ids"].shape[1]

    def test_each_length_has_a_plan(self):
        lengths = set()
        for words in (1, 2, 11, 25, 70):
            for sentence in ("food " * words, "rocket " * words):
                lengths.add(self.compare([sentence]))
        self.assertEqual(max(lengths), self.TOKENS)
        self.assertGreater(len(lengths), 3)
        version = self.daemon.ctl("model", "describe", "encoder", "--json").json["versions"][0]
        plans = {int(plan["sizes"][0]) for plan in version["plans"]}
        self.assertTrue(plans.issuperset(lengths | {8}), plans)
        # Their own weights are the rows of the table of positions.
        self.assertLess(int(version["weight_bytes"]), 100 << 20)
        longest = [[101] + [2005] * self.TOKENS + [102]]
        tensors = []
        for name in self.encode("a"):
            tensors.append(triton.InferInput(name, [1, len(longest[0])], "INT64"))
            tensors[-1].set_data_from_numpy(numpy.array(longest, numpy.int64))
        with self.assertRaises(InferenceServerException) as caught:
            self.client.infer("encoder", tensors)
        self.assertIn("sequence is 50, the model was loaded for 48", caught.exception.message())

    def test_sentences_of_one_meaning_are_near(self):
        embeddings = self.infer(*self.SENTENCES)["sentence_embedding"]
        near = embeddings @ embeddings.T
        self.assertGreater(min(near[0, 1], near[2, 3]), 0.5)
        self.assertLess(near[:2, 2:].max(), 0.3)


if __name__ == "__main__":
    unittest_main.main()
