#!/usr/bin/python3
"""The Open Inference Protocol of a daemon whose callers have identities: roles, operators, quotas, and
shared memory.

The last line is `N passed, N failed`.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "cli")]
import grpc  # noqa: E402
import numpy  # noqa: E402

import daemon as daemons  # noqa: E402
import inference_client  # noqa: E402
import unittest_main  # noqa: E402
from inference_client import array, pb, request  # noqa: E402
from inference_test import F32, X, Y, InferenceTest  # noqa: E402

POLICY = {
    "scorer": {"roles": ["submit"], "operators": {"submit": ["add", "rank."]},
               "quotas": {"tasks_in_flight": 4}},
    "deployer": {"roles": ["install"], "operators": {"install": ["rank."]}},
    "oncall": {"roles": ["submit", "install", "admin"]},
    "viewer": {"roles": ["install"], "operators": {"install": []}},
}
DENIED = grpc.StatusCode.PERMISSION_DENIED


class Access(InferenceTest):

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="residentd-access-"))
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        tokens = folder / "tokens"
        lines = []
        cls.identities = {}
        for name in POLICY:
            token = folder / name
            done = subprocess.run([str(daemons.RESIDENTCTL), "token", "new", name, "--out", str(token)],
                                  check=True, capture_output=True, text=True)
            lines.append(done.stdout.rpartition(":")[2].strip())
            cls.identities[name] = (("authorization", "Bearer " + token.read_text().strip()),)
        tokens.write_text("\n".join(lines) + "\n")
        (folder / "policy").write_text(json.dumps({"identities": POLICY}))
        for file in folder.iterdir():
            file.chmod(0o600)
        cls.FLAGS = ("--policy=" + str(folder / "policy"), "--token_file=" + str(tokens),
                     "--oip_unload=true")
        super().setUpClass()

    def infer(self, identity, model, **inputs):
        return self.client.ModelInfer(request(model, inputs), metadata=self.identities[identity])

    def load(self, identity, name, expression="x * 2"):
        message = pb.RepositoryModelLoadRequest(model_name=name)
        message.parameters["config"].string_param = json.dumps({"parameters": {"expression": expression}})
        self.client.RepositoryModelLoad(message, metadata=self.identities[identity])

    def test_the_probes_need_no_credential_and_the_rest_does(self):
        self.assertTrue(self.client.ServerLive().live)
        self.assertTrue(self.client.ServerReady().ready)
        for call in (lambda: self.client.ModelInfer(request("add", {"x": X, "y": Y})),
                     self.client.ServerMetadata, self.client.RepositoryIndex):
            with self.refused(grpc.StatusCode.UNAUTHENTICATED):
                call()

    def test_an_identity_runs_its_own_operators(self):
        numpy.testing.assert_array_equal(array(self.infer("scorer", "add", x=X, y=Y), "out"), X + Y)
        with self.refused(DENIED, "'mul'", "scorer"):
            self.infer("scorer", "mul", x=X, y=Y)
        with self.refused(DENIED, "submit"):
            self.infer("deployer", "add", x=X, y=Y)

    def test_a_refusal_does_not_end_a_stream(self):
        requests = [request(model, {"x": X, "y": Y}, id=model) for model in ("add", "mul", "add:batch")]
        requests[2].inputs[0].shape[:] = requests[2].inputs[1].shape[:] = [3]
        answers = {answer.infer_response.id: answer for answer in self.client.ModelStreamInfer(
            iter(requests), metadata=self.identities["scorer"])}
        self.assertEqual(len(answers), 3)
        self.assertIn("'mul'", answers["mul"].error_message)
        self.assertIn("Fix: ", answers["mul"].error_message)
        for id in ("add", "add:batch"):
            numpy.testing.assert_array_equal(array(answers[id].infer_response, "out"), X + Y)

    def test_the_quota_of_tasks_is_that_of_the_native_api(self):
        four, five = numpy.ones((4, 2), F32), numpy.ones((5, 2), F32)
        for _ in range(3):  # What has ended is not counted.
            self.infer("scorer", "add:batch", x=four, y=four)
            with self.refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "tasks_in_flight"):
                self.infer("scorer", "add:batch", x=five, y=five)

    def test_models_are_loaded_and_unloaded_by_those_who_may(self):
        for identity in ("scorer", "viewer"):
            with self.refused(DENIED):
                self.load(identity, "rank.twice")
        with self.refused(DENIED, "may not change operator 'other'"):
            self.load("deployer", "other")
        self.load("deployer", "rank.twice")
        numpy.testing.assert_array_equal(array(self.infer("scorer", "rank.twice", x=X), "out"), 2 * X)
        for identity in ("scorer", "deployer"):
            with self.refused(DENIED, "admin"):
                self.client.RepositoryModelUnload(model_name="rank.twice",
                                                  metadata=self.identities[identity])
        self.client.RepositoryModelUnload(model_name="rank.twice", metadata=self.identities["oncall"])
        self.assertFalse(self.client.ModelReady(name="rank.twice",
                                                metadata=self.identities["viewer"]).ready)

    def test_regions_are_refused_because_names_and_handles_prove_nothing(self):
        for identity in ("scorer", "oncall"):
            metadata = self.identities[identity]
            with self.refused(grpc.StatusCode.FAILED_PRECONDITION, "identities", "a name"):
                self.client.SystemSharedMemoryRegister(name="r", key="/x", byte_size=64,
                                                       metadata=metadata)
            with self.refused(grpc.StatusCode.FAILED_PRECONDITION, "identities", "a handle"):
                self.client.CudaSharedMemoryRegister(name="r", raw_handle=bytes(64), byte_size=64,
                                                     metadata=metadata)
        with self.refused(DENIED, "submit"):
            self.client.SystemSharedMemoryRegister(name="r", key="/x", byte_size=64,
                                                   metadata=self.identities["viewer"])

    def test_settings_are_for_administrators(self):
        for call in (self.client.TraceSetting, self.client.LogSettings):
            call(metadata=self.identities["oncall"])
            with self.refused(DENIED, "admin"):
                call(metadata=self.identities["scorer"])


if __name__ == "__main__":
    unittest_main.main()
