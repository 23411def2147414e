#!/usr/bin/python3
"""residentctl apply and diff on three real daemons: what they serve after a roll-out that succeeds, fails, is
killed, or meets another one.

Most operators are FLUX programs, which need no compiler. $RESIDENT_FLEET_KILLS: how often a run is killed at a
random time; $RESIDENT_FLEET_RACES: how often two runs are started at once.

The last line is `N passed, N failed`.
"""

import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
from fleet import WAIT_S, FleetTest, Load, page  # noqa: E402
from support import daemons, residentd, unittest_main  # noqa: E402

KILLS = int(os.environ.get("RESIDENT_FLEET_KILLS", "4"))
RACES = int(os.environ.get("RESIDENT_FLEET_RACES", "2"))
APPLIED, FAILED, USAGE, DOWN, REFUSED, INCOMPLETE = 0, 1, 2, 3, 4, 6
QUICK = ("--min_tasks=0", "--bake=0s", "--wave_bake=0s")
STEPS = ("plan", "claim", "stage", "canary", "bake", "wave", "wave", "sweep", "release")


class RolloutTest(FleetTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="residentd-rollout-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def fleet(self, *flags):
        self.nodes_ = self.nodes("--flux_native=off", *flags)
        return self.nodes_

    def set_file(self, name, *operators, **keys):
        """A set whose operators are (name, value) of programs, or text of an entry; returns its path."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        text = "version: 1\nset: ranking\n"
        text += "".join("{}: {}\n".format(key, value) for key, value in keys.items())
        text += "operators:\n"
        for operator in operators:
            if not isinstance(operator, str):
                source = "{}-{}.s".format(*operator)
                (folder / source).write_text("MOVI R0, {}\nMOVI R1, {}\nHALT\n".format(*divmod(operator[1], 100)))
                operator = "{{name: {}, flux: {}}}".format(operator[0], source)
            text += "- " + operator + "\n"
        (folder / "operators.yaml").write_text(text)
        return folder / "operators.yaml"

    def value(self, value):
        return self.set_file("value-{}".format(value), ("a", value), ("b", value))

    def words(self, command, path, *flags, nodes=None):
        targets = "ipv4:" + ",".join(node.address for node in nodes or self.nodes_)
        return (command, path, "--targets=" + targets, *flags)

    def ctl(self, code, command, path, *flags, nodes=None):
        result = daemons.ctl(*self.words(command, path, *flags, nodes=nodes))
        self.assertEqual(result.code, code, result)
        return result

    def apply(self, path, *flags, code=APPLIED, nodes=None):
        return self.ctl(code, "apply", path, *QUICK, *flags, nodes=nodes)

    def begin(self, path, *flags):
        """Starts an apply whose steps can be read."""
        process = subprocess.Popen(
            [str(daemons.RESIDENTCTL), *map(str, self.words("apply", path, "--json", *flags))],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def read_until(self, process, step):
        for line in process.stdout:
            if json.loads(line).get("step") == step:
                return
        self.fail("the run ended before " + step)

    def summary(self, node):
        return node.ctl("ops", "summary", "--json").json

    def served(self, nodes=None):
        """What each node serves: content hashes by name."""
        return [{operator["name"]: version["content_hash"]
                 for operator in self.summary(node)["operators"] for version in operator["versions"]
                 if version["state"] == "active"} for node in nodes or self.nodes_]

    def same_everywhere(self, nodes=None):
        served = self.served(nodes)
        self.assertEqual(served, [served[0]] * len(served))
        return served[0]

    def test_a_set_is_applied_to_every_node(self):
        nodes = self.fleet()
        path = self.value(1)
        self.assertIn("6 differences", self.ctl(FAILED, "diff", path).out)
        self.assertIn("stage", self.apply(path, "--dry_run").out)
        self.assertEqual(self.served(), [{}] * 3)
        done = self.apply(path, "--json", "--publish=" + str(self.folder / "published"))
        lines = [json.loads(line) for line in done.out.splitlines()]
        self.assertEqual([line["step"] for line in lines[:-1]],
                         [*STEPS[:-1], "publish", STEPS[-1]])
        self.assertEqual((lines[-1]["result"], lines[-1]["exit"], lines[-1]["nodes"]), ("applied", 0, 3))
        first = self.same_everywhere()
        self.assertEqual(set(first), {"a", "b"})
        self.assertEqual(self.ctl(APPLIED, "diff", path, "--json").json["differences"], [])
        for name in ("operators.yaml", "a-1.s", "b-1.s"):
            self.assertEqual((self.folder / "published" / name).read_text(), (path.parent / name).read_text())
        # The plan is in the audit log, and the set owns the versions.
        events = nodes[1].ctl("ops", "audit", "a", "--json").json["events"]
        self.assertEqual([(each["kind"], each["plan"], each["set"]) for each in events],
                         [(kind, lines[-1]["plan"], "ranking") for kind in ("activated", "installed")])
        state = self.summary(nodes[2])
        self.assertEqual([(plan["plan"], plan["state"], plan["claimed"]) for plan in state["plans"]],
                         [(lines[-1]["plan"], "done", False)])
        self.assertEqual({version["set"] for operator in state["operators"]
                          for version in operator["versions"]}, {"ranking"})
        metrics = page(nodes[1], "metrics")
        self.assertIn('resident_operator_active_info{{operator="a",set="ranking",label="",hash="{}"}} 1\n'.format(
            first["a"][:12]), metrics)
        self.assertIn("\nresident_claim_seconds 0\n", metrics)
        # Nothing is left to do.
        self.apply(path)
        self.assertEqual(self.summary(nodes[2])["operators"][0]["revision"],
                         state["operators"][0]["revision"])
        # One of two operators changes; later one is not listed any more.
        self.apply(self.set_file("next", ("a", 2), ("b", 1)))
        self.assertEqual(self.same_everywhere()["b"], first["b"])
        self.assertNotEqual(self.same_everywhere()["a"], first["a"])
        self.apply(self.set_file("less", ("a", 2)))
        self.assertEqual(set(self.same_everywhere()), {"a", "b"})
        self.apply(self.set_file("less", ("a", 2), prune="true"))
        self.assertEqual(set(self.same_everywhere()), {"a"})

    def test_the_audit_logs_of_all_nodes_are_merged(self):
        nodes = self.fleet()
        first, second = self.value(1), self.value(2)
        plans = [json.loads(self.apply(path, "--json").out.splitlines()[-1])["plan"] for path in (first, second)]
        self.assertEqual(nodes[1].ctl("ops", "rollback", "a").code, 0)
        targets = "--targets=ipv4:" + ",".join(node.address for node in nodes)

        def audit(*words, code=APPLIED):
            result = daemons.ctl("ops", "audit", targets, *words)
            self.assertEqual(result.code, code, result)
            return result

        events = audit("--json").json["events"]
        self.assertEqual(len(events), 3 * 2 * 4 + 1)
        self.assertEqual((events[0]["node"], events[0]["kind"]), (nodes[1].address, "rolled_back"))
        times = [event["time_ms"] for event in events]
        self.assertEqual(times, sorted(times, reverse=True))
        for node in nodes:
            own = node.ctl("ops", "audit", "--json").json
            self.assertEqual([event["revision"] for event in own["events"]],
                             [event["revision"] for event in events if event["node"] == node.address])
            self.assertEqual({event["node_name"] for event in events}, {own["node_name"]})
        # Of one operator, of one plan, the newest ones.
        self.assertEqual({event["operator"] for event in audit("a", "--json").json["events"]}, {"a"})
        of_plan = audit("--plan=" + plans[0][:12], "--json").json["events"]
        self.assertEqual([event["plan"] for event in of_plan], [plans[0]] * 3 * 2 * 2)
        self.assertEqual(audit("--plan=" + plans[0], "--count=5", "--json").json["events"], of_plan[:5])
        self.assertEqual(audit("--count=3", "--json").json["events"], events[:3])
        self.assertEqual(len(nodes[0].ctl("ops", "audit", "--plan=" + plans[1], "--json").json["events"]), 4)
        lines = audit("--count=1").out.splitlines()
        self.assertRegex(lines[0], r"^NODE +REVISION ")
        self.assertRegex(lines[1], r"^{} +\d+ .* rolled_back +a ".format(re.escape(nodes[1].address)))
        audit("--before=3", code=USAGE)
        # A node that is down is named.
        nodes[2].process.kill()
        nodes[2].process.wait()
        self.assertIn(nodes[2].address + ": cannot reach", audit(code=FAILED).out)
        rest = audit("--json", code=FAILED).json
        self.assertEqual([each["node"] for each in rest["errors"]], [nodes[2].address])
        self.assertEqual({event["node"] for event in rest["events"]}, {node.address for node in nodes[:2]})

    def test_the_hashes_of_every_kind_are_those_of_the_daemon(self):
        self.nodes_ = [self.node("--flux_native=off")]
        source = self.folder / "kinds" / "twice.cc"
        path = self.set_file("kinds", "{name: half, expr: x * 0.5}", ("c", 3),
                             "{name: twice.it, file: twice.cc, task_time: 50ms, examples: [twice.json]}",
                             release="r-1")
        source.write_text("""// signature: x: in f32[*S], out: out f32[*S]
#include "kernels/sdk/operator.h"
RESIDENT_OPERATOR(twice_it)(resident::Block& block, const resident::Args& args) {
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  block.for_each(block.share(x.size()), [&](resident::i64 i) { out[i] = 2 * x[i]; });
}
""")
        (source.parent / "twice.json").write_text('{"inputs": {"x": [1, 2]}, "outputs": {"out": [2, 4]}}')
        self.apply(path)
        self.ctl(APPLIED, "diff", path)
        ran = self.nodes_[0].ctl("run", "twice.it", "x=1,2", "--op_label=r-1")
        self.assertIn("2 4", ran.out, ran)
        # A version that is refused changes nothing, and can be tried again.
        before = self.served()
        (source.parent / "twice.json").write_text('{"inputs": {"x": [1, 2]}, "outputs": {"out": [2, 5]}}')
        source.write_text(source.read_text() + "// other\n")
        for _ in range(2):
            failed = self.apply(path, code=FAILED)
            self.assertIn("expects", failed.err)
        self.assertEqual(self.served(), before)
        wrong = self.set_file("wrong", "{name: half, exp: x}")
        self.assertIn("did you mean 'expr'", self.apply(wrong, code=USAGE).err)

    def test_a_failed_canary_goes_back_and_is_not_tried_again(self):
        self.fleet()
        self.apply(self.value(1))
        old = self.same_everywhere()
        path = self.value(2)
        failed = self.apply(path, "--min_tasks=1", code=FAILED)
        self.assertIn("inconclusive: a has served 0 tasks", failed.err)
        self.assertEqual(self.same_everywhere(), old)
        self.assertIn("--again", self.apply(path, code=REFUSED).err)
        self.assertEqual(self.same_everywhere(), old)
        self.apply(path, "--again")
        new = self.same_everywhere()
        self.assertNotEqual(new, old)
        self.apply(path, "--undo")
        self.assertEqual(self.same_everywhere(), old)
        self.apply(path, code=REFUSED)
        self.assertIn("no record", self.apply(self.value(3), "--undo", code=REFUSED).err)
        # What had no version before is removed.
        self.apply(self.set_file("more", ("a", 1), ("b", 1), ("c", 1)), "--again")
        self.apply(self.set_file("more", ("a", 1), ("b", 1), ("c", 1)), "--undo")
        self.assertEqual(self.same_everywhere(), old)

    def trials(self):
        """For each node: the operators on trial, and the share of the batches."""
        return [{operator["name"]: version["trial_percent"] for operator in self.summary(node)["operators"]
                 for version in operator["versions"] if version["trial_percent"]} for node in self.nodes_]

    def test_a_canary_serves_a_share_of_its_batches_first(self):
        nodes = self.fleet()
        self.apply(self.value(1))
        old = self.same_everywhere()
        self.apply(self.value(2), "--percent=25", "--canary=0", code=USAGE)
        # Without traffic it fails, and the trial ends.
        failed = self.apply(self.value(2), "--percent=25", "--min_tasks=1", code=FAILED)
        self.assertIn("inconclusive: a has served 0 tasks", failed.err)
        self.assertEqual((self.same_everywhere(), self.trials()), (old, [{}] * 3))
        self.assertIn("--again", self.apply(self.value(2), code=REFUSED).err)
        # A run that is killed meanwhile is continued, with a trial or without.
        flags = ("--percent=25", "--min_tasks=0", "--canary_nodes=" + nodes[1].address)
        for number, again in enumerate((flags, ("--min_tasks=0",))):
            # One that had no version serves all batches at once.
            path = self.set_file("kill-{}".format(number), ("a", 10 + number), ("b", 10 + number),
                                 ("new-{}".format(number), 1))
            run = self.begin(path, *flags, "--bake=10m")
            self.wait_for("the trial", lambda: self.trials() == [{}, {"a": 25, "b": 25}, {}])
            self.assertEqual([{name: served[name] for name in old} for served in self.served()], [old] * 3)
            run.kill()
            run.wait()
            self.apply(path, *again)
            self.assertEqual(self.trials(), [{}] * 3)
            self.assertNotEqual(self.same_everywhere()["a"], old["a"])
            old = {name: self.same_everywhere()[name] for name in old}
        # Another plan ends what a plan of this set has left.
        run = self.begin(self.value(30), *flags, "--bake=10m")
        self.wait_for("the trial", lambda: self.trials()[1] == {"a": 25, "b": 25})
        run.kill()
        run.wait()
        self.apply(self.value(31), "--steal")
        self.assertEqual(self.trials(), [{}] * 3)
        # With traffic it is applied; meanwhile both versions answer. Other programs on this machine make
        # single tasks slow, which are not a regression of the version.
        path = self.set_file("value-30", ("a", 30), ("b", 30), bake="{max_latency_ratio: 1000000}")
        answers = set()
        with residentd.connect(nodes[1].address) as rd:

            def call():
                for name in ("a", "b"):
                    answers.add((name, int(rd.flux(name).registers)))

            with Load(call, threads=1) as load:
                self.apply(path, *flags, "--bake=5s", "--min_tasks=1")
        self.assertEqual(load.errors, [])
        self.assertEqual({name for name, _ in answers}, {"a", "b"})
        self.assertEqual(self.trials(), [{}] * 3)

    def killed(self, process, old, path, *flags):
        """After a run was killed, the same command makes all nodes old or new, and says which."""
        process.kill()
        process.wait()
        again = daemons.ctl(*self.words("apply", path, *flags))
        self.assertIn(again.code, (APPLIED, FAILED, REFUSED), again)
        served = self.same_everywhere()
        self.assertEqual(self.trials(), [{}] * 3)
        if again.code == APPLIED:
            self.assertNotEqual(served, old, again)
            self.ctl(APPLIED, "diff", path)
        else:
            self.assertEqual(served, old, again)
        return again.code

    def test_a_run_that_was_killed_at_any_step_is_continued(self):
        self.fleet()
        self.apply(self.value(0))
        flags = QUICK
        for number, step in enumerate(STEPS):
            with self.subTest(step=step, number=number):
                old, path = self.same_everywhere(), self.value(number + 1)
                process = self.begin(path, *flags)
                for _ in range(number + 1):
                    process.stdout.readline()
                self.assertEqual(self.killed(process, old, path, *flags), APPLIED)
        steps = (("canary",), ("fail",), ("back",), ("trial", "--percent=50"), ("back", "--percent=50"))
        for number, (step, *share) in enumerate(steps):
            flags = (*QUICK, "--min_tasks=1", *share)
            with self.subTest(step=step, share=share):
                old, path = self.same_everywhere(), self.value(100 + number)
                process = self.begin(path, *flags)
                self.read_until(process, step)
                # Once the way back has begun, it is continued whatever the second run would accept.
                again = QUICK if step == "back" else flags
                self.assertIn(self.killed(process, old, path, *again), (FAILED, REFUSED))

    def test_a_run_that_was_killed_at_a_random_time_is_continued(self):
        self.fleet()
        self.apply(self.value(1000))
        began = time.monotonic()
        self.apply(self.value(1001))
        takes_s = time.monotonic() - began
        seed = random.randrange(1 << 32)
        rng = random.Random(seed)
        for number in range(KILLS):
            after_s = rng.uniform(0, takes_s)
            flags = (*QUICK, "--min_tasks={}".format(number % 2), "--percent={}".format(number // 2 % 2 * 50))
            with self.subTest(seed=seed, number=number, after_s=after_s):
                old, path = self.same_everywhere(), self.value(1002 + number)
                process = self.begin(path, *flags)
                time.sleep(after_s)  # The random time itself.
                self.killed(process, old, path, *flags)

    def test_of_two_plans_at_once_one_wins(self):
        self.fleet()
        self.apply(self.value(1))
        for number in range(RACES):
            paths = [self.value(10 * number + 2), self.value(10 * number + 3)]
            runs = [self.begin(path, *QUICK) for path in paths]
            codes = [(run.communicate(timeout=WAIT_S), run.returncode)[1] for run in runs]
            self.assertIn(sorted(codes), ([APPLIED, APPLIED], [APPLIED, REFUSED]))
            self.same_everywhere()
            applied = [path for path, code in zip(paths, codes) if code == APPLIED]
            equal = [daemons.ctl(*self.words("diff", path)).code == 0 for path in applied]
            self.assertEqual(equal.count(True), 1)
        # The same plan: the second takes over, or finds nothing to do.
        for number in range(RACES):
            path = self.value(1000 + number)
            runs = [self.begin(path, *QUICK) for _ in range(2)]
            codes = [(run.communicate(timeout=WAIT_S), run.returncode)[1] for run in runs]
            self.assertIn(sorted(codes), ([APPLIED, APPLIED], [APPLIED, REFUSED]))
            self.ctl(APPLIED, "diff", path)

    def test_a_claimed_name_is_changed_by_its_plan_alone(self):
        states = [self.folder / "state-{}".format(i) for i in range(3)]
        self.fleet()
        for node in self.nodes_:
            node.stop()
        self.nodes_ = [self.node("--address=" + node.address, "--flux_native=off", "--state_dir=" + str(state))
                       for node, state in zip(self.nodes_, states)]
        self.apply(self.value(1))
        old = self.same_everywhere()
        run = self.begin(self.value(2), "--min_tasks=0", "--bake=10m", "--lease=10m")
        self.read_until(run, "bake")
        node = self.nodes_[0]

        program = self.value(1).parent / "a-1.s"

        def refused():
            for words in (("ops", "install", "a", "--flux=" + str(program)), ("ops", "remove", "b"),
                          ("ops", "activate", "b")):
                result = node.ctl(*words)
                self.assertEqual(result.code, REFUSED, result)
                self.assertIn("is claimed by 'residentctl {} on ".format(run.pid), result.err)

        refused()
        self.wait_for("the age of the claim", lambda: re.search(r"^resident_claim_seconds [1-9]", page(node, "metrics"),
                                                                re.M))
        other = self.apply(self.value(3), code=REFUSED)
        self.assertIn("are claimed by 'residentctl {} on ".format(run.pid), other.err)
        self.assertEqual(node.ctl("ops", "install", "other", "--flux=" + str(program)).code, 0)
        # The claim is kept, also by a daemon that is killed.
        run.kill()
        run.wait()
        node.process.kill()
        node.process.wait()
        self.nodes_[0] = node = self.node("--address=" + node.address, "--flux_native=off",
                                          "--state_dir=" + str(states[0]))
        refused()
        # An admin can end it.
        self.apply(self.value(1), "--steal")
        self.assertEqual({name: digest for name, digest in self.served([node])[0].items() if name in old}, old)
        self.assertEqual(node.ctl("ops", "remove", "b").code, 0)

    def test_a_run_whose_claim_is_stolen_ends(self):
        self.fleet()
        self.apply(self.value(1))
        run = self.begin(self.value(2), "--min_tasks=0", "--bake=10m", "--lease=3s")
        self.read_until(run, "bake")
        self.apply(self.value(3), "--steal")
        run.communicate(timeout=WAIT_S)
        self.assertIn(run.returncode, (FAILED, INCOMPLETE))
        self.same_everywhere()
        self.ctl(APPLIED, "diff", self.value(3))

    def test_a_node_that_refuses_keeps_all_others_as_they_were(self):
        self.fleet()
        self.apply(self.value(1))
        old, path = self.same_everywhere(), self.value(2)
        last = self.nodes_[2]
        # While a version is on trial, its operator takes no other one.
        self.assertEqual(last.ctl("ops", "install", "a", "--flux=" + str(self.value(3).parent / "a-3.s")).code, 0)
        self.assertEqual(last.ctl("ops", "promote", "a", "--traffic=1%").code, 0)
        self.assertIn("is on trial", self.apply(path, code=FAILED).err)
        self.assertEqual(self.same_everywhere(), old)
        for node in self.nodes_:
            revisions = [event["kind"] for event in node.ctl("ops", "audit", "b", "--json").json["events"]]
            self.assertEqual(revisions.count("activated"), 1, "a node was switched")
        # Nothing was switched, so that the plan may be tried again.
        self.assertEqual(last.ctl("ops", "promote", "a", "--traffic=0%", "--shadow=0%").code, 0)
        self.apply(path)

    def test_a_lease_runs_out(self):
        self.fleet()
        self.apply(self.value(1))
        run = self.begin(self.value(2), "--min_tasks=0", "--bake=10m", "--lease=1s")
        self.read_until(run, "bake")
        time.sleep(2)  # Longer than the lease: the run renews it.
        self.assertEqual(self.nodes_[0].ctl("ops", "remove", "b").code, REFUSED)
        run.kill()
        run.wait()
        self.wait_for("the end of the claim", lambda: self.nodes_[0].ctl("ops", "remove", "b").code == 0)

    def test_nodes_that_are_down(self):
        states = [self.folder / "state-{}".format(i) for i in range(3)]
        self.fleet()
        last = self.nodes_[2]
        self.apply(self.value(1))
        old = self.same_everywhere()
        last.stop()
        self.assertIn("1 of 3 nodes did not answer", self.apply(self.value(2), code=DOWN).err)
        self.assertEqual(self.same_everywhere(self.nodes_[:2]), old)
        # A node that comes during the roll-out gets the set too.
        run = self.begin(self.value(2), "--min_tasks=0", "--bake=1s", "--wave_bake=0s", "--max_down=1")
        self.read_until(run, "bake")
        self.nodes_[2] = self.node("--address=" + last.address, "--flux_native=off", "--state_dir=" + str(states[2]))
        run.communicate(timeout=WAIT_S)
        self.assertEqual(run.returncode, APPLIED)
        self.assertNotEqual(self.same_everywhere(), old)
        # A node that was replaced has no record. It is brought up to date, and nothing else changes.
        self.nodes_[2].stop()
        self.nodes_[2] = self.node("--address=" + last.address, "--flux_native=off")
        self.assertIn("no record", self.apply(self.value(2), "--undo", code=REFUSED).err)
        self.apply(self.value(2))
        self.assertNotEqual(self.same_everywhere(), old)

    def test_a_canary_that_dies_is_undone_when_it_returns(self):
        states = [self.folder / "state-{}".format(i) for i in range(3)]
        first = self.fleet()
        for node in first:
            node.stop()

        def start(number):
            return self.node("--address=" + first[number].address, "--flux_native=off",
                             "--state_dir=" + str(states[number]))

        self.nodes_ = [start(number) for number in range(3)]
        self.apply(self.value(1))
        old = self.same_everywhere()
        flags = ("--min_tasks=0", "--bake=10m", "--lease=3s", "--canary_nodes=" + self.nodes_[1].address)
        run = self.begin(self.value(2), *flags)
        self.read_until(run, "bake")
        self.nodes_[1].process.kill()
        self.nodes_[1].process.wait()
        run.communicate(timeout=WAIT_S)
        self.assertEqual(run.returncode, FAILED)
        self.assertEqual(self.same_everywhere([self.nodes_[0], self.nodes_[2]]), old)
        self.nodes_[1] = start(1)
        self.assertNotEqual(self.served()[1], old)
        self.apply(self.value(2), code=FAILED)
        self.assertEqual(self.same_everywhere(), old)

    def test_what_belongs_to_others_is_not_changed(self):
        self.fleet()
        self.apply(self.value(1))
        before = self.same_everywhere()
        other = self.value(2)
        other.write_text(other.read_text().replace("set: ranking", "set: other"))
        self.assertIn("it belongs to set ranking", self.apply(other, code=REFUSED).err)
        builtin = self.set_file("builtin", ("add", 1))
        self.assertIn("built-in", self.apply(builtin, code=REFUSED).err)
        self.assertEqual(self.same_everywhere(), before)


if __name__ == "__main__":
    unittest_main.main()
