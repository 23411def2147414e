#!/usr/bin/env python3
"""Whole models on a running daemon, compared with ONNX Runtime on the CPU: see tests/onnx/run.

Three kinds: perceptrons and a click model that are written here as exporters write them, pipelines of
scikit-learn, and files that packages of PyPI contain. Each model is run for 1, 2, 7 and 64 rows: alone, and in
requests of several threads at the same time, until the daemon has combined some. A result is right if it
differs from that of ONNX Runtime by at most 1e-4 of the largest number that the output has in the test; integers
must be equal. A combined request must have the bits that it has alone on the CPU engine, and agree within 1e-5 on
others.

The last line is `N passed, N failed`.
"""

import concurrent.futures
import importlib.util
import os
import pathlib
import sys
import unittest
import warnings

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE)]

import model_tests  # noqa: E402  Sets the paths of the other modules.
from node_tests import CODE, NAME, sent  # noqa: E402
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
import skl2onnx  # noqa: E402
from onnx import TensorProto  # noqa: E402
from sklearn import (cluster, compose, decomposition, ensemble, impute, linear_model, naive_bayes,  # noqa: E402
                     neural_network, pipeline, preprocessing)

import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402

BATCHES = (1, 2, 7, 64)
TOLERANCE, COMBINED_TOLERANCE = 1e-4, 1e-5  # Of the largest number of an output.
THREADS = 16
MAX_ROUNDS = 100  # Of requests of all threads, until some are combined.
CPU = os.environ.get("RESIDENT_TEST_DEVICES", "cpu") == "cpu"


def perceptron(widths, activation, end=None):
    m = model_tests.Maker(17)
    x = m.input("x", ["batch", widths[0]])
    for i, (rows, columns) in enumerate(zip(widths, widths[1:])):
        x = m.node("Gemm", x, m.weight(columns, rows, scale=rows**-0.5), m.weight(columns, scale=0.1), transB=1)
        if i + 2 < len(widths):
            x = m.node(activation, x)
    m.output(m.node(end, x) if end else x)
    return m.model()


def policy():
    """Observations that are normalized and clipped, two hidden layers, and the action's mean and deviation."""
    m = model_tests.Maker(17)
    x = m.input("observation", ["batch", 27])
    x = m.node("Div", m.node("Sub", x, m.weight(27)), m.constant(np.linspace(0.5, 2, 27, dtype=np.float32)))
    x = m.node("Clip", x, m.constant(np.float32(-5)), m.constant(np.float32(5)))
    for rows in (27, 256):
        x = m.node("Tanh", m.node("Gemm", x, m.weight(256, rows, scale=rows**-0.5), m.weight(256), transB=1))
    m.output(m.node("Tanh", m.node("Gemm", x, m.weight(8, 256, scale=0.06), m.weight(8), transB=1)))
    m.output(m.node("Exp", m.node("Clip", m.node("Gemm", x, m.weight(8, 256, scale=0.06), m.weight(8), transB=1),
                                  m.constant(np.float32(-20)), m.constant(np.float32(2)))))
    return m.model()


CATEGORIES, ROWS_OF_TABLE, WIDTH = 8, 1000, 16


def click_model():
    """As DLRM: a perceptron for the numbers, tables for the categories, and all products of two of these vectors."""
    m = model_tests.Maker(17)
    dense = m.input("dense", ["batch", 13])
    ids = m.input("categories", ["batch", CATEGORIES], TensorProto.INT64)
    x = m.node("Log", m.node("Add", m.node("Relu", dense), m.constant(np.float32(1))))
    for rows, columns in ((13, 64), (64, WIDTH)):
        x = m.node("Relu", m.node("Gemm", x, m.weight(columns, rows, scale=rows**-0.5), m.weight(columns), transB=1))
    vectors = [m.node("Unsqueeze", x, m.integers(1))]
    for i in range(CATEGORIES):
        column = m.node("Gather", ids, m.constant(np.int64(i)), axis=1)
        rows = m.node("Gather", m.weight(ROWS_OF_TABLE, WIDTH), column)
        vectors.append(m.node("Unsqueeze", rows, m.integers(1)))
    together = m.node("Concat", *vectors, axis=1)
    products = m.node("MatMul", together, m.node("Transpose", together, perm=[0, 2, 1]))
    # Each pair once: the elements below the diagonal.
    count = CATEGORIES + 1
    pairs = [i * count + j for i in range(count) for j in range(i)]
    flat = m.node("Reshape", products, m.integers(0, count * count))
    x = m.node("Concat", x, m.node("Gather", flat, m.integers(*pairs), axis=1), axis=1)
    for rows, columns in ((WIDTH + len(pairs), 64), (64, 32)):
        x = m.node("Relu", m.node("Gemm", x, m.weight(columns, rows, scale=rows**-0.5), m.weight(columns), transB=1))
    m.output(m.node("Sigmoid", m.node("Gemm", x, m.weight(1, 32), m.weight(1), transB=1)))
    return m.model()


FEATURES = 12


def train(*steps, classes=0, strings=False, columns=FEATURES):
    """A pipeline, trained with random numbers, as a file. `classes`: 0: it computes a number."""
    random = np.random.default_rng(5)
    x = random.standard_normal((300, columns)).astype(np.float32)
    y = x @ random.standard_normal(columns)
    options = None
    if classes:
        y = np.digitize(y, np.quantile(y, np.linspace(0, 1, classes + 1)[1:-1]))
        y = np.array(["one", "two", "three"])[y] if strings else y * 10
        options = {"zipmap": False}
    model = pipeline.make_pipeline(*steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Few iterations do not converge.
        model.fit(x, y)
        return skl2onnx.to_onnx(model, x[:1], options=options)


def package_file(package, *path):
    """A file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    return pathlib.Path(spec.submodule_search_locations[0]).joinpath(*path)


def dynamic_rows(model):
    """The model with any number of rows in place of one, as its author would export it."""
    for value in list(model.graph.input) + list(model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del model.graph.value_info[:]
    return model


def random_inputs(model, sizes, random):
    """Values for the inputs. `sizes`: by the names of dimensions; "batch" is also that of those without one."""
    inputs = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value or sizes[dim.dim_param or "batch"] for dim in tensor.shape.dim]
        if tensor.elem_type == TensorProto.INT64:
            inputs[value.name] = random.integers(0, 30, shape)
        elif tensor.elem_type == TensorProto.BOOL:
            inputs[value.name] = np.arange(shape[1]) < random.integers(1, shape[1] + 1, [shape[0], 1])
        else:
            inputs[value.name] = random.standard_normal(shape).astype(np.float32)
    return inputs


class Loaded:
    """A model in ONNX Runtime and in the daemon. `file`: the model's, with its external data beside it."""

    def __init__(self, test, model, file=None, max_sizes=None, sizes=None, instances=1):
        self.test, self.model = test, model
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3  # It warns of shapes that the file states wrongly.
        contents = {} if file is None else {each.name: each.read_bytes() for each in file.parent.iterdir()
                                            if each.name.startswith(file.name) and each != file}
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString() if file is None else str(file), options)
        test.client.models.load_onnx(NAME, model.SerializeToString(), data=contents, max_sizes=max_sizes,
                                     sizes=sizes, instances=instances)
        test.addCleanup(test.client.models.remove, NAME)
        self.largest = {}  # Of each output, in all results so far.

    @property
    def version(self):
        return self.test.client.models.describe(NAME).active

    def expected(self, inputs):
        """By the names of the outputs."""
        outputs = dict(zip((o.name for o in self.session.get_outputs()), self.session.run(None, inputs)))
        for name, array in outputs.items():
            self.largest[name] = max(self.largest.get(name, 0), float(np.abs(array).max()))
        return outputs

    def run(self, inputs):
        """The outputs in the model's order."""
        outputs = self.test.client.models.run(NAME, {k: sent(v) for k, v in inputs.items()}).outputs
        if len(outputs) == 1:
            return list(outputs.values())  # The daemon shortens long names.
        return [outputs[output.name] for output in self.model.graph.output]

    def check(self, inputs):
        """Returns the result."""
        results = self.run(inputs)
        self.compare(results, self.expected(inputs), TOLERANCE)
        return results

    def compare(self, results, expected, tolerance):
        """`tolerance`: a part of the largest number of the output."""
        self.test.assertEqual(len(results), len(expected))
        for result, (name, array) in zip(results, expected.items()):
            self.test.assertEqual(result.shape, array.shape)
            if array.dtype.kind != "f":
                np.testing.assert_array_equal(result, sent(array))
                continue
            self.test.assertTrue(np.isfinite(array).all(), "the reference is not finite")
            np.testing.assert_allclose(result, array, rtol=0, atol=tolerance * self.largest[name])


class Models(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.daemon = daemons.Daemon()
        cls.addClassCleanup(cls.daemon.stop)
        cls.client = residentd.connect(cls.daemon.address)
        cls.addClassCleanup(cls.client.close)

    def check_alone(self, loaded, batches=BATCHES, **sizes):
        random = np.random.default_rng(1)
        requests = [random_inputs(loaded.model, dict(sizes, batch=batch), random) for batch in batches]
        # The largest numbers of all of them: one row may have a probability near 0 only.
        for inputs in requests:
            loaded.expected(inputs)
        for inputs in requests:
            loaded.check(inputs)

    def check_combined(self, loaded, **sizes):
        """Requests of several threads, until some of them were executed together."""
        self.assertEqual(loaded.version.max_batch, 64, loaded.version.not_batched)
        random = np.random.default_rng(2)
        requests = [random_inputs(loaded.model, dict(sizes, batch=1 + i % 5), random) for i in range(THREADS)]
        alone = [loaded.check(inputs) for inputs in requests]
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            for _ in range(MAX_ROUNDS):
                for results, single in zip(pool.map(loaded.run, requests), alone):
                    loaded.compare(results, dict(zip(loaded.largest, single)), 0 if CPU else COMBINED_TOLERANCE)
                version = loaded.version
                if version.executions < version.requests:
                    return
        self.fail("no requests were combined")

    def check(self, model):
        loaded = Loaded(self, model)
        self.check_alone(loaded)
        self.check_combined(loaded)

    def refusal(self, model, **options):
        """The codes with which a model is refused."""
        with self.assertRaises(residentd.GraphRefused) as caught:
            self.client.models.load_onnx(NAME, model.SerializeToString(), **options)
        findings = caught.exception.report.findings
        for finding in findings:
            self.assertRegex(finding.code, CODE)
        return {finding.code for finding in findings}


class Written(Models):

    def test_perceptron(self):
        self.check(perceptron((512,) * 5, "Relu"))

    def test_perceptron_with_gelu_of_two_nodes(self):
        self.check(perceptron((40, 100, 3), "Sigmoid", "Softmax"))

    def test_policy(self):
        self.check(policy())

    def test_click_model(self):
        self.check(click_model())

    def test_a_category_that_is_not_in_its_table_is_refused(self):
        loaded = Loaded(self, click_model())
        inputs = random_inputs(loaded.model, {"batch": 3}, np.random.default_rng(1))
        inputs["categories"][1, 2] = ROWS_OF_TABLE
        with self.assertRaises(residentd.TaskFailed):
            loaded.run(inputs)
        self.check_alone(loaded)

    def test_a_result_that_differs_is_seen(self):
        """The comparison itself: a model beside the results of another one fails."""
        loaded = Loaded(self, perceptron((9, 8, 3), "Relu"))
        inputs = random_inputs(loaded.model, {"batch": 2}, np.random.default_rng(1))
        wrong = {name: array * np.float32(1 + 4 * TOLERANCE) for name, array in loaded.expected(inputs).items()}
        results = loaded.check(inputs)
        with self.assertRaises(AssertionError):
            loaded.compare(results, wrong, TOLERANCE)


class ScikitLearn(Models):

    def test_logistic_regression_of_two_classes(self):
        self.check(train(preprocessing.StandardScaler(), linear_model.LogisticRegression(), classes=2))

    def test_logistic_regression_of_three_classes(self):
        self.check(train(preprocessing.StandardScaler(), linear_model.LogisticRegression(), classes=3))

    def test_perceptron_of_two_classes(self):
        self.check(train(preprocessing.StandardScaler(), classes=2,
                         *[neural_network.MLPClassifier((64, 32), max_iter=30, random_state=1)]))

    def test_perceptron_of_three_classes(self):
        self.check(train(preprocessing.StandardScaler(), classes=3,
                         *[neural_network.MLPClassifier((256, 256, 256), max_iter=5, random_state=1)]))

    def test_perceptron_for_a_number(self):
        self.check(train(preprocessing.MinMaxScaler(), neural_network.MLPRegressor(
            hidden_layer_sizes=(64,), activation="tanh", max_iter=30, random_state=1)))

    def test_regression_of_imputed_features(self):
        self.check(train(impute.SimpleImputer(), preprocessing.StandardScaler(), linear_model.Ridge()))

    def test_values_that_are_missing_are_imputed(self):
        loaded = Loaded(self, train(impute.SimpleImputer(), linear_model.Ridge()))
        inputs = random_inputs(loaded.model, {"batch": 7}, np.random.default_rng(1))
        next(iter(inputs.values()))[2:5, 3] = np.nan
        loaded.check(inputs)

    def test_regression_of_main_components(self):
        self.check(train(preprocessing.StandardScaler(), decomposition.PCA(4), linear_model.LinearRegression()))

    def test_normalized_rows(self):
        for norm in ("l1", "l2", "max"):
            with self.subTest(norm=norm):
                loaded = Loaded(self, train(preprocessing.Normalizer(norm), linear_model.Ridge()))
                self.check_alone(loaded)
                self.doCleanups()

    def test_features_above_a_threshold(self):
        self.check(train(preprocessing.Binarizer(threshold=0.1), linear_model.Lasso()))

    def test_columns_with_scalers_of_their_own(self):
        columns = compose.make_column_transformer((preprocessing.StandardScaler(), [0, 1, 7]),
                                                  (preprocessing.MinMaxScaler(), [4, 5]))
        self.check(train(columns, linear_model.LogisticRegression(), classes=3))

    def test_many_columns_in_another_order(self):
        order = [11, 3, 0, 7, 1, 9, 10, 2, 8, 5]
        columns = compose.make_column_transformer((preprocessing.StandardScaler(), order))
        self.check(train(columns, linear_model.Ridge()))

    def test_gradient_descent(self):
        self.check(train(preprocessing.StandardScaler(),
                         linear_model.SGDClassifier(loss="log_loss", random_state=1), classes=3))

    def test_nearest_means(self):
        self.check(train(preprocessing.StandardScaler(), cluster.KMeans(3, n_init=1, random_state=1)))

    def test_bayes(self):
        """Its rows are a second dimension in between, so that their number must be given."""
        model = train(naive_bayes.GaussianNB(), classes=3)
        for batch in BATCHES:
            self.check_alone(Loaded(self, model, sizes={model.graph.input[0].name + ".0": batch}), batches=(batch,))
            self.doCleanups()

    def test_what_is_not_supported_is_refused_with_a_code(self):
        logistic = linear_model.LogisticRegression()
        self.assertEqual(self.refusal(train(logistic, classes=3, strings=True)), {"MODEL_E201"})
        trees = train(ensemble.RandomForestClassifier(5, random_state=1), classes=3)
        self.assertEqual(self.refusal(trees), {"MODEL_E301"})
        self.assertEqual(self.refusal(train(ensemble.GradientBoostingRegressor(n_estimators=5))), {"MODEL_E301"})
        x = np.zeros((4, 3), np.float32)
        maps = skl2onnx.to_onnx(linear_model.LogisticRegression().fit(np.eye(4, 3), [0, 1, 0, 1]), x)
        self.assertIn("MODEL_E202", self.refusal(maps))


@unittest.skipUnless(importlib.util.find_spec("openwakeword"), "the package could not be downloaded")
class WakeWords(Models):
    """Heads for phrases, for one window of 16 to 34 vectors as their files have it, and for any number."""

    def load(self, name):
        return onnx.load(package_file("openwakeword", "resources", "models", name + "_v0.1.onnx"))

    def check_head(self, name):
        self.check_alone(Loaded(self, self.load(name)), batches=(1,) * 20)
        self.doCleanups()
        self.check(dynamic_rows(self.load(name)))

    def test_alexa(self):
        self.check_head("alexa")

    def test_timer(self):
        self.check_head("timer")

    def test_weather(self):
        self.check_head("weather")

    def test_hey_marvin(self):
        self.check_head("hey_marvin")

    def test_hey_jarvis(self):
        """It runs a second network only if the first one hears the phrase: here both, and a selection."""
        # The first one hears it in about half of these windows.
        self.check_alone(Loaded(self, self.load("hey_jarvis")), batches=(1,) * 20)


@unittest.skipUnless(importlib.util.find_spec("khmersm"), "the package could not be downloaded")
class Segmenter(Models):
    """An encoder of a sentence of any length, with its weights in a file of their own."""

    def test_sentences_of_each_length(self):
        path = package_file("khmersm", "model.onnx")
        loaded = Loaded(self, onnx.load(path, load_external_data=False), file=path, max_sizes={"seq": 64},
                        sizes={"batch": 1})
        for seq in (1, 2, 7, 33, 64):
            self.check_alone(loaded, batches=(1,), seq=seq)


@unittest.skipUnless(importlib.util.find_spec("arabic_name_romanizer"), "the package could not be downloaded")
class Romanizer(Models):
    """The step of a decoder with attention and GRU cells of single nodes; each length of the name is a plan."""

    def test_steps_of_names(self):
        model = onnx.load(package_file("arabic_name_romanizer", "resources", "decoder.onnx"))
        loaded = Loaded(self, model, max_sizes={"src_len": 20, "tgt_len": 20})
        for source, target in ((1, 1), (5, 3), (20, 20)):
            self.check_alone(loaded, src_len=source, tgt_len=target)


if __name__ == "__main__":
    unittest_main.main()
