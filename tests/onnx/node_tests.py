#!/usr/bin/env python3
"""The node tests of the package `onnx`, as models of a running daemon: see tests/onnx/run.

A test is a model of one node or a few, with inputs and expected outputs. It passes if all outputs are
equal within a relative error of 1e-3 and an absolute one of 1e-5, is refused if the daemon refuses
it with a code, or fails. If the daemon names an input that must be constant, the test is repeated
with that input fixed, as its user would do.

The last line is `N passed, N failed`: the tests that pass, and those that fail or are listed in
passing.txt and do not pass.
"""

import argparse
import collections
import pathlib
import re
import sys
import warnings

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parent), str(HERE.parent / "cli")]

import support  # noqa: E402
from support import residentd  # noqa: E402

import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import onnx  # noqa: E402
from onnx.backend.test.loader import load_model_tests  # noqa: E402

import daemon as daemons  # noqa: E402

RTOL, ATOL = 1e-3, 1e-5
# The reference rounds to these types after each step, which may leave two units of its last place.
ROUNDED_RTOL = {np.dtype(ml_dtypes.bfloat16): 2.0**-6, np.dtype(np.float16): 2.0**-9}
CODE = re.compile(r"^MODEL_E[1-5]\d\d$")
PASSING = HERE / "passing.txt"
MAX_FIXED = 8  # Inputs that are fixed one after the other.
NAME = "test"  # Of the model.


class Refused(Exception):
    """The daemon refused the model; `code` is its first code, `inputs` those that could be fixed."""

    def __init__(self, report):
        super().__init__(report.findings[0].message)
        self.code = report.findings[0].code
        self.inputs = [finding.tensor for finding in report.findings if finding.tensor]


class Wrong(Exception):
    """What makes a test fail."""


def as_array(value):
    """The data of a test: an array, or a tensor of the format."""
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def sent(array):
    """An array as the client takes it: a bool is a u8."""
    array = np.asarray(array, order="C")
    return array.view(np.uint8) if array.dtype == np.bool_ else array


def received(array):
    return array.to_float32() if isinstance(array, residentd.BFloat16Array) else np.asarray(array)


class Runner:

    def __init__(self, client):
        self.client = client
        self.fixed = 0  # Tests with fixed inputs, and those of them that have no others.
        self.constant = 0

    def load(self, model, sizes, fixed_inputs=None, max_batch=0):
        """Loads a model in place of the one before. Returns its version."""
        for other in self.client.models.list():
            self.client.models.remove(other.name)
        try:
            self.client.models.load_onnx(NAME, model.SerializeToString(), sizes=sizes, max_batch=max_batch,
                                         fixed_inputs=fixed_inputs)
        except residentd.GraphRefused as error:
            for finding in error.report.findings:
                if not CODE.match(finding.code) or len(finding.message) < 10:
                    raise Wrong("refused without a code: {}".format(finding)) from None
            raise Refused(error.report) from None
        return self.client.models.describe(NAME).active

    def sizes(self, model, inputs):
        """Sizes of dynamic dimensions: those of the test's data."""
        sizes = {}
        for value, array in zip(model.graph.input, inputs):
            if not value.type.HasField("tensor_type") or not isinstance(array, np.ndarray):
                continue
            for d, dim in enumerate(value.type.tensor_type.shape.dim):
                if not dim.HasField("dim_value") and d < array.ndim:
                    sizes[dim.dim_param or "{}.{}".format(value.name, d)] = array.shape[d]
        return sizes

    def load_fixing(self, model, inputs):
        """Loads, and fixes the inputs that must be constant. Returns the version, and these inputs."""
        arrays = dict(zip((value.name for value in model.graph.input), inputs))
        fixed = {}
        while True:
            free = [v for v in model.graph.input if v.name not in fixed]
            sizes = self.sizes(model, [arrays[v.name] if v in free else None for v in model.graph.input])
            try:
                return self.load(model, sizes, fixed), set(fixed)
            except Refused as refusal:
                names = [name for name in refusal.inputs if name in arrays and name not in fixed]
                if not names or len(fixed) >= MAX_FIXED:
                    raise
                array = arrays[names[0]]
                if not isinstance(array, np.ndarray):
                    raise
                fixed[names[0]] = ",".join(str(number).lower() for number in array.ravel().tolist())

    def run(self, case):
        model = case.model
        for inputs, outputs in case.data_sets:
            inputs = [as_array(value) for value in inputs]
            version, fixed = self.load_fixing(model, inputs)
            values = {value.name: sent(array) for value, array in zip(model.graph.input, inputs)
                      if value.name in version.inputs}
            self.compare(model, self.client.models.run(NAME, values).outputs, outputs)
        self.fixed += bool(fixed)
        self.constant += bool(fixed) and not version.inputs

    def compare(self, model, results, outputs):
        for value, expected in zip(model.graph.output, outputs):
            if value.name not in results:
                raise Wrong("output {} is missing".format(value.name))
            actual = received(results[value.name])
            expected = np.asarray(as_array(expected))
            if actual.shape != expected.shape:
                raise Wrong("output {} has the shape {}, expected {}".format(
                    value.name, actual.shape, expected.shape))
            element = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            if expected.dtype != element:
                raise Wrong("the data of output {} are {}".format(value.name, expected.dtype))
            rtol = ROUNDED_RTOL.get(expected.dtype, RTOL)
            if expected.dtype == ml_dtypes.bfloat16:
                expected = expected.astype(np.float32)
            expected = sent(expected)
            if actual.dtype != expected.dtype:
                raise Wrong("output {} is {}, expected {}".format(value.name, actual.dtype, expected.dtype))
            if expected.dtype.kind == "f":
                actual, expected = actual.astype(np.float64), expected.astype(np.float64)
            try:
                np.testing.assert_allclose(actual, expected, rtol=rtol, atol=ATOL)
            except AssertionError as error:
                raise Wrong("output {}: {}".format(value.name, " ".join(str(error).split())[:300])) from None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--refusals", action="store_true", help="print each refusal")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    cases = sorted(load_model_tests(kind="node"), key=lambda case: case.name)
    if options.names:
        cases = [case for case in cases if any(name in case.name for name in options.names)]
    must_pass = set(PASSING.read_text().split())
    passed, failures, refusals = [], [], collections.defaultdict(list)
    daemon = daemons.Daemon()
    try:
        client = residentd.connect(daemon.address)
        runner = Runner(client)
        for case in cases:
            try:
                runner.run(case)
                passed.append(case.name)
            except Refused as refusal:
                refusals[refusal.code].append(case.name)
                if options.refusals:
                    print("refused: {}: {}: {}".format(case.name, refusal.code, refusal))
                if case.name in must_pass:
                    failures.append((case.name, "it passed before, and is refused: {}".format(refusal)))
            except residentd.TaskFailed as error:
                # The operator refused values, such as a negative index.
                if case.name in must_pass or "INVALID_ARGUMENT" not in repr(error.code):
                    failures.append((case.name, repr(error)))
                else:
                    refusals["INVALID_ARGUMENT"].append(case.name)
            except Exception as error:  # Any other end of a test is a failure.
                failures.append((case.name, "{}: {}".format(type(error).__name__, error)))
        client.close()
    finally:
        daemon.stop()
    for name, reason in failures:
        print("failed: {}: {}".format(name, reason[:600]))
    for code, names in sorted(refusals.items()):
        print("refused with {}: {}".format(code, len(names)))
    print("{} of {} tests pass, {} of them with fixed inputs, of which {} have no others; {} are refused".format(
        len(passed), len(cases), runner.fixed, runner.constant, sum(map(len, refusals.values()))))
    if options.update:
        PASSING.write_text("".join(name + "\n" for name in sorted(must_pass | set(passed))))
    print("{} passed, {} failed".format(len(passed), len(failures)))
    sys.exit(1 if failures or not passed else 0)


if __name__ == "__main__":
    main()
