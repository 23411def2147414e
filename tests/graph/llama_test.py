#!/usr/bin/python3
"""Graphs of `residentctl graph llama` on a real daemon beside a float64 reference in NumPy.

$RESIDENT_SEED repeats a run; each failure names the seed. The last line is `N passed, N failed`.
"""

import json
import os
import pathlib
import random
import re
import shlex
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "cli")]
import numpy as np  # noqa: E402
from google.protobuf import json_format  # noqa: E402

import daemon as daemons  # noqa: E402
import llama_client  # noqa: E402
import llama_model  # noqa: E402
import llama_reference as reference  # noqa: E402
import unittest_main  # noqa: E402
from llama_client import residentd  # noqa: E402

TUTORIAL = pathlib.Path(os.environ.get("GRAPH_TUTORIAL") or "docs/graphs.md").resolve()
SEED = int(os.environ.get("RESIDENT_SEED") or random.randrange(1 << 31))
# ||logits - reference|| / ||reference|| of a step: the bounds of the operator library for products,
# by the dtype of the cache.
TOLERANCE = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}
# The same for a prompt in one step with weights of bfloat16 and a cache of f32, and on a GPU for short
# rows of such weights in any step: x of each product is two bfloat16 parts, 16 bits, so that a product
# has an error of up to 2^-17, and those of the layers add up. 20 random models had at most 1.5e-5.
TOLERANCE_OF_TWO_PARTS = 3e-5
ON_GPU = os.environ.get("RESIDENT_TEST_ENGINE") == "cuda"
# One-sided 95 % quantiles of Student's t for 7 degrees of freedom.
QUANTILE_OF_8 = 1.895
QUANTIZED_PRODUCTS = ("gemv_quant", "gemv_quant_bias", "rmsnorm_gemv_quant", "rmsnorm_gemv_quant_silu_mul")
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}

# Each has another ratio of heads, size of heads, or form.
VARIANTS = {
    "small": {},
    "one_head_for_all_keys": {"heads": 6, "kv_heads": 1, "head_dim": 32, "dtype": "bf16", "vocab": 333,
                              "rope_scaling": LLAMA3, "rope_theta": 500000.0},
    "qkv_bias": {"architecture": "Qwen2ForCausalLM", "bias": True, "heads": 8, "kv_heads": 2,
                 "head_dim": 64, "hidden": 128, "vocab": 256, "dtype": "bf16"},
    "tied_wide_heads": {"heads": 4, "kv_heads": 4, "head_dim": 128, "tied": True, "vocab": 300,
                        "dtype": "f16"},
    "all_biases": {"bias": True, "mlp_bias": True, "head_dim": 24, "hidden": 48, "layers": 3,
                   "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "bias_of_attention": {"bias": True, "heads": 8, "kv_heads": 2, "head_dim": 32, "vocab": 200,
                          "dtype": "f16", "layers": 3},
    "all_biases_of_16_bits": {"bias": True, "mlp_bias": True, "hidden": 96, "dtype": "bf16"},
    "mistral": {"architecture": "MistralForCausalLM", "heads": 8, "kv_heads": 4, "head_dim": 64,
                "sliding_window": None, "vocab": 150},
}


def divergences(exact, other, targets):
    """Of each position: the divergence from the exact logits, and how much the negative
    log-likelihood of the next token differs."""
    rows = np.arange(len(targets))
    lost = (reference.log_softmax(exact)[rows, targets] - reference.log_softmax(other)[rows, targets])
    return reference.divergence(exact, other), np.abs(lost)


class LlamaTest(daemons.DaemonTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = llama_client.LlamaClient(cls.daemon.address)
        cls.addClassCleanup(cls.client.__exit__)
        cls.models = 0

    def setUp(self):
        self.rng = np.random.default_rng([SEED, len(self._testMethodName)])
        print("seed", SEED, flush=True)

    def load(self, model, files=1):
        """Writes the model and loads its weights; remembers folder and prefix in it."""
        LlamaTest.models += 1
        model.prefix = f"m{LlamaTest.models}."
        model.flags = []
        model.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        for file in model.write(model.folder, files):
            self.ctl("buffers", "load", f"{model.folder}/{file}", "--prefix=" + model.prefix)
        return model

    def load_quantized(self, model, bits, group=None, files=1):
        """Writes the model, and loads its quantized weights only. Returns the model that they are."""
        LlamaTest.models += 1
        folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        model.write(folder, files)
        flags = [f"--weights=int{bits}"] + ([] if group is None else [f"--group={group}"])
        path = folder + "/quantized.safetensors"
        prefix = f"m{LlamaTest.models}."
        self.ctl("graph", "llama", folder, *flags, "--weights_out=" + path)
        self.ctl("buffers", "load", path, "--prefix=" + prefix)
        loaded = llama_model.quantized(model, path, group or 128)
        loaded.prefix, loaded.folder, loaded.flags = prefix, folder, flags
        self.check_weights(model, loaded, bits)
        return loaded

    def check_weights(self, model, loaded, bits):
        """Errors are at most half of a scale, no scale is larger than needed, and what is not quantized is
        as it was."""
        sources = dict(model.weights)
        if model.config["tie_word_embeddings"]:
            sources["lm_head.weight"] = sources["model.embed_tokens.weight"]
        self.assertEqual(sorted(loaded.weights), sorted(sources))
        layers = model.config["num_hidden_layers"]
        self.assertEqual(len(loaded.scales), 7 * layers + 1)
        for name, source in sources.items():
            if name not in loaded.scales:
                np.testing.assert_array_equal(loaded.weights[name], source, name)
                continue
            scales = loaded.scales[name]
            self.assertLessEqual((np.abs(loaded.weights[name] - source) - 0.5001 * scales).max(), 0, name)
            self.assertLessEqual(scales.max() * (127 if bits == 8 else 7), np.abs(source).max() * 1.002, name)

    def graph(self, model, *flags):
        text = self.ctl("graph", "llama", model.folder, "--prefix=" + model.prefix, *model.flags, *flags).out
        return llama_client.parse_graph(text)

    def executed(self, graph):
        """The operators of the nodes that a run executes."""
        text = json_format.MessageToJson(graph, preserving_proto_field_name=True)
        report = self.ctl("graph", "validate", "-", "--json", stdin=text).json
        operators = {index: node.operator for index, node in enumerate(graph.nodes)}
        for fusion in report.get("fusions", []):
            for index in fusion["nodes"][:-1]:
                operators.pop(index, None)
            operators[fusion["nodes"][-1]] = fusion["operator"]
        return [operators[index] for index in sorted(operators)]

    def random_text(self, model, length):
        return self.rng.integers(0, model.config["vocab_size"], length).tolist()

    def check_steps(self, model, prompt, run, cache):
        """Compares all steps with the reference for the text that the run has seen."""
        self.assertEqual(run.tokens[:len(prompt) - 1], [-1] * (len(prompt) - 1))
        made = run.tokens[len(prompt) - 1:]
        exact = reference.logits(model, prompt + made[:-1], cache)
        lengths = np.linalg.norm(exact, axis=1)
        wrong = np.linalg.norm(run.logits - exact, axis=1) / lengths
        in_parts = ON_GPU and model.dtype == "bf16" and cache == "f32"
        tolerance = TOLERANCE_OF_TWO_PARTS if in_parts else TOLERANCE[cache]
        self.assertLess(wrong.max(), tolerance)
        ordered = np.sort(exact, axis=1)
        certain = ordered[:, -1] - ordered[:, -2] > tolerance * lengths
        best = run.logits.argmax(1)
        np.testing.assert_array_equal(best[certain], exact.argmax(1)[certain])
        np.testing.assert_array_equal(made, best[len(prompt) - 1:])
        return exact, certain

    def check_variant(self, name):
        model = self.load(llama_model.random_model(self.rng, **VARIANTS[name]),
                          files=3 if name == "qkv_bias" else 1)
        for cache in sorted({"f32", model.dtype}):
            # By default the cache has the dtype of the weights.
            flags = [] if cache == model.dtype else ["--cache=" + cache]
            graph = self.graph(model, "--max_context=72", "--logits", *flags)
            prompt = self.random_text(model, 48)
            run = self.client.run(graph, prompt)
            self.assertEqual((run.steps, run.end), (72, "steps"))
            exact, certain = self.check_steps(model, prompt, run, cache)
            self.assertTrue(3 < reference.entropy(exact).mean() < 6)
            self.assertGreater(certain.sum(), 60 if cache == "f32" else 8)

    def test_weights_of_f32(self):
        self.check_variant("small")

    def test_one_head_for_all_keys_and_llama3_positions(self):
        self.check_variant("one_head_for_all_keys")

    def test_bias_of_queries_keys_and_values_in_three_files(self):
        self.check_variant("qkv_bias")

    def test_tied_embeddings_and_wide_heads_in_f16(self):
        self.check_variant("tied_wide_heads")

    def test_all_biases_and_linear_positions(self):
        self.check_variant("all_biases")

    def test_bias_of_attention_with_16_bits(self):
        self.check_variant("bias_of_attention")

    def test_all_biases_with_16_bits(self):
        self.check_variant("all_biases_of_16_bits")

    def test_mistral(self):
        self.check_variant("mistral")

    def check_quantized(self, name):
        """Graphs with 8 and 4 bits beside the reference for the weights that were written. A cache in
        another dtype than f32 is rounded as without quantization, which check_variant tests."""
        for bits, group in ((8, None), (4, 32)):
            with self.subTest(seed=SEED, bits=bits):
                source = llama_model.random_model(self.rng, **VARIANTS[name])
                model = self.load_quantized(source, bits, group, files=3 if name == "qkv_bias" else 1)
                graph = self.graph(model, "--max_context=72", "--logits", "--cache=f32")
                operators = self.executed(graph)
                layers = model.config["num_hidden_layers"]
                # One of them multiplies with two matrices.
                products = operators.count("rmsnorm_gemv_quant_silu_mul") + sum(
                    operators.count(each) for each in QUANTIZED_PRODUCTS)
                self.assertEqual((products, operators.count("gemv")), (7 * layers + 1, 0))
                prompt = self.random_text(model, 48)
                run = self.client.run(graph, prompt)
                self.assertEqual((run.steps, run.end), (72, "steps"))
                _, certain = self.check_steps(model, prompt, run, "f32")
                self.assertGreater(certain.sum(), 60)

    def test_quantized_weights_of_f32(self):
        self.check_quantized("small")

    def test_quantized_with_one_head_for_all_keys_and_llama3_positions(self):
        self.check_quantized("one_head_for_all_keys")

    def test_quantized_with_bias_of_queries_keys_and_values_in_three_files(self):
        self.check_quantized("qkv_bias")

    def test_quantized_with_tied_embeddings_and_wide_heads_in_f16(self):
        self.check_quantized("tied_wide_heads")

    def test_quantized_with_all_biases_and_linear_positions(self):
        self.check_quantized("all_biases")

    def test_quantized_with_bias_of_attention(self):
        self.check_quantized("bias_of_attention")

    def test_quantized_with_all_biases_of_16_bits(self):
        self.check_quantized("all_biases_of_16_bits")

    def test_quantized_mistral(self):
        self.check_quantized("mistral")

    def test_quantized_random_forms(self):
        for _ in range(4):
            values = {
                "heads": 2 * int(self.rng.integers(1, 5)), "kv_heads": 2, "tied": bool(self.rng.integers(2)),
                "head_dim": int(self.rng.choice([16, 20, 64])), "bias": bool(self.rng.integers(2)),
                "dtype": str(self.rng.choice(["f32", "f16", "bf16"])),
                "hidden": int(self.rng.integers(33, 130)), "vocab": int(self.rng.integers(90, 400)),
                # Of an odd number, half of a byte is left over.
                "intermediate": 1 + 2 * int(self.rng.integers(1, 100)),
            }
            bits, group = int(self.rng.choice([8, 4])), int(self.rng.integers(1, 150))
            with self.subTest(seed=SEED, bits=bits, group=group, **values):
                model = self.load_quantized(llama_model.random_model(self.rng, **values), bits, group)
                graph = self.graph(model, "--max_context=40", "--logits", "--cache=f32")
                prompt = self.random_text(model, int(self.rng.integers(1, 30)))
                self.check_steps(model, prompt, self.client.run(graph, prompt), "f32")

    def test_a_single_column_is_not_quantized(self):
        source = llama_model.random_model(self.rng, intermediate=1, layers=1)
        folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        source.write(folder)
        path = folder + "/quantized.safetensors"
        graph = llama_client.parse_graph(self.ctl("graph", "llama", folder, "--weights=int4", "--logits",
                                                  "--prefix=column.", "--max_context=16",
                                                  "--weights_out=" + path).out)
        self.ctl("buffers", "load", path, "--prefix=column.")
        down = next(node for node in graph.nodes if node.name == "layer0.down")
        self.assertEqual(down.operator, "gemv")
        model = llama_model.quantized(source, path, 128)
        prompt = self.random_text(model, 5)
        self.check_steps(model, prompt, self.client.run(graph, prompt), "f32")

    def test_quantized_prompt_in_one_step(self):
        for name, values in VARIANTS.items():
            for bits in (8, 4):
                with self.subTest(seed=SEED, variant=name, bits=bits):
                    model = self.load_quantized(llama_model.random_model(self.rng, **values), bits, 32)
                    weights = None
                    if model.dtype == "bf16":
                        # For the products of matrices, but not for those of a vector, weights are rounded to
                        # the dtype that they had before they were quantized.
                        weights = {key: llama_model.rounded(w, "bf16") for key, w in model.weights.items()}
                    self.check_prompt(model, int(self.rng.integers(2, 48)), "f32", prompt_weights=weights)

    def test_random_forms(self):
        for _ in range(4):
            kv_heads = int(self.rng.integers(1, 4))
            values = {
                "heads": kv_heads * int(self.rng.integers(1, 5)), "kv_heads": kv_heads,
                "head_dim": int(self.rng.choice([16, 64, 128])), "tied": bool(self.rng.integers(2)),
                "dtype": str(self.rng.choice(["f32", "f16", "bf16"])),
                "layers": int(self.rng.integers(1, 4)), "hidden": int(self.rng.integers(33, 130)),
                "intermediate": int(self.rng.integers(20, 200)),
                "vocab": int(self.rng.integers(90, 700)), "bias": bool(self.rng.integers(2)),
            }
            with self.subTest(seed=SEED, **values):
                model = self.load(llama_model.random_model(self.rng, **values))
                graph = self.graph(model, "--max_context=40", "--logits", "--cache=f32")
                prompt = self.random_text(model, int(self.rng.integers(1, 30)))
                run = self.client.run(graph, prompt)
                self.check_steps(model, prompt, run, "f32")

    def check_batch(self, model, lengths, cache):
        """Texts of one graph beside the reference, each at its own position of its own prompt."""
        graph = self.graph(model, f"--batch={len(lengths)}", "--max_context=48", "--logits",
                           "--cache=" + cache)
        prompts = [self.random_text(model, length) for length in lengths]
        runs = self.client.run_batch(graph, prompts)
        for prompt, run in zip(prompts, runs, strict=True):
            self.assertEqual((run.steps, run.end), (48, "steps"))
            self.check_steps(model, prompt, run, cache)
        return prompts, runs

    def test_several_texts(self):
        for name, values in VARIANTS.items():
            model = self.load(llama_model.random_model(self.rng, **values))
            for cache in sorted({"f32", model.dtype}):
                with self.subTest(seed=SEED, variant=name, cache=cache):
                    self.check_batch(model, self.rng.integers(1, 40, int(self.rng.integers(2, 6))), cache)

    def test_most_texts(self):
        self.check_batch(self.load(llama_model.random_model(self.rng, dtype="bf16")),
                         self.rng.integers(1, 40, 16), "f32")

    def test_several_texts_with_weights_of_few_bits(self):
        for bits in (8, 4):
            model = self.load_quantized(llama_model.random_model(self.rng, dtype="bf16", bias=True), bits)
            with self.subTest(seed=SEED, bits=bits):
                self.check_batch(model, [7, 1, 20], "f32")

    def test_each_of_several_texts_is_as_if_it_were_alone(self):
        """With weights of f32 the CPU engine computes both with the same instructions; a GPU has forms of
        operators for one row."""
        model = self.load(llama_model.random_model(self.rng))
        alone = self.graph(model, "--max_context=48", "--logits")
        prompts, runs = self.check_batch(model, [9, 30, 2, 9], "f32")
        for prompt, run in zip(prompts, runs, strict=True):
            single = self.client.run(alone, prompt)
            if ON_GPU:
                self.check_steps(model, prompt, single, "f32")
                continue
            self.assertEqual(run.tokens, single.tokens)
            np.testing.assert_array_equal(run.logits, single.logits)

    def test_a_place_of_a_session_gets_another_text(self):
        model = self.load(llama_model.random_model(self.rng))
        batch = self.graph(model, "--batch=2", "--max_context=40", "--logits")
        session = self.client.open(batch)
        long, short, new = [self.random_text(model, length) for length in (14, 3, 6)]
        runs = [self.client.run_batch(batch, [long, short], steps=9, session=session),
                self.client.run_batch(batch, [long, new], steps=11, positions=(None, 0), session=session),
                self.client.run_batch(batch, [long, new], session=session)]
        # The cache of the long text is full.
        self.assertEqual([run.steps for run, _ in runs], [9, 11, 20])
        self.assertEqual(runs[2][0].end, "scalar_range")
        for prompt, parts in ((long, [first for first, _ in runs]), (short, [runs[0][1]]),
                              (new, [second for _, second in runs[1:]])):
            whole = parts[0]
            for part in parts[1:]:
                whole.tokens += part.tokens
                whole.logits = np.concatenate([whole.logits, part.logits])
            self.check_steps(model, prompt, whole, "f32")
        with self.assertRaises(residentd.Error) as refused:
            self.client.run_batch(batch, [long, new], steps=1, session=session)
        self.assertIn("pos0", str(refused.exception))

    def test_texts_are_exchanged_between_runs(self):
        """Text 1 begins in a graph that reads a prompt and ends in one for a single text; its place
        in the batch is taken by another text."""
        flags = ["--max_context=48", "--logits"]
        model = self.load(llama_model.random_model(self.rng))
        alone, reading = self.graph(model, *flags), self.graph(model, "--prompt=12", *flags)
        batch = self.graph(model, "--batch=2", *flags)
        texts = [self.random_text(model, length) for length in (3, 12, 5)]
        states = [self.client.states(alone) for _ in texts]

        def bound(*numbers):
            return {f"{name}{place}": buffer for place, number in enumerate(numbers)
                    for name, buffer in states[number].items()}

        made = [[], self.client.run(reading, texts[1], states=states[1]).tokens, []]
        for numbers, positions in (((0, 1), (0, 12)), ((0, 2), (10, 0))):
            for number, run in zip(numbers, self.client.run_batch(
                    batch, [texts[number] for number in numbers], steps=10, positions=positions,
                    states=bound(*numbers)), strict=True):
                made[number] += run.tokens
        made[1] += self.client.run(alone, texts[1], steps=5, pos=22, states=states[1]).tokens
        for text, tokens, hidden in zip(texts, made, (2, 0, 4), strict=True):
            self.assertEqual(tokens[:hidden], [-1] * hidden)
            whole = text + tokens[hidden:]
            exact = reference.logits(model, whole[:-1], "f32")
            rows = np.arange(len(text) - 1, len(exact))
            wrong = exact[rows].max(1) - exact[rows, whole[len(text):]]
            self.assertLess(wrong.max(), TOLERANCE["f32"] * np.linalg.norm(exact, axis=1).max())

    def draw_the_same_in_each_run(self):
        """For comparisons of draws of two graphs: their logits differ by rounding, so that in few
        models a draw at the boundary of two tokens chooses another one."""
        self.rng = np.random.default_rng(1)

    def test_several_texts_draw_with_seeds_of_their_own(self):
        self.draw_the_same_in_each_run()
        model = self.load(llama_model.random_model(self.rng))
        prompt = self.random_text(model, 4)
        for flags in ([], ["--top_k=9"], ["--top_p=0.8"]):
            flags = ["--max_context=40", "--sample", *flags]
            alone = self.graph(model, *flags)
            runs = self.client.run_batch(self.graph(model, "--batch=3", *flags), [prompt] * 3, seed=7)
            self.assertEqual([run.tokens for run in runs],
                             [self.client.run(alone, prompt, seed=7 + i).tokens for i in range(3)])
            self.assertEqual(len({tuple(run.tokens) for run in runs}), 3)

    def test_parts_of_keys_in_a_large_context(self):
        model = self.load(llama_model.random_model(self.rng, dtype="bf16", heads=8, head_dim=64))
        graph = self.graph(model, "--max_context=512", "--logits", "--cache=f32")
        operators = self.executed(graph)
        self.assertEqual(operators.count("attention_decode"), 2)
        parts = next(tensor for tensor in graph.tensors if tensor.name == "part_sums")
        self.assertEqual([dim.size for dim in parts.shape], [8, 16])
        prompt = self.random_text(model, 300)
        self.check_steps(model, prompt, self.client.run(graph, prompt), "f32")

    def test_several_texts_share_the_parts_of_keys(self):
        model = self.load(llama_model.random_model(self.rng, heads=8, kv_heads=8))
        for texts, context, parts in ((1, 4096, 16), (4, 4096, 4), (16, 4096, 2), (16, 2048, 1),
                                      (4, 64, 2), (16, 64, 1)):
            graph = self.graph(model, f"--max_context={context}", f"--batch={texts}")
            tensor = next(each for each in graph.tensors if each.name.startswith("part_sums"))
            self.assertEqual([dim.size for dim in tensor.shape], [8, parts], (texts, context))

    def test_gated_products_are_one_node_where_it_is_faster(self):
        for variant, flags, fused in (("qkv_bias", (), True), ("tied_wide_heads", (), True),
                                      ("small", (), False), ("all_biases", (), False),
                                      ("qkv_bias", ("--batch=3",), True),
                                      ("tied_wide_heads", ("--batch=3",), False),
                                      ("qkv_bias", ("--prompt=8",), False)):
            with self.subTest(variant=variant, flags=flags):
                model = self.load(llama_model.random_model(self.rng, **VARIANTS[variant]))
                graph = self.graph(model, "--max_context=40", *flags)
                operators = self.executed(graph)
                layers = model.config["num_hidden_layers"]
                self.assertGreater(layers, 0)
                gated = sum(operators.count(each)
                            for each in ("gemv_silu_mul", "rmsnorm_gemv_silu_mul"))
                self.assertEqual((gated, operators.count("silu_mul")),
                                 (layers, 0) if fused else (0, layers))

    def test_norms_are_part_of_the_products_where_it_is_faster(self):
        # Of a model with L layers: rmsnorm, rmsnorm_residual, rmsnorm_gemv, rmsnorm_gemv_qkv,
        # rmsnorm_gemv_silu_mul.
        # A product with a bias of its own leaves the addition to the residual to the next norm.
        for variant, flags, norms, sums, products, stacked, gated in (
                ("qkv_bias", (), (0, 0), (0, 0), (1, 0), (0, 1), (0, 1)),
                ("tied_wide_heads", (), (0, 0), (0, 0), (1, 0), (0, 1), (0, 1)),
                ("bias_of_attention", (), (0, 0), (0, 1), (1, 0), (0, 1), (0, 0)),
                ("all_biases_of_16_bits", (), (0, 0), (0, 2), (0, 0), (1, 0), (0, 0)),
                ("small", (), (1, 0), (0, 2), (0, 0), (0, 0), (0, 0)),
                ("all_biases", (), (1, 0), (0, 2), (0, 0), (0, 0), (0, 0)),
                # Several texts have these products with weights of bf16 only.
                ("qkv_bias", ("--batch=3",), (0, 0), (0, 0), (1, 3), (0, 0), (0, 1)),
                ("all_biases_of_16_bits", ("--batch=16",), (0, 0), (0, 2), (3, 0), (0, 0), (0, 0)),
                ("tied_wide_heads", ("--batch=3",), (1, 0), (0, 2), (0, 0), (0, 0), (0, 0)),
                ("qkv_bias", ("--prompt=8",), (1, 0), (0, 2), (0, 0), (0, 0), (0, 0))):
            with self.subTest(variant=variant, flags=flags):
                model = self.load(llama_model.random_model(self.rng, **VARIANTS[variant]))
                graph = self.graph(model, "--max_context=40", *flags)
                operators = self.executed(graph)
                layers = model.config["num_hidden_layers"]
                self.assertGreater(layers, 0)
                for operator, (once, of_layer) in (
                        ("rmsnorm", norms), ("rmsnorm_residual", sums), ("rmsnorm_gemv", products),
                        ("rmsnorm_gemv_qkv", stacked), ("rmsnorm_gemv_silu_mul", gated)):
                    self.assertEqual(operators.count(operator), once + of_layer * layers, operator)

    def test_quantized_graphs_have_the_nodes_of_those_of_16_bits(self):
        """One for each, where norms are separate as well. Only gemv_silu_mul, which has a norm in front,
        and rmsnorm_gemv_qkv are several. Norms of f32, and groups that are no power of two, leave norms and silu_mul separate."""
        same = {"gemv": ("gemv_quant", "gemv_quant_bias"), "rmsnorm_gemv": ("rmsnorm_gemv_quant",),
                "rmsnorm_gemv_silu_mul": ("rmsnorm_gemv_quant_silu_mul",)}
        several = {"gemv_silu_mul": ["gemv_quant", "gemv_quant", "silu_mul"],
                   "rmsnorm_gemv_qkv": 3 * ["rmsnorm_gemv_quant"]}
        for variant in ("qkv_bias", "tied_wide_heads", "mistral", "bias_of_attention", "all_biases_of_16_bits"):
            values = {"dtype": "bf16", **VARIANTS[variant]}
            model = self.load(llama_model.random_model(self.rng, **values))
            expected = [part for operator in self.executed(self.graph(model, "--max_context=40"))
                        for part in several.get(operator, [operator])]
            for bits, group in ((8, 128), (4, 32), (8, 1 << 20)):
                with self.subTest(variant=variant, bits=bits, group=group):
                    graph = self.graph(model, "--max_context=40", f"--weights=int{bits}", f"--group={group}")
                    found = self.executed(graph)
                    self.assertEqual(len(found), len(expected))
                    for operator, quantized in zip(expected, found):
                        self.assertIn(quantized, same.get(operator, (operator,)))
        for dtype, group in (("f32", 128), ("bf16", 48), ("bf16", 16)):
            with self.subTest(dtype=dtype, group=group):
                model = self.load(llama_model.random_model(self.rng, dtype=dtype))
                graph = self.graph(model, "--max_context=40", "--weights=int4", f"--group={group}")
                operators = self.executed(graph)
                layers = model.config["num_hidden_layers"]
                self.assertEqual([operators.count(each) for each in (
                    "rmsnorm", "rmsnorm_residual", "silu_mul", "gemv_quant_bias", "gemv_quant")],
                    [2 * layers + 1, 0, layers, 2 * layers, 5 * layers + 1])

    def check_prompt(self, model, length, cache, *flags, prompt_weights=None):
        """A prompt that is read in one step, and a decode that continues after it, beside the reference
        for the text that both have seen. `prompt_weights`: what the layers have while they read the prompt,
        if these are not the model's weights."""
        flags = [*flags, "--max_context=64", "--logits", "--cache=" + cache]
        reading = self.graph(model, "--prompt=48", *flags)
        decoding = self.graph(model, *flags)
        states = self.client.states(decoding)
        self.assertEqual(sorted(self.client.states(reading)), sorted(states))
        prompt = self.random_text(model, length)
        read = self.client.run(reading, prompt, states=states)
        self.assertEqual((read.steps, len(read.tokens)), (1, 1))
        # Without the text: the state has the next token.
        rest = self.client.run(decoding, [0] * length, steps=64 - length, pos=length, states=states)
        made = read.tokens + rest.tokens
        self.assertEqual(len(made), 65 - length)
        first = (length, prompt_weights) if prompt_weights else None
        exact = reference.logits(model, prompt + made[:-1], cache, first)[length - 1:]
        logits = np.concatenate([read.logits, rest.logits])
        lengths = np.linalg.norm(exact, axis=1)
        in_parts = model.dtype == "bf16" and cache == "f32"
        tolerance = TOLERANCE_OF_TWO_PARTS if in_parts else TOLERANCE[cache]
        self.assertLess((np.linalg.norm(logits - exact, axis=1) / lengths).max(), tolerance)
        np.testing.assert_array_equal(made, logits.argmax(1))

    def test_prompt_in_one_step(self):
        for name, values in VARIANTS.items():
            model = self.load(llama_model.random_model(self.rng, **values))
            for cache in sorted({"f32", model.dtype}):
                with self.subTest(seed=SEED, variant=name, cache=cache):
                    self.check_prompt(model, int(self.rng.integers(2, 48)), cache)

    def test_shortest_and_longest_prompt_in_one_step(self):
        model = self.load(llama_model.random_model(self.rng, dtype="bf16", bias=True))
        for length in (1, 48):
            with self.subTest(seed=SEED, length=length):
                self.check_prompt(model, length, "f32")
        graph = self.graph(model, "--max_context=64", "--prompt=48")
        one = self.graph(model, "--max_context=64", "--prompt=1", "--logits")
        read = self.client.run(one, [3])
        exact = reference.logits(model, [3], "f32")[-1]
        self.assertLess(np.linalg.norm(read.logits[0] - exact), TOLERANCE["bf16"] * np.linalg.norm(exact))
        with self.assertRaises(residentd.Error) as refused:
            self.client.run(graph, self.random_text(model, 48), prompt_len=49)
        self.assertIn("prompt_len", str(refused.exception))

    def test_prompt_in_one_step_draws_the_token_of_the_last_position(self):
        self.draw_the_same_in_each_run()
        model = self.load(llama_model.random_model(self.rng))
        prompt = self.random_text(model, 7)
        for flags in ([], ["--top_k=9"], ["--top_p=0.8"]):
            flags = ["--max_context=40", "--sample", *flags]
            reading, decoding = self.graph(model, "--prompt=12", *flags), self.graph(model, *flags)
            drawn = [[self.client.run(graph, prompt, steps=steps, seed=seed).tokens[-1]
                      for seed in range(12)] for graph, steps in ((reading, 1), (decoding, 7))]
            self.assertEqual(*drawn)
            self.assertGreater(len(set(drawn[0])), 1)

    def gate(self, other_arm, name):
        """The upper 95 % bounds, over 8 prompts, of how much larger our mean divergence and our mean
        loss of log-likelihood are than those of the other arm."""
        model = self.load(llama_model.random_model(self.rng, dtype="bf16", heads=8, kv_heads=2,
                                                   head_dim=64, hidden=128, layers=3, vocab=384))
        graph = self.graph(model, "--max_context=128", "--logits")
        excess = []
        for _ in range(8):
            prompt = self.random_text(model, 128)
            targets = np.array(self.random_text(model, 128))
            run = self.client.run(graph, prompt)
            exact = reference.logits(model, prompt)
            self.assertTrue(3 < reference.entropy(exact).mean() < 6)
            ours = divergences(exact, run.logits.astype(np.float64), targets)
            theirs = divergences(exact, other_arm(model, prompt), targets)
            excess.append([ours[i].mean() - theirs[i].mean() for i in range(2)])
            self.assertGreater(theirs[0].mean(), 0)
        excess = np.array(excess)
        upper = excess.mean(0) + QUANTILE_OF_8 * excess.std(0, ddof=1) / np.sqrt(len(excess))
        print("excess over {}: KL {:.2e} nats, |dNLL| {:.2e} (upper 95 % bounds)".format(name, *upper))
        self.assertLessEqual(upper[0], 0)
        self.assertLessEqual(upper[1], 0)

    def test_gate_against_bf16_as_pytorch_computes(self):
        self.gate(reference.logits_bf16, "simulated bfloat16")

    def test_gate_against_pytorch(self):
        try:
            import llama_torch
        except ImportError as missing:
            self.skipTest("this Python has no PyTorch: {}".format(missing))
        self.gate(llama_torch.logits, "PyTorch")

    def test_many_runs_of_one_step_equal_one_run(self):
        model = self.load(llama_model.random_model(self.rng, dtype="bf16", vocab=200))
        graph = self.graph(model, "--max_context=256", "--logits")
        prompt = self.random_text(model, 9)
        whole = self.client.run(graph, prompt, steps=200)
        states = self.client.states(graph)
        self.assertEqual(sorted(states), ["cache", "text"])
        runs = [self.client.run(graph, prompt, steps=1, pos=pos, states=states) for pos in range(200)]
        self.assertEqual([run.tokens[0] for run in runs], whole.tokens)
        np.testing.assert_array_equal(np.concatenate([run.logits for run in runs]), whole.logits)

    def test_conversation_continues_with_a_longer_prompt(self):
        model = self.load(llama_model.random_model(self.rng))
        graph = self.graph(model, "--max_context=64", "--logits")
        states = self.client.states(graph)
        prompt = self.random_text(model, 5)
        first = self.client.run(graph, prompt, steps=10, states=states)
        text = prompt + first.tokens[4:]
        # The last token has not been read yet; the next turn begins after it.
        text += self.random_text(model, 6)
        second = self.client.run(graph, text, steps=20, pos=10, states=states)
        hidden = len(text) - 1 - 10
        self.assertEqual(second.tokens[:hidden], [-1] * hidden)
        exact = reference.logits(model, text + second.tokens[hidden:-1], "f32")[10:]
        wrong = np.linalg.norm(second.logits - exact, axis=1) / np.linalg.norm(exact, axis=1)
        self.assertLess(wrong.max(), TOLERANCE["f32"])

    def test_stop_token_ends_the_text_but_not_the_prompt(self):
        model = self.load(llama_model.random_model(self.rng))
        graph = self.graph(model, "--max_context=64")
        self.assertFalse(graph.loop.HasField("stop"))
        with_logits = self.graph(model, "--max_context=64", "--logits")
        stops = []
        for _ in range(100):  # Some texts repeat a token from the beginning.
            prompt = self.random_text(model, 12)
            run = self.client.run(with_logits, prompt)
            made = run.tokens[11:]
            last = next((i for i in range(2, len(made)) if made[i] not in made[:i]), None)
            if last is None:
                continue
            # Tokens that the model would choose within the prompt are no stop values either.
            stops = sorted({*prompt[1:], *run.logits[:11].argmax(1).tolist()} - set(made[:last]))
            break
        self.assertGreater(len(stops), 0)
        stops = sorted({made[last], *stops})
        model.config["eos_token_id"] = stops
        (pathlib.Path(model.folder) / "config.json").write_text(json.dumps(model.config))
        run = self.client.run(self.graph(model, "--max_context=64"), prompt)
        self.assertEqual(run.end, "stop")
        self.assertEqual(run.tokens, [-1] * 11 + made[:last + 1])

    def test_stop_tokens_of_the_generation_config(self):
        model = self.load(llama_model.random_model(self.rng, eos_token_id=1))
        (pathlib.Path(model.folder) / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
        self.assertEqual(list(self.graph(model).loop.stop.values), [2, 3])

    def test_sampling(self):
        model = self.load(llama_model.random_model(self.rng))
        prompt = self.random_text(model, 4)
        greedy = self.client.run(self.graph(model, "--max_context=40"), prompt).tokens
        graph = self.graph(model, "--max_context=40", "--sample")
        self.assertEqual(self.client.run(graph, prompt, temperature=0).tokens, greedy)
        drawn = [self.client.run(graph, prompt, seed=seed).tokens for seed in (1, 1, 2)]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])
        one = self.graph(model, "--max_context=40", "--sample", "--top_k=1")
        self.assertEqual(self.client.run(one, prompt, seed=5).tokens, greedy)
        few = self.graph(model, "--max_context=40", "--sample", "--top_p=1e-6")
        self.assertEqual(self.client.run(few, prompt, seed=5).tokens, greedy)


    def test_commands_of_the_tutorial(self):
        model = llama_model.random_model(self.rng, vocab=40)
        folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        model.write(folder / "model")
        section = TUTORIAL.read_text().split("\n## A decode\n")[1].split("\n## ")[0]
        outs = []
        for line in "".join(re.findall(r"```console\n(.*?)```", section, re.S)).splitlines():
            words = shlex.split(line.removeprefix("$ residentctl "))
            words = [str(folder / word) if re.match(r"(model|(decode|prompt|batch)\.json|int8\.(json|safetensors))", word) else word
                     for word in words]
            outs.append(self.ctl(*words).out)
        self.assertEqual(len(outs), 13)
        tokens, first, rest, quantized = [
            [int(token) for token in re.findall(r"step \d+: token (-?\d+)\n", out)]
            for out in (outs[2], outs[6], outs[7], outs[12])]
        self.assertEqual(len(tokens), 12)
        self.assertEqual(first + rest, tokens[2:])
        self.assertEqual(tokens[:2], [-1, -1])
        both = [pair.split() for pair in re.findall(r"step \d+: token (-?\d+ -?\d+)\n", outs[9])]
        self.assertEqual([int(first) for first, _ in both], tokens)
        self.assertNotIn("-1", [second for _, second in both])
        exact = reference.logits(model, [5, 17, 3] + tokens[2:-1], "f32")[2:]
        chosen = exact[np.arange(10), tokens[2:]]
        self.assertLess((exact.max(1) - chosen).max(), 1e-3)
        self.assertEqual(len(quantized), 12)
        rounded = llama_model.quantized(model, folder / "int8.safetensors", 128)
        exact = reference.logits(rounded, [5, 17, 3] + quantized[2:-1], "f32")[2:]
        chosen = exact[np.arange(10), quantized[2:]]
        self.assertLess((exact.max(1) - chosen).max(), 1e-3)


if __name__ == "__main__":
    unittest_main.main()
