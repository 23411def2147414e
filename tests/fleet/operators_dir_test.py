#!/usr/bin/python3
"""The flag --operators_dir: real daemons that apply the set in a folder before they are ready, follow its
changes, refuse bad ones, show what others changed, and are killed meanwhile.

Most operators are FLUX programs, which need no compiler. $RESIDENT_FLEET_KILLS: how often a daemon is killed at
a random time; $RESIDENT_FLEET_SWAPS: how many generations of the folder follow each other.

The last line is `N passed, N failed`.
"""

import json
import os
import pathlib
import random
import re
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
from fleet import WAIT_S, FleetTest, page  # noqa: E402
from support import daemons, residentd, unittest_main  # noqa: E402

KILLS = int(os.environ.get("RESIDENT_FLEET_KILLS", "6"))
SWAPS = int(os.environ.get("RESIDENT_FLEET_SWAPS", "6"))
QUICK = ("--min_tasks=0", "--bake=0s", "--wave_bake=0s")
APPLIED, REFUSED = 0, 4


def program(value):
    return "MOVI R0, {}\nMOVI R1, {}\nHALT\n".format(*divmod(value, 100))


def files(*operators, **keys):
    """The files of a set whose operators are (name, value) of programs, or text of an entry."""
    contents = {}
    text = "version: 1\nset: {}\n".format(keys.pop("set", "ranking"))
    text += "".join("{}: {}\n".format(key, value) for key, value in keys.items()) + "operators:\n"
    for operator in operators:
        if not isinstance(operator, str):
            source = "{}-{}.s".format(*operator)
            contents[source] = program(operator[1])
            operator = "{{name: {}, flux: {}}}".format(operator[0], source)
        text += "- " + operator + "\n"
    contents["operators.yaml"] = text
    return contents


class Folder:
    """A volume as the kubelet makes it of a ConfigMap: files are links into a folder that is replaced as a
    whole, by renaming the link `..data`."""

    def __init__(self, path, contents):
        self.path = path
        self.number = 0
        path.mkdir()
        self.set(contents)

    def set(self, contents):
        self.number += 1
        generation = self.path / "..{}".format(self.number)
        generation.mkdir()
        for name, text in contents.items():
            if isinstance(text, pathlib.Path):
                (generation / name).symlink_to(text)
            elif text is not None:
                (generation / name).write_text(text)
        link = self.path / "..data"
        old = link.resolve() if link.is_symlink() else None
        fresh = self.path / "..data_tmp"
        fresh.symlink_to(generation.name)
        fresh.rename(link)
        for name in contents:
            if not (self.path / name).is_symlink():
                (self.path / name).symlink_to("..data/" + name)
        for each in self.path.iterdir():
            if each.is_symlink() and not each.exists():
                each.unlink()
        if old is not None:
            shutil.rmtree(old)


class OperatorsDirTest(FleetTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="residentd-operators-dir-")
        self.addCleanup(folder.cleanup)
        self.temporary = pathlib.Path(folder.name)
        self.hashes = {}

    def folder(self, *operators, **keys):
        self.operators = Folder(self.temporary / "operators", files(*operators, **keys))
        return self.operators

    def start(self, *flags, **options):
        self.daemon = self.node("--flux_native=off", "--operators_dir=" + str(self.temporary / "operators"), *flags,
                                **options)
        return self.daemon

    def restart(self, *flags):
        self.daemon.process.kill()
        self.daemon.process.wait()
        return self.start(*flags)

    def readyz(self):
        """(status, text)."""
        try:
            return 200, page(self.daemon, "readyz")
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    def ready(self):
        return self.readyz()[0] == 200

    def await_ready(self):
        self.wait_for("the daemon is ready", self.ready)
        health = self.daemon.ctl("health")
        self.assertEqual((health.code, health.out), (0, "SERVING\n"))

    def status(self):
        return self.daemon.ctl("status", "--json").json["operators_dir"]

    def await_state(self, state, **fields):
        """Waits until the folder has this state, and other fields of the status these values."""
        self.wait_for("{} {}".format(state, fields), lambda: self.has_state(state, **fields))

    def has_state(self, state, **fields):
        status = self.status()
        return status["state"] == state and all(status[name] == value for name, value in fields.items())

    def served(self):
        """Content hashes of what serves, by name."""
        summary = self.daemon.ctl("ops", "summary", "--json").json
        return {operator["name"]: version["content_hash"] for operator in summary["operators"]
                for version in operator["versions"] if version["state"] == "active"}

    def results(self, *names):
        """The registers in which the programs end."""
        out = []
        for name in names:
            done = self.daemon.ctl("flux", "run", "--operator=" + name)
            self.assertEqual(done.code, 0, done)
            out.append(re.findall(r"^R\d+ .*$", done.out, re.M))
        return out

    def set_file(self, name, *operators, **keys):
        """A set for `residentctl apply`."""
        folder = self.temporary / name
        folder.mkdir(exist_ok=True)
        for file, text in files(*operators, **keys).items():
            (folder / file).write_text(text)
        return folder / "operators.yaml"

    def apply(self, path, *flags, code=APPLIED):
        done = daemons.ctl("apply", path, "--targets=ipv4:" + self.daemon.address, *QUICK, *flags)
        self.assertEqual(done.code, code, done)
        return done

    def diff(self, contents):
        """Whether the daemon serves exactly this set."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.temporary))
        for file, text in contents.items():
            (folder / file).write_text(text)
        return daemons.ctl("diff", folder / "operators.yaml", "--targets=ipv4:" + self.daemon.address).code

    def metrics(self):
        text = page(self.daemon, "metrics")
        states = dict(re.findall(r'^resident_operators_dir_state\{state="(\w+)"\} (\d)$', text, re.M))
        drift, = re.findall(r"^resident_operators_drift (\d)$", text, re.M)
        return [state for state, value in states.items() if value == "1"], drift == "1"

    def log(self):
        return self.daemon.log.read_text()

    def events(self, name, daemon=None):
        return (daemon or self.daemon).ctl("ops", "audit", name, "--json").json["events"]

    def test_the_set_is_applied_before_the_daemon_is_ready(self):
        source = """// signature: x: in f32[*S], out: out f32[*S]
#include "kernels/sdk/operator.h"
RESIDENT_OPERATOR(twice_it)(resident::Block& block, const resident::Args& args) {
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  block.for_each(block.share(x.size()), [&](resident::i64 i) { out[i] = FACTOR * x[i]; });
}
"""
        contents = files("{name: half, expr: x * 0.5}", ("c", 3),
                         "{name: twice.it, file: twice.cc, include: [factor.h], examples: [twice.json]}",
                         release="r-1")
        contents.update({"twice.cc": '#include "factor.h"\n' + source, "factor.h": "#define FACTOR 2\n",
                         "twice.json": '{"inputs": {"x": [1, 2]}, "outputs": {"out": [2, 4]}}'})
        Folder(self.temporary / "operators", contents)
        daemon = self.start()
        # It compiles, so that it is not ready yet, and says why. Calls are answered meanwhile.
        code, text = self.readyz()
        if code != 200:
            self.assertEqual(code, 503)
            self.assertIn("--operators_dir", text)
        self.assertEqual(daemon.ctl("run", "add", "x=1", "y=2").code, 0)
        self.await_ready()
        self.assertEqual(self.diff(contents), 0)
        ran = daemon.ctl("run", "twice.it", "x=1,2", "--op_label=r-1")
        self.assertIn("2 4", ran.out, ran)
        status = self.status()
        self.assertEqual((status["state"], status["set"], status["release"], status["drift"], status["missing"]),
                         ("applied", "ranking", "r-1", False, []))
        self.assertEqual(self.metrics(), (["applied"], False))
        # The daemon itself is the installer; the plan and the set are those of the folder.
        self.assertEqual([(event["kind"], event["actor"], event["plan"], event["set"]) for event in self.events("c")],
                         [(kind, "residentd", status["plan"], "ranking") for kind in ("activated", "installed")])
        shown = daemons.ctl("status", "--targets=ipv4:" + daemon.address)
        self.assertRegex(shown.out, r"(?m)^{}  serving .* ranking@r-1 +applied ".format(re.escape(daemon.address)))
        self.assertIn("operators ranking@r-1, applied\n", daemon.ctl("status").out)

    def test_a_changed_folder_is_followed(self):
        folder = self.folder(("a", 1), ("b", 1))
        self.start()
        self.await_ready()
        before = self.served()
        first = self.results("a", "b")
        folder.set(files(("a", 2), ("b", 1), ("c", 1)))
        self.wait_for("the new set", lambda: set(self.served()) == {"a", "b", "c"})
        self.await_state("applied")
        self.assertNotEqual(self.results("a"), first[:1])
        self.assertEqual(self.served()["b"], before["b"])
        # What is not listed any more stays, unless the set prunes.
        folder.set(files(("a", 2), ("b", 1)))
        folder.set(files(("a", 2), release="x"))
        self.await_state("applied", release="x")
        self.assertEqual(set(self.served()), {"a", "b", "c"})
        folder.set(files(("a", 2), prune="true"))
        self.wait_for("b and c are removed", lambda: set(self.served()) == {"a"})
        self.await_state("applied")
        self.assertEqual(self.metrics(), (["applied"], False))

    def test_a_plain_folder_is_followed_too(self):
        folder = self.temporary / "operators"
        folder.mkdir()
        for name, text in files(("a", 1)).items():
            (folder / name).write_text(text)
        self.start()
        self.await_ready()
        first = self.results("a")
        fresh = folder / "fresh"
        fresh.write_text(program(777))
        fresh.rename(folder / "a-1.s")
        self.wait_for("the new program", lambda: self.results("a") != first)
        # The folder itself is replaced.
        other = self.temporary / "other"
        shutil.copytree(folder, other)
        (other / "a-1.s").write_text(program(778))
        second = self.results("a")
        folder.rename(self.temporary / "old")
        other.rename(folder)
        self.wait_for("the new folder", lambda: self.results("a") not in (first, second))

    def test_a_bad_folder_changes_nothing(self):
        folder = self.folder(("a", 1), ("b", 1))
        self.start()
        self.await_ready()
        before = self.served()
        secret = self.temporary / "secret.s"
        secret.write_text(program(9))
        bad = {
            "not YAML": {"operators.yaml": "version: [1\n"},
            "unknown key 'exp'": files("{name: a, exp: x}"),
            "cannot read": files(("a", 2)) | {"a-2.s": None},
            "leads out of": files(("a", 2)) | {"a-2.s": secret},
            "it belongs to set ranking": files(("a", 2), set="other"),
        }
        for text, contents in bad.items():
            with self.subTest(text=text):
                folder.set(contents)
                self.wait_for(text, lambda: text in self.status()["error"])
                self.assertEqual(self.status()["state"], "failed")
                self.assertEqual(self.served(), before)
                self.assertTrue(self.ready(), "a daemon that was ready stays ready")
                self.assertEqual(self.metrics()[0], ["failed"])
                self.assertIn(text, self.log())
        # One of two versions is refused: neither is activated.
        folder.set(files(("a", 2), "{name: rank.bad, flux: bad.s, examples: [bad.json]}") |
                   {"bad.s": program(1), "bad.json": "{"})
        self.wait_for("the refusal", lambda: "rank.bad: " in self.status()["error"])
        self.assertEqual(self.status()["missing"], ["a", "rank.bad"])
        self.assertEqual(self.served(), before)
        self.assertEqual(self.status()["drift"], False)
        # The corrected folder is applied; the one before it, too.
        folder.set(files(("a", 2), ("b", 1)))
        self.wait_for("the corrected set", lambda: self.served()["a"] != before["a"])
        self.await_state("applied", error="")
        folder.set(files(("a", 1), ("b", 1)))
        self.wait_for("the first set", lambda: self.served() == before)

    def test_an_operator_that_fails_its_validation(self):
        contents = files("{name: twice, file: twice.cc, examples: [twice.json]}", ("c", 3))
        contents["twice.cc"] = """// signature: x: in f32[*S], out: out f32[*S]
#include "kernels/sdk/operator.h"
RESIDENT_OPERATOR(twice)(resident::Block& block, const resident::Args& args) {
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  block.for_each(block.share(x.size()), [&](resident::i64 i) { out[i] = 3 * x[i]; });
}
"""
        contents["twice.json"] = '{"inputs": {"x": [1, 2]}, "outputs": {"out": [2, 4]}}'
        folder = Folder(self.temporary / "operators", contents)
        daemon = self.start()
        self.await_state("failed")
        self.assertIn("twice: ", self.status()["error"])
        self.assertIn("expects", self.status()["error"])
        self.assertEqual(self.served(), {})
        code, text = self.readyz()
        self.assertEqual(code, 503)
        self.assertIn("operator twice of set ranking is not applied yet\n", text)
        self.assertIn("operator c of set ranking is not applied yet\n", text)
        self.assertEqual(daemon.ctl("health").out, "NOT_SERVING\n")
        # It is not compiled again and again.
        attempts = [event["kind"] for event in self.events("twice")]
        self.wait_for("a further attempt", lambda: self.log().count("was not applied") >= 1)
        self.assertEqual(attempts, ["rejected"])
        # Calls are answered, and a roll-out of the set repairs the daemon.
        self.assertEqual(daemon.ctl("run", "add", "x=1", "y=2").code, 0)
        self.apply(self.set_file("repair", ("c", 3)))
        self.await_ready()
        status = self.status()
        self.assertEqual((status["state"], status["drift"], status["error"]), ("applied", False, ""))
        self.assertNotEqual(status["superseded_by"], "")
        # And so does a folder that was corrected.
        contents["twice.json"] = '{"inputs": {"x": [1, 2]}, "outputs": {"out": [3, 6]}}'
        folder.set(contents)
        self.wait_for("the corrected set", lambda: "twice" in self.served())
        self.await_state("applied", superseded_by="")

    def test_a_daemon_with_a_folder_that_cannot_be_read_waits_for_it(self):
        folder = self.temporary / "operators"
        with self.assertRaisesRegex(RuntimeError, "--operators_dir=.*Fix: give a folder"):
            self.start()
        folder.mkdir()
        folder.chmod(0o777)
        with self.assertRaisesRegex(RuntimeError, "may be written by every user"):
            self.start()
        folder.chmod(0o700)
        self.start()
        self.await_state("failed")
        self.assertIn("cannot read", self.status()["error"])
        self.assertFalse(self.ready())
        for name, text in files(("a", 1)).items():
            (folder / name).write_text(text)
        self.await_ready()
        self.assertEqual(set(self.served()), {"a"})

    def test_a_file_that_is_mounted_alone_is_warned_of(self):
        """As a subPath of Kubernetes, which never changes."""
        mount = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
        if daemons.subprocess.run(mount + ["true"], capture_output=True).returncode != 0:
            self.skipTest("this machine lets the test make no mount namespace")
        folder = self.temporary / "operators"
        folder.mkdir()
        for name, text in files(("a", 1)).items():
            (folder / name).write_text(text)
        self.start()
        self.await_ready()
        self.assertNotIn("mount of its own", self.log())
        (folder / "operators.yaml").rename(self.temporary / "alone.yaml")
        (folder / "operators.yaml").touch()
        script = 'mount --bind "$0/alone.yaml" "$0/operators/operators.yaml" && exec "$@"'
        self.start(before=mount + ["sh", "-c", script, str(self.temporary)])
        self.await_ready()
        self.assertEqual(set(self.served()), {"a"})
        self.assertRegex(self.log(), "operators.yaml is a mount of its own, .* Fix: mount the folder .*without subPath")

    def test_a_restart_keeps_what_was_changed_last(self):
        folder = self.folder(("a", 1), ("b", 1))
        state = "--state_dir=" + str(self.temporary / "state")
        self.start(state)
        self.await_ready()
        first = self.served()
        revision = self.events("a")[0]["revision"]
        self.restart(state)
        self.await_ready()
        self.assertEqual(self.served(), first)
        self.assertEqual(self.events("a")[0]["revision"], revision, "nothing was changed again")
        # A roll-out after the folder: it stays, also after a restart.
        self.apply(self.set_file("rollout", ("a", 2), ("b", 1)))
        second = self.served()
        self.assertNotEqual(second, first)
        self.await_state("applied", drift=False)
        superseded = self.status()["superseded_by"]
        self.assertNotEqual(superseded, "")
        self.restart(state)
        self.await_ready()
        self.assertEqual(self.served(), second)
        self.assertEqual(self.status()["superseded_by"], superseded)
        # It is undone: the folder holds again.
        self.apply(self.temporary / "rollout" / "operators.yaml", "--undo")
        self.assertEqual(self.served(), first)
        self.await_state("applied", superseded_by="", drift=False)
        # The folder was changed while the daemon was down.
        folder.set(files(("a", 3), ("b", 1)))
        self.restart(state)
        self.await_ready()
        self.assertNotIn(self.served()["a"], (first["a"], second["a"]))
        self.assertEqual(self.diff(files(("a", 3), ("b", 1))), 0)
        # Without a state folder each start begins with the folder.
        self.restart()
        self.await_ready()
        self.assertEqual(set(self.served()), {"a", "b"})

    def test_what_others_change_is_shown_and_left(self):
        folder = self.folder(("a", 1), ("b", 1))
        state = "--state_dir=" + str(self.temporary / "state")
        daemon = self.start(state)
        self.await_ready()
        first = self.served()
        other = self.temporary / "other.s"
        other.write_text(program(5))
        self.assertEqual(daemon.ctl("ops", "install", "a", "--flux=" + str(other), "--wait=active", "--force").code, 0)
        changed = self.served()
        self.assertNotEqual(changed["a"], first["a"])
        self.await_state("applied", drift=True, differing=["a"])
        self.assertEqual(self.metrics(), (["applied"], True))
        self.assertIn("others have changed operators of set ranking: a serves", self.log())
        self.assertIn("drift: a", daemons.ctl("status", "--targets=ipv4:" + daemon.address).out)
        self.assertTrue(self.ready())
        # It is not fought over: not by the next polls, and not by a restart.
        self.restart(state)
        self.await_ready()
        self.await_state("applied", drift=True, differing=["a"])
        self.assertEqual(self.served(), changed)
        # The next change of the folder is the last change. What is as it should be is not touched.
        folder.set(files(("a", 1), ("b", 2)))
        self.wait_for("the folder", lambda: self.served()["b"] != first["b"])
        self.await_state("applied", drift=False, differing=[])
        self.assertEqual(self.served()["a"], first["a"])
        # Activated by hand, and back.
        self.assertEqual(self.daemon.ctl("ops", "rollback", "b").code, 0)
        self.await_state("applied", drift=True, differing=["b"])
        self.assertEqual(self.daemon.ctl("ops", "activate", "b").code, 0)
        self.await_state("applied", drift=False)

    def test_a_listed_operator_is_changed_by_hand_only_with_force(self):
        self.folder(("a", 1), ("b", 1))
        daemon = self.start()
        self.await_ready()
        first = self.served()
        other = self.temporary / "other.s"
        other.write_text(program(5))
        install = ("install", "a", "--flux=" + str(other), "--wait=active")

        def refused(*command):
            result = daemon.ctl("ops", *command)
            self.assertNotEqual(result.code, 0, command)
            self.assertIn("operator 'a' is in the set 'ranking' of --operators_dir", result.err)
            self.assertIn("--force", result.err)

        refused(*install)
        refused("remove", "a")
        self.assertEqual(daemon.ctl("ops", *install[:-1], "--wait=validated").code, 0)
        self.assertEqual(self.served(), first)
        self.assertEqual(self.metrics(), (["applied"], False))
        # An operator that the set does not list.
        self.assertEqual(daemon.ctl("ops", "install", "z", *install[2:]).code, 0)
        self.assertEqual(daemon.ctl("ops", "remove", "z").code, 0)
        # With --force; back without it.
        self.assertEqual(daemon.ctl("ops", *install, "--force").code, 0)
        self.await_state("applied", drift=True, differing=["a"])
        self.assertEqual(daemon.ctl("ops", "rollback", "a").code, 0)
        self.await_state("applied", drift=False)
        refused("activate", "a")
        # What the folder itself wants needs no --force.
        self.assertEqual(daemon.ctl("ops", *install, "--force").code, 0)
        self.await_state("applied", drift=True, differing=["a"])
        wanted = "--flux=" + str(self.temporary / "operators" / "a-1.s")
        self.assertEqual(daemon.ctl("ops", "install", "a", wanted, "--wait=active").code, 0)
        self.await_state("applied", drift=False)
        self.assertEqual(self.served(), first)
        with residentd.connect(daemon.address) as rd:
            with self.assertRaisesRegex(residentd.FailedPrecondition, "is in the set 'ranking'"):
                rd.operators.remove("b")
            rd.operators.remove("b", force=True)
            self.await_state("applied", drift=True, differing=["b"])
            rd.operators.install("a", bytecode=b"\x20\x00\x00\x01", wait="active", force=True)
        self.await_state("applied", drift=True, differing=["a", "b"])
        # What is listed is what the folder says now.
        self.operators.set(files(("a", 1)))
        self.await_state("applied", drift=False)
        self.assertEqual(daemon.ctl("ops", "install", "b", *install[2:]).code, 0)

    def states(self, name):
        """The states of an operator's versions in the kernel, the active one first."""
        summary = self.daemon.ctl("ops", "summary", "--json").json
        return [version["state"] for operator in summary["operators"] if operator["name"] == name
                for version in operator["versions"]]

    def test_the_next_set_is_installed_and_not_activated(self):
        now = files(("a", 1), ("b", 1), prune="true", bake="{time: 1ms}")
        wanted = (("a", 2), ("b", 1), ("c", 1))
        following = files(*wanted, release="two")
        following["operators_next.yaml"] = following.pop("operators.yaml")
        folder = Folder(self.temporary / "operators", now)
        self.start()
        self.await_ready()
        first = self.served()
        folder.set(now | following)
        self.wait_for("the versions", lambda: (self.states("a"), self.states("c")) ==
                      (["active", "loaded"], ["loaded"]))
        self.await_state("applied", drift=False, differing=[], next_release="two", next_missing=[], next_error="")
        self.assertEqual(self.served(), first)
        self.assertEqual(self.states("b"), ["active"])
        self.assertEqual([(event["kind"], event["actor"], event["plan"], event["set"]) for event in self.events("c")],
                         [("installed", "residentd", "", "ranking")])
        self.assertIn("next      two\n", self.daemon.ctl("status").out)
        # Its roll-out has nothing left but to activate.
        rollout = self.set_file("rollout", *wanted, release="two")
        self.assertIn("switch", daemons.ctl("diff", rollout, "--targets=ipv4:" + self.daemon.address).out)
        self.apply(rollout)
        second = self.served()
        self.assertEqual(set(second), {"a", "b", "c"})
        self.assertEqual([event["kind"] for event in self.events("c")], ["activated", "installed"])
        # The file is no change of the set that serves: it does not end the supersession.
        superseded = self.status()["superseded_by"]
        self.assertNotEqual(superseded, "")
        folder.set(now)
        self.await_state("applied", next_plan="")
        self.assertEqual((self.status()["superseded_by"], self.served()), (superseded, second))
        # A superseded folder installs nothing.
        other = files(("a", 3), ("b", 3))
        other["operators_next.yaml"] = other.pop("operators.yaml")
        folder.set(now | other)
        self.wait_for("the file", lambda: self.status()["next_plan"] != "")
        self.assertEqual(self.states("b"), ["active"])
        # An error in it does not concern the set that serves.
        folder.set(now | {"operators_next.yaml": "version: 1\nset: ranking\noperators: [{name: a}]\n"})
        self.wait_for("the error", lambda: "operators_next.yaml" in self.log())
        self.await_state("applied", next_plan="")
        self.assertTrue(self.ready())
        # It is what serves now, whose versions are in the kernel.
        folder.set(files(*wanted, release="two"))
        self.await_state("applied", release="two", superseded_by="", drift=False)
        self.assertEqual(self.served(), second)
        self.assertEqual(self.states("b"), ["active"])

    def test_the_next_set_waits_for_the_end_of_a_bake(self):
        """Because the version before is needed until then."""
        following = files(("a", 2))
        following["operators_next.yaml"] = following.pop("operators.yaml")
        folder = Folder(self.temporary / "operators", files(("a", 1), bake="{time: 10m}") | following)
        self.start()
        self.await_ready()
        self.wait_for("it waits", lambda: "a: a version is in its bake" in self.status()["next_error"])
        self.await_state("applied", next_missing=["a"], drift=False)
        self.assertEqual(self.states("a"), ["active"])
        # A set of another name is refused.
        folder.set(files(("a", 1)) | {
            name: text.replace("set: ranking", "set: other") for name, text in following.items()})
        self.wait_for("the error", lambda: "give both the same set" in self.status()["next_error"])

    def test_the_folder_waits_for_a_claim(self):
        folder = self.folder(("a", 1))
        self.start()
        self.await_ready()
        first = self.served()
        run = self.begin_apply(self.set_file("rollout", ("a", 2)), "--min_tasks=0", "--bake=10m")
        folder.set(files(("a", 3)))
        self.wait_for("it waits", lambda: "are claimed by" in self.status()["error"])
        self.assertEqual(self.status()["state"], "applying")
        second = self.served()
        self.assertNotEqual(second, first)
        self.assertEqual(self.metrics(), (["applying"], False))
        self.assertTrue(self.ready())
        # An administrator ends the claim: then the folder, which was changed last, is applied.
        run.kill()
        run.wait()
        self.apply(self.set_file("rollout", ("a", 2)), "--steal")
        self.await_state("applied", error="", superseded_by="")
        self.assertNotIn(self.served()["a"], (first["a"], second["a"]))
        # A claim of another set does not concern it.
        run = self.begin_apply(self.set_file("elsewhere", ("z", 2), set="elsewhere"), "--min_tasks=0", "--bake=10m")
        folder.set(files(("a", 4), release="four"))
        self.await_state("applied", release="four")

    def begin_apply(self, path, *flags):
        """Starts an apply, and returns when it bakes."""
        process = daemons.subprocess.Popen(
            [str(daemons.RESIDENTCTL), "apply", str(path), "--targets=ipv4:" + self.daemon.address, "--json", *flags],
            stdout=daemons.subprocess.PIPE, stderr=daemons.subprocess.DEVNULL, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        for line in process.stdout:
            if json.loads(line).get("step") == "bake":
                return process
        self.fail("the run ended before its bake")

    def test_identities_see_what_they_may(self):
        self.folder(("a", 1), "{name: rank.bad, flux: gone.s}")
        policy = self.temporary / "policy.json"
        policy.write_text(json.dumps({"identities": {"client": {"roles": ["submit"]},
                                                     "admin": {"roles": ["submit", "install", "admin"]}}}))
        tokens = self.temporary / "tokens"
        made = {name: self.temporary / (name + ".token") for name in ("client", "admin")}
        tokens.write_text("".join(daemons.ctl("token", "new", name, "--out=" + str(path), "--json").json["line"] + "\n"
                                  for name, path in made.items()))
        self.start("--policy=" + str(policy), "--token_file=" + str(tokens))

        def status(name):
            return self.daemon.ctl("status", "--json", "--token_file=" + str(made[name])).json["operators_dir"]

        self.wait_for("the error", lambda: status("admin")["state"] == "failed")
        self.assertIn("gone.s", status("admin")["error"])
        self.assertEqual(status("client")["error"], "")
        self.operators.set(files(("a", 1)))
        self.wait_for("the daemon is ready", self.ready)
        events = self.daemon.ctl("ops", "audit", "a", "--json", "--token_file=" + str(made["admin"])).json["events"]
        self.assertEqual({event["actor"] for event in events}, {"residentd"})

    def test_generations_are_not_mixed(self):
        """The operators of each generation belong together."""
        count = 4

        def generation(number):
            return files(*(("op{}".format(i), number) for i in range(count)), release="g{}".format(number))

        folder = Folder(self.temporary / "operators", generation(0))
        self.start()
        self.await_ready()
        for number in range(1, SWAPS + 1):
            folder.set(generation(number))
            time.sleep(random.uniform(0, 1.2))  # The time between two changes is any.
        self.await_state("applied", release="g{}".format(SWAPS))
        self.assertEqual(self.diff(generation(SWAPS)), 0)
        # Each plan that was applied was whole.
        plans = {}
        for i in range(count):
            for event in self.events("op{}".format(i)):
                if event["kind"] == "activated":
                    plans.setdefault(event["plan"], set()).add(i)
        self.assertEqual(set(map(len, plans.values())), {count})

    def test_a_daemon_that_is_killed_while_it_applies_converges(self):
        sets = [files(("a", number), ("b", number), ("c", number), bake="{time: 1ms}") for number in (1, 2)]
        # Each has the other one as the next set, whose versions are installed at any time after it.
        sets = [dict(other, **now, **{"operators_next.yaml": other["operators.yaml"]})
                for now, other in (sets, sets[::-1])]
        folder = Folder(self.temporary / "operators", sets[0])
        state = "--state_dir=" + str(self.temporary / "state")
        self.start(state)
        self.await_ready()
        seed = random.randrange(1 << 32)
        rng = random.Random(seed)
        for number in range(KILLS):
            with self.subTest(seed=seed, number=number):
                wanted = sets[(number + 1) % 2]
                folder.set(wanted)
                if number % 2 == 0:  # It changes while the daemon runs, or while it starts.
                    time.sleep(rng.uniform(0, 1.5))  # The random time itself.
                else:
                    self.restart(state)
                    time.sleep(rng.uniform(0, 0.2))  # The same.
                self.restart(state)
                # Never ready before it serves the folder.
                self.wait_for("the daemon is ready", self.ready)
                self.assertEqual(self.diff(wanted), 0)
                self.await_state("applied", drift=False)


if __name__ == "__main__":
    unittest_main.main()
