#!/usr/bin/python3
"""TLS, tokens, and permissions; shared memory where callers have identities."""

import asyncio
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402

sys.path.insert(0, str(support.HERE.parent / "auth"))
import numpy as np  # noqa: E402

import certificates  # noqa: E402
import residentd.aio  # noqa: E402

X = np.ones(1 << 16, np.float32)  # Goes through shared memory.


class Access(support.PackageTest):

    @classmethod
    def setUpClass(cls):
        folder = support.temporary_folder(cls)
        authority = certificates.Authority(folder, "test CA")
        server = authority.issue("server", "DNS:localhost,IP:127.0.0.1")
        cls.client = authority.issue("deployer")
        cls.token = str(folder / "token")
        line = subprocess.run([support.daemons.RESIDENTCTL, "token", "new", "ranking", "--out", cls.token],
                              check=True, capture_output=True, text=True).stdout
        (folder / "tokens").write_text(line.rpartition(":")[2].strip() + "\n")
        (folder / "policy").write_text(json.dumps({"identities": {
            "ranking": {"roles": ["submit"], "operators": {"submit": ["add"]}},
            "deployer": {"roles": ["submit", "install"]}}}))
        for file in folder.iterdir():
            file.chmod(0o600)
        cls.FLAGS = ("--tls_cert=" + server.certificate, "--tls_key=" + server.key,
                     "--tls_client_ca=" + authority.certificate, "--policy=" + str(folder / "policy"),
                     "--token_file=" + str(folder / "tokens"),
                     "--local_address=" + str(folder / "local.sock"))
        cls.OPTIONS = {"tls_ca": authority.certificate, "tls_cert": cls.client.certificate,
                       "tls_key": cls.client.key}
        super().setUpClass()

    def test_a_certificate_is_an_identity(self):
        self.rd.operators.install("f", expr="x + 1", wait="active")
        np.testing.assert_array_equal(self.rd.op("f")(X), X + 1)
        self.rd.operators.remove("f")
        self.refused(residentd.PermissionDenied, "admin", self.rd.operators.audit)

    def test_a_token_takes_precedence(self):
        with self.connect(token_file=self.token) as rd:
            np.testing.assert_array_equal(rd.op("add")(X, X), 2 * X)
            error = self.refused(residentd.PermissionDenied, "ranking", rd.op("mul"), X, X)
            self.assertIsInstance(error, PermissionError)

    def test_shared_memory_of_identities_is_sealed(self):
        out = self.rd.op("add")(X, X)
        self.assertIsNotNone(self.rd._operations.memory.locate(out))

    def test_asyncio(self):
        async def main():
            async with residentd.aio.connect(self.daemon.address, token_file=self.token,
                                             **self.OPTIONS) as rd:
                return await rd.op("add")(X, X)

        np.testing.assert_array_equal(asyncio.run(main()), 2 * X)

    def test_without_a_certificate_of_the_daemons_authority(self):
        with self.assertRaises(ConnectionError):
            residentd.connect(self.daemon.address, tls_ca=self.OPTIONS["tls_ca"], connect_timeout=20)

    def test_files_that_cannot_be_used(self):
        with self.assertRaises(FileNotFoundError):
            self.connect(token_file="/nonexistent")
        self.refused(residentd.InvalidArgument, "is empty", self.connect, token_file="/dev/null")


if __name__ == "__main__":
    support.unittest_main.main()
