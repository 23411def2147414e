#!/usr/bin/python3
"""The small model of the demo (deploy/demo): its gradients, its computation, its table of pieces, and
that training is repeatable. The last line is `N passed, N failed`.
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
sys.path[:0] = [str(HERE), str(HERE.parent), str(DEMO)]
import numpy as np  # noqa: E402

import llama_model  # noqa: E402
import llama_reference as reference  # noqa: E402
import pieces  # noqa: E402
import products  # noqa: E402
import tiny_llama  # noqa: E402
import train  # noqa: E402
import unittest_main  # noqa: E402

SMALL = tiny_llama.Shape(vocab=11, layers=2, hidden=12, heads=4, kv_heads=2, head_dim=6, intermediate=10)
PROSE = ("The daemon keeps one kernel resident, and clients stream their tasks to it.\n\n"
         "| a table |\n\n```\ncode that is left out of the text of a document\n```\n\n"
         "* A task of [a client](client.md) waits for the tasks before it in `the queue`,\n"
         "  which have fewer than 100 elements.\n")


def small_model(seed):
    rng = np.random.default_rng(seed)
    model = tiny_llama.TinyLlama(SMALL, rng, np.float64)
    model.flat += 0.2 * rng.standard_normal(model.flat.size)
    return model


class TinyLlamaTest(unittest.TestCase):
    def test_gradients_equal_finite_differences(self):
        model, rng = small_model(1), np.random.default_rng(2)
        tokens = rng.integers(0, SMALL.vocab, (3, 7))
        _, gradients = model.loss_and_gradients(tokens)
        step, at = 1e-5, 0
        for name, tensor in model.tensors().items():
            chosen = rng.choice(tensor.size, min(tensor.size, 12), replace=False) + at
            at += tensor.size
            for i in chosen:
                value, losses = model.flat[i], []
                for change in (step, -step):
                    model.flat[i] = value + change
                    losses.append(model.loss_and_gradients(tokens)[0])
                model.flat[i] = value
                numeric = (losses[0] - losses[1]) / (2 * step)
                self.assertAlmostEqual(numeric, gradients[i], delta=1e-7 + 1e-6 * abs(numeric), msg=name)

    def test_logits_equal_those_of_the_reference(self):
        model = small_model(3)
        tokens = np.random.default_rng(4).integers(0, SMALL.vocab, 9)
        exact = llama_model.Model(SMALL.config(16, 0), model.tensors(), "f32")
        np.testing.assert_allclose(model.logits(tokens[None]), reference.logits(exact, tokens),
                                   rtol=1e-10, atol=1e-10)

    def test_optimizer_decays_matrices_and_limits_the_gradient(self):
        model = small_model(5)
        before = model.flat.copy()
        optimizer = tiny_llama.AdamW(model, decay=0.1)
        optimizer.step(np.zeros_like(model.flat), rate=0.5)
        decayed = tiny_llama.views(model.flat / before, SMALL)
        for name, ratio in decayed.items():
            np.testing.assert_allclose(ratio, 0.95 if ratio.ndim == 2 else 1, err_msg=name)
        optimizer.step(np.full_like(model.flat, 1e6), rate=0)
        self.assertLess(abs(optimizer.mean).max(), 1)


class PiecesTest(unittest.TestCase):
    def test_pairs_are_merged_from_left_to_right(self):
        tokens = np.array([1, 1, 1, 2, 1, 1])
        np.testing.assert_array_equal(pieces.merge(tokens, 1, 1, 9), [9, 1, 2, 9])
        np.testing.assert_array_equal(pieces.merge(tokens, 1, 2, 9), [1, 1, 9, 1, 1])
        np.testing.assert_array_equal(pieces.merge(tokens, 2, 2, 9), tokens)

    def test_texts_come_back(self):
        text = train.prose(PROSE) * 3
        table, tokens = pieces.learn(text, 80)
        self.assertEqual(len(table), 80)
        self.assertEqual(table[0], pieces.END)
        self.assertEqual("".join(table[token] for token in tokens), text)
        encoded = pieces.Pieces(table).encode(text)
        self.assertEqual("".join(table[token] for token in encoded), text)
        self.assertLess(len(encoded), len(text) / 2)
        with self.assertRaisesRegex(ValueError, "'#'.*Fix: "):
            pieces.Pieces(table).encode("a # b")

    def test_prose_of_a_document(self):
        self.assertEqual(
            train.prose(PROSE),
            "The daemon keeps one kernel resident, and clients stream their tasks to it.\n"
            "A task of a client waits for the tasks before it in the queue, which have fewer than 100 "
            "elements.\n")


class TrainingTest(unittest.TestCase):
    def run_script(self, *words):
        environment = {key: value for key, value in os.environ.items() if key != "RESIDENT_OPS_LIBRARY"}
        return subprocess.run(["/usr/bin/python3", str(DEMO / "train.py"), *map(str, words)],
                              capture_output=True, text=True, env=environment, timeout=200)

    def test_training_is_repeatable_and_the_loss_falls(self):
        rng = np.random.default_rng(6)
        tokens = np.repeat(rng.integers(0, 30, 1000), 2)  # Each second token can be known.
        results = []
        for _ in range(2):
            losses = []
            model = train.train(tokens, 30, 12, np.matmul, lambda _, loss: losses.append(loss))
            results.append(model.flat)
        np.testing.assert_array_equal(*results)
        self.assertLess(losses[-1], losses[0] - 0.3)

    def test_files_of_the_model(self):
        folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        document = folder / "document.md"
        document.write_text(PROSE * 20)
        done = self.run_script(folder / "model", document, "--steps", "1")
        self.assertEqual(done.returncode, 0, done)
        config = json.loads((folder / "model" / "config.json").read_text())
        table = json.loads((folder / "model" / "tokenizer.json").read_text())
        self.assertEqual(config["vocab_size"], len(table))
        self.assertEqual(table[config["eos_token_id"]], pieces.END)
        self.assertGreater((folder / "model" / "model.safetensors").stat().st_size, 2 * 150_000)

    def test_refusals(self):
        folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        document = folder / "document.md"
        document.write_text(PROSE)
        for words, message in (((folder, document), "at least 2000"),
                               ((folder, document, "--steps", "0"), "--steps is 0")):
            done = self.run_script(*words)
            self.assertEqual(done.returncode, 2, done)
            self.assertIn(message, done.stderr)
            self.assertIn("Fix: ", done.stderr)


class ProductsTest(unittest.TestCase):
    def test_products_of_the_library(self):
        library = pathlib.Path("library/libresident_ops.so").resolve()
        os.environ.setdefault("RESIDENT_OPS_LIBRARY", str(library))
        rng = np.random.default_rng(7)

        def matrix(*shape):
            return rng.standard_normal(shape).astype(np.float32)

        with products.Products.open() as library:
            self.assertEqual(library.name, "libresident_ops")
            for a, b in ((matrix(5, 7), matrix(7, 3)), (matrix(300, 96), matrix(192, 96).T),
                         (matrix(512, 300).T, matrix(512, 96)), (matrix(1, 3), matrix(3, 1)),
                         (matrix(6, 5, 4), matrix(6, 4, 7)),
                         (matrix(33, 64, 24), matrix(33, 64, 24).transpose(0, 2, 1))):
                np.testing.assert_allclose(library.multiply(a, b), np.matmul(a, b), rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    unittest_main.main()
