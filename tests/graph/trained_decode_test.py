#!/usr/bin/python3
"""The small model of the demo, trained and decoded over 1,000 steps in every form of a run: the loop
inside the engine, one run for each token, and both with nodes that the daemon submits one by one. All
give the same tokens. With weights of 8 and 4 bits it decodes a text that is checked beside NumPy, and
finds the documents nearly as likely. The last line is `N passed, N failed`.

$RESIDENT_TRAINING_STEPS: of the optimizer (default 600, as in the demo; 40 s to 2 min).
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
DEMO = HERE.parent.parent / "deploy" / "demo"
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "cli"), str(DEMO)]
import daemon as daemons  # noqa: E402
import decode  # noqa: E402
import llama_client  # noqa: E402
import llama_model  # noqa: E402
import llama_reference as reference  # noqa: E402
import numpy as np  # noqa: E402
import pieces  # noqa: E402
import train  # noqa: E402
import unittest_main  # noqa: E402

DOCUMENTS = sorted(pathlib.Path("docs").resolve().glob("*.md"))
TRAINING_STEPS = os.environ.get("RESIDENT_TRAINING_STEPS", "600")
STEPS = 1000
CONTEXT = 1024
PROMPT = "The daemon"
# ||logits - reference|| / ||reference|| with a cache of bfloat16.
TOLERANCE = 1e-2


class TrainedDecodeTest(daemons.CommandTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        library = pathlib.Path("library/libresident_ops.so").resolve()
        subprocess.run(["/usr/bin/python3", str(DEMO / "train.py"), str(cls.folder),
                        *map(str, DOCUMENTS), "--steps", TRAINING_STEPS], check=True,
                       env={"RESIDENT_OPS_LIBRARY": str(library), **os.environ})
        # The text does not end before the last step, and has room.
        config = json.loads((cls.folder / "config.json").read_text())
        del config["eos_token_id"]
        config["max_position_embeddings"] = CONTEXT
        (cls.folder / "config.json").write_text(json.dumps(config))
        table = json.loads((cls.folder / "tokenizer.json").read_text())
        cls.prompt = [int(token) for token in pieces.Pieces(table).encode(PROMPT)]

    def decode(self, in_engine, **scalars):
        """The tokens of one run of all steps, and of one run for each step."""
        daemon = daemons.Daemon("--graphs_in_engine=" + ("true" if in_engine else "false"))
        self.addCleanup(daemon.stop)
        self.check(daemon.ctl("buffers", "load", self.folder / "model.safetensors"), daemons.OK)
        text = self.check(daemon.ctl("graph", "llama", self.folder, f"--max_context={CONTEXT}",
                                     "--sample"), daemons.OK).out
        graph = llama_client.parse_graph(text)

        def executed():
            return self.check(daemon.ctl("status", "--json"), daemons.OK).json["devices"][0][
                "completed_tasks"]

        with llama_client.LlamaClient(daemon.address) as client:
            before = executed()
            whole = client.run(graph, self.prompt, STEPS, **scalars)
            # Quanta are a few tasks. Nodes are one each, or one for some that are fused.
            tasks = executed() - before
            if in_engine:
                self.assertLess(tasks, STEPS)
            else:
                self.assertGreaterEqual(tasks, STEPS * len(graph.nodes) // 2)
            session = client.open(graph)
            single = [client.run(graph, self.prompt, 1, session=session, **scalars).tokens
                      for _ in range(STEPS)]
        return whole.tokens, [token for tokens in single for token in tokens]

    def tokens_of_all_forms(self, **scalars):
        loop, single = self.decode(in_engine=True, **scalars)
        self.assertEqual(len(loop), STEPS)
        self.assertEqual(single, loop)
        loop_by_node, single_by_node = self.decode(in_engine=False, **scalars)
        self.assertEqual(loop_by_node, loop)
        self.assertEqual(single_by_node, loop)
        hidden = len(self.prompt) - 1
        self.assertEqual(loop[:hidden], [-1] * hidden)
        return loop[hidden:]

    def test_the_most_likely_tokens(self):
        tokens = self.prompt + self.tokens_of_all_forms(temperature=0)
        # NumPy finds them most likely too.
        self.assertEqual(decode.count_wrong(decode.read_model(self.folder), tokens,
                                            len(self.prompt)), 0)

    def test_tokens_that_are_drawn(self):
        tokens = self.tokens_of_all_forms(temperature=1, seed=5)
        # A text that does not repeat itself, as the most likely one may do.
        self.assertGreater(len(set(tokens)), 100)

    def test_weights_of_few_bits(self):
        source = llama_model.read_model(self.folder)
        daemon = daemons.Daemon()
        self.addCleanup(daemon.stop)
        table = json.loads((self.folder / "tokenizer.json").read_text())
        learned = pieces.Pieces(table).encode(train.prose(DOCUMENTS[0].read_text()))[:CONTEXT]
        differences, losses = [], []

        def likelihoods(model):
            """The logarithms of the likelihoods of the tokens of a document."""
            exact = reference.logits(model, learned[:-1], "bf16")
            return reference.log_softmax(exact)[np.arange(len(exact)), learned[1:]]

        for bits, group in ((8, 128), (4, 32)):
            path, prefix = self.folder / f"int{bits}.safetensors", f"int{bits}."
            text = self.check(daemon.ctl("graph", "llama", self.folder, "--max_context=256", "--logits",
                                         f"--weights=int{bits}", f"--group={group}", "--prefix=" + prefix,
                                         f"--weights_out={path}"), daemons.OK).out
            self.check(daemon.ctl("buffers", "load", path, "--prefix=" + prefix), daemons.OK)
            with llama_client.LlamaClient(daemon.address) as client:
                run = client.run(llama_client.parse_graph(text), self.prompt)
            made = run.tokens[len(self.prompt) - 1:]
            whole = self.prompt + made
            print(f"int{bits}:", PROMPT + "".join(table[token] for token in made))
            model = llama_model.quantized(source, path, group)
            exact = reference.logits(model, whole[:-1], "bf16")
            wrong = np.linalg.norm(run.logits - exact, axis=1) / np.linalg.norm(exact, axis=1)
            self.assertLess(wrong.max(), TOLERANCE)
            np.testing.assert_array_equal(made, run.logits.argmax(1)[len(self.prompt) - 1:])
            # The model before the quantization finds the document as likely, nearly.
            difference = likelihoods(source) - likelihoods(model)
            differences.append(float(np.abs(difference).mean()))
            losses.append(float(difference.mean()))
        print("mean difference of the log-likelihood of a token: int8 {:.4f}, int4 {:.4f}".format(*differences))
        print("loss of a token of the document, in nats: {:.3f}, with int8 {:+.5f}, with int4 {:+.5f}".format(
            -likelihoods(source).mean(), *losses))
        self.assertLess(differences[0], 0.05)
        self.assertLess(differences[1], 0.5)
        self.assertLess(abs(losses[0]), 0.02)
        self.assertLess(abs(losses[1]), 0.2)


if __name__ == "__main__":
    unittest_main.main()
