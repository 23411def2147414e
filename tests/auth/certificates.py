"""Creates certificates with the openssl command, for tests of TLS in Python.

    ca = Authority(folder, "test CA")
    server = ca.issue("server", "DNS:localhost,IP:127.0.0.1")
    Daemon("--tls_cert=" + server.certificate, "--tls_key=" + server.key)
"""

import collections
import pathlib
import subprocess

# Paths of PEM files.
Issued = collections.namedtuple("Issued", "certificate key")

NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


def _openssl(*words):
    subprocess.run(["openssl", *words], check=True, capture_output=True)


class Authority:
    """Issues certificates; all files are in `folder`."""

    def __init__(self, folder, name="ca"):
        self.folder = pathlib.Path(folder)
        self.name = name
        self.certificate = str(self.folder / (name + ".pem"))
        self.key = str(self.folder / (name + ".key"))
        _openssl("req", "-x509", *NEW_KEY, "-keyout", self.key, "-out", self.certificate, "-days",
                 "1", "-subj", "/CN=" + name, "-addext", "keyUsage=critical,keyCertSign")

    def issue(self, common_name, alternative_names=""):
        """`alternative_names` as in openssl's configuration: "DNS:localhost,IP:127.0.0.1"."""
        base = self.folder / (self.name + "-" + common_name)
        issued = Issued(str(base) + ".pem", str(base) + ".key")
        request, extensions = str(base) + ".csr", str(base) + ".ext"
        pathlib.Path(extensions).write_text(
            "subjectAltName=" + alternative_names + "\n" if alternative_names else
            "basicConstraints=CA:FALSE\n")
        _openssl("req", "-new", *NEW_KEY, "-keyout", issued.key, "-out", request, "-subj",
                 "/CN=" + common_name)
        _openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key,
                 "-CAcreateserial", "-out", issued.certificate, "-days", "1", "-extfile",
                 extensions)
        return issued
