"""The manifests of deploy/kubernetes: see tests/kubernetes/offline."""

import base64
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path.insert(0, str(HERE.parent))
import kubernetes_validate  # noqa: E402
import unittest_main  # noqa: E402
import yaml  # noqa: E402

MANIFESTS = HERE.parent.parent / "deploy" / "kubernetes"
OLDEST = (1, 28)
WAIT_S = 60


def build(overlay, components):
    """The objects of an overlay with these components."""
    with tempfile.TemporaryDirectory(prefix="residentd-overlay-") as folder:
        def path(*names):
            return os.path.relpath(MANIFESTS.joinpath(*names), os.path.realpath(folder))

        (pathlib.Path(folder) / "kustomization.yaml").write_text(json.dumps({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": [path("overlays", overlay)],
            "components": [path("components", name) for name in components]}))
        built = subprocess.run([os.environ["KUBECTL"], "kustomize", folder],
                               check=True, stdout=subprocess.PIPE, timeout=WAIT_S)
    return list(yaml.safe_load_all(built.stdout))


def volume(folder, files):
    """A volume as the kubelet makes it of a ConfigMap or Secret: files are links into a folder that is
    replaced as a whole, and folders have the mode 2777."""
    generation = folder / "..2026"
    generation.mkdir(parents=True)
    for name, contents in files.items():
        (generation / name).write_bytes(contents)
        (generation / name).chmod(0o440)
        (folder / name).symlink_to("..data/" + name)
    (folder / "..data").symlink_to("..2026")
    for each in (generation, folder):
        each.chmod(0o2777)


def seconds(text):
    number, unit = re.fullmatch(r"([0-9]+)(ms|s|m|h)", text).groups()
    return int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]


def mebibytes(text):
    number, unit = re.fullmatch(r"([0-9]+)(Mi|Gi)", text).groups()
    return int(number) * {"Mi": 1, "Gi": 1024}[unit]


class Manifests:
    """The checks of each overlay."""
    COMPONENTS = ()

    @classmethod
    def setUpClass(cls):
        cls.objects = build(cls.OVERLAY, cls.COMPONENTS)
        cls.kinds = {}
        for item in cls.objects:
            cls.kinds.setdefault(item["kind"], []).append(item)
        cls.stateful, = cls.kinds["StatefulSet"]
        cls.template = cls.stateful["spec"]["template"]
        cls.pod = cls.template["spec"]
        cls.container, = cls.pod["containers"]
        cls.flags = dict(flag[2:].partition("=")[::2] for flag in cls.container["args"])

    def test_kubernetes_accepts_the_objects(self):
        versions = sorted({tuple(int(part) for part in version.split(".")[:2])
                           for version in kubernetes_validate.utils.all_versions()})
        versions = [version for version in versions if version >= OLDEST]
        self.assertGreater(len(versions), 3)
        for version in versions:
            for item in self.objects:
                kubernetes_validate.validate(item, "{}.{}".format(*version), strict=True)

    def test_flags_are_those_of_the_daemon(self):
        self.assertEqual(len(self.flags), len(self.container["args"]), "a flag stands twice")
        shown = subprocess.run([os.environ["RESIDENTD"], "serve", "--help"], check=True,
                               stdout=subprocess.PIPE, timeout=WAIT_S)
        known = set(re.findall(r"^ *--([a-z_0-9]+)\b", shown.stdout.decode(), re.M))
        self.assertEqual(set(self.flags) - known, set())

    def test_a_pod_has_time_to_drain(self):
        self.assertGreaterEqual(self.pod["terminationGracePeriodSeconds"],
                                seconds(self.flags["drain_notice"]) +
                                seconds(self.flags["drain_timeout"]) + 10)

    def test_what_clients_can_make_the_daemon_use_fits_into_the_memory_limit(self):
        staging = 256  # --staging_mib, pinned.
        used = (int(self.flags["max_host_mib"]) + staging +
                int(self.flags["compile_processes"]) * int(self.flags["compile_memory_mib"]))
        if self.flags["devices"] == "cpu":
            used += 1024  # --device_memory_mib.
        self.assertLess(used, mebibytes(self.container["resources"]["limits"]["memory"]) - 1024)

    def test_selectors_and_ports_name_what_the_pods_have(self):
        labels = self.template["metadata"]["labels"].items()
        ports = {port["name"]: port for port in self.container["ports"]}
        for port in ports.values():
            # A server-side apply refuses a port without it.
            self.assertEqual(port["protocol"], "TCP")
        for name, flag in (("grpc", "address"), ("metrics", "metrics_address")):
            self.assertEqual(self.flags[flag], "0.0.0.0:{}".format(ports[name]["containerPort"]))
        services = {service["metadata"]["name"]: service["spec"] for service in self.kinds["Service"]}
        self.assertEqual(set(services), {"residentd", "residentd-all"})
        self.assertIn(self.stateful["spec"]["serviceName"], services)
        self.assertTrue(services["residentd-all"]["publishNotReadyAddresses"])
        self.assertNotIn("publishNotReadyAddresses", services["residentd"])
        for service in services.values():
            self.assertEqual(service["clusterIP"], "None")
            self.assertLessEqual(service["selector"].items(), labels)
            for port in service["ports"]:
                self.assertEqual(port["protocol"], "TCP")
                self.assertEqual(port["port"], ports[port["targetPort"]]["containerPort"])
        for selector in (self.stateful["spec"]["selector"],
                         self.kinds["PodDisruptionBudget"][0]["spec"]["selector"],
                         self.kinds["NetworkPolicy"][0]["spec"]["podSelector"]):
            self.assertLessEqual(selector["matchLabels"].items(), labels)
        for rule in self.kinds["NetworkPolicy"][0]["spec"]["ingress"]:
            self.assertTrue(rule["from"])
            for port in rule["ports"]:
                self.assertIn(port["port"], ports)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            get = self.container[probe]["httpGet"]
            self.assertEqual(get["port"], "metrics")
            self.assertEqual(get["path"], "/readyz" if probe == "readinessProbe" else "/livez")

    def test_each_folder_of_a_flag_is_a_volume(self):
        mounts = {mount["mountPath"]: mount for mount in self.container["volumeMounts"]}
        for flag, value in self.flags.items():
            if value.startswith("/"):
                path = pathlib.PurePath(value)
                self.assertTrue({str(path), str(path.parent)} & set(mounts), flag)
        # The compilers' folder: the root is read-only.
        self.assertIn("/tmp", mounts)
        volumes = {volume["name"] for volume in self.pod["volumes"]} | {"state"}
        self.assertEqual({mount["name"] for mount in mounts.values()}, volumes)

    def test_pods_have_no_privileges(self):
        """What the namespace's level `restricted` asks of a pod."""
        self.assertEqual(self.kinds["Namespace"][0]["metadata"]["labels"]
                         ["pod-security.kubernetes.io/enforce"], "restricted")
        self.assertTrue(self.pod["securityContext"]["runAsNonRoot"])
        self.assertEqual(self.pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault")
        self.assertFalse(self.container["securityContext"]["allowPrivilegeEscalation"])
        self.assertEqual(self.container["securityContext"]["capabilities"], {"drop": ["ALL"]})
        self.assertTrue(self.container["securityContext"]["readOnlyRootFilesystem"])
        self.assertFalse(self.pod["automountServiceAccountToken"])
        for volume in self.pod["volumes"]:
            self.assertTrue(set(volume) <= {"name", "configMap", "secret", "emptyDir"}, volume)


class GpuTest(Manifests, unittest.TestCase):
    OVERLAY = "gpu"

    def test_each_pod_has_a_gpu(self):
        self.assertEqual(self.container["resources"]["limits"]["nvidia.com/gpu"], "1")
        self.assertEqual(self.flags["devices"], "cuda:0")
        self.assertEqual(self.pod["tolerations"][0]["key"], "nvidia.com/gpu")


class CpuTest(Manifests, unittest.TestCase):
    OVERLAY = "cpu"
    COMPONENTS = ("operators",)

    def test_the_daemon_serves_with_the_flags_of_a_pod(self):
        namespaces = ["unshare", "--mount", "--net"]
        if os.geteuid() != 0:
            namespaces.append("--map-root-user")
        if subprocess.run(namespaces + ["true"], capture_output=True).returncode != 0:
            self.skipTest("this machine lets the test make no namespaces")
        maps = {item["metadata"]["name"]: item["data"] for item in self.kinds["ConfigMap"]}
        with tempfile.TemporaryDirectory(prefix="residentd-pod-") as temporary:
            temporary = pathlib.Path(temporary)
            made = subprocess.run([MANIFESTS / "make_certificates", temporary / "certificates"],
                                  check=True, stdout=subprocess.PIPE, timeout=WAIT_S)
            secret = yaml.safe_load(made.stdout)
            kubernetes_validate.validate(secret, "{}.{}".format(*OLDEST), strict=True)
            mounted, = (each["secret"] for each in self.pod["volumes"] if "secret" in each)
            self.assertEqual(mounted["secretName"], secret["metadata"]["name"])
            volume(temporary / "tls", {name: base64.b64decode(data)
                                       for name, data in secret["data"].items()})
            for each in self.pod["volumes"]:
                if "configMap" in each:
                    volume(temporary / each["name"],
                           {name: text.encode() for name, text in maps.pop(each["configMap"]["name"]).items()})
            self.assertEqual(maps, {}, "a ConfigMap that no pod has")
            (temporary / "state").mkdir()
            (temporary / "state").chmod(0o2777)
            run = subprocess.run(
                namespaces + [sys.executable, str(HERE / "pod.py"), str(temporary),
                              json.dumps(self.container)],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=WAIT_S, check=False)
            self.assertEqual(run.returncode, 0, run.stdout.decode())
            self.assertEqual(os.listdir(temporary / "state"), ["state"])
            for warning in ("WARNING", "every user may"):
                self.assertNotIn(warning, run.stdout.decode())


if __name__ == "__main__":
    unittest_main.main()
