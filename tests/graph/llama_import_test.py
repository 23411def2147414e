#!/usr/bin/python3
"""What `residentctl graph llama` refuses, and what it finds in a model's folder, without a daemon. The
last line is `N passed, N failed`.
"""

import json
import os
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "cli")]
import numpy as np  # noqa: E402

import daemon as daemons  # noqa: E402
import llama_client  # noqa: E402
import llama_model  # noqa: E402
import unittest_main  # noqa: E402
from daemon import USAGE  # noqa: E402


class ImportTest(daemons.CommandTest):
    def setUp(self):
        self.model = llama_model.random_model(np.random.default_rng(1), layers=1, vocab=20)
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        self.model.write(self.folder)

    def convert(self, *flags):
        return daemons.ctl("graph", "llama", str(self.folder), *flags)

    def refuse(self, *parts, flags=()):
        result = self.check(self.convert(*flags), USAGE)
        for part in (*parts, "Fix: "):
            self.assertIn(part, result.err)

    def configure(self, **values):
        config = {**self.model.config, **values}
        text = json.dumps({key: value for key, value in config.items() if value != "absent"})
        (self.folder / "config.json").write_text(text)

    def test_values_of_the_config(self):
        for values, parts in (
                ({"architectures": ["GPT2LMHeadModel"]}, ("GPT2LMHeadModel", "LlamaForCausalLM")),
                ({"architectures": []}, ("architectures",)),
                ({"hidden_act": "gelu"}, ("hidden_act", "'gelu'")),
                ({"hidden_size": "absent"}, ("hidden_size", "missing")),
                ({"num_hidden_layers": 0}, ("num_hidden_layers", "is 0", "1024")),
                ({"num_hidden_layers": 2000}, ("is 2000", "1024")),
                ({"num_hidden_layers": 1.5}, ("is 1.5",)),
                ({"vocab_size": 1 << 63}, ("vocab_size", str(1 << 63))),
                ({"num_key_value_heads": 3}, ("num_key_value_heads", "is 3", "4")),
                ({"head_dim": 15}, ("head_dim", "is 15", "even")),
                ({"head_dim": 300}, ("is 300", "256")),
                ({"rms_norm_eps": -1}, ("rms_norm_eps",)),
                ({"quantization_config": {"bits": 4}}, ("quantization_config",)),
                ({"partial_rotary_factor": 0.5}, ("partial_rotary_factor", "0.5")),
                ({"architectures": ["MistralForCausalLM"], "sliding_window": 1},
                 ("sliding_window", "is 1", "from 2")),
                ({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True},
                 ("use_sliding_window",)),
                ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, ("rope_type", "yarn", "llama3")),
                ({"rope_scaling": {"rope_type": "llama3", "factor": 4}}, ("low_freq_factor",)),
                ({"eos_token_id": 20}, ("eos_token_id", "is 20", "19")),
                ({"eos_token_id": list(range(20)) * 4}, ("has 80 values", "64"))):
            with self.subTest(values=values):
                self.configure(**values)
                self.refuse(*parts)

    def test_damaged_files(self):
        (self.folder / "config.json").write_text("{")
        self.refuse("config.json", "not valid JSON in line 1, column ")
        self.configure()
        (self.folder / "model.safetensors").write_bytes(b"\0" * 4)
        self.refuse("model.safetensors", "not a valid safetensors file")
        (self.folder / "model.safetensors").unlink()
        self.refuse("model.safetensors.index.json")
        index = self.folder / "model.safetensors.index.json"
        index.write_text('{"weight_map": {"model.norm.weight": "../other.safetensors"}}')
        self.refuse("'../other.safetensors'")
        index.write_text('{"weight_map": {"model.norm.weight": "other.safetensors"}}')
        self.refuse("other.safetensors", "cannot be read")
        (self.folder / "config.json").unlink()
        self.refuse("config.json")

    def test_weights_that_disagree_with_the_config(self):
        def change(name, value):
            tensors = self.model.tensors()
            if value is None:
                del tensors[name]
            else:
                tensors[name] = value
            llama_model.write_safetensors(self.folder / "model.safetensors", tensors)

        key = "model.layers.0.self_attn.k_proj.weight"
        change(key, None)
        self.refuse(key, "no tensor")
        change(key, ("F32", [16, 64], bytes(4096)))
        self.refuse(key, "16x64", "32x64", "num_key_value_heads")
        change(key, ("I32", [32, 64], bytes(8192)))
        self.refuse(key, "i32", "bf16")
        change("model.layers.0.self_attn.q_norm.weight", ("F32", [16], bytes(64)))
        self.refuse("q_norm", "not part of a LlamaForCausalLM")
        # Those have no effect.
        change("model.layers.0.self_attn.rotary_emb.inv_freq", ("F32", [8], bytes(32)))
        self.check(self.convert(), daemons.OK)

    def test_options(self):
        self.refuse("--max_context is 5000", "4096", flags=["--max_context=5000"])
        self.configure(architectures=["MistralForCausalLM"], sliding_window=16)
        self.refuse("--max_context is 17", "sliding_window", flags=["--max_context=17"])
        graph = llama_client.parse_graph(self.check(self.convert(), daemons.OK).out)
        self.assertEqual(llama_client.context_of(graph), 16)
        self.configure()
        self.refuse("--batch is 17", "16", flags=["--batch=17"])
        self.refuse("--batch is 0", flags=["--batch=0"])
        self.refuse("--batch", "--prompt", flags=["--batch=2", "--prompt=3"])
        self.configure(eos_token_id=3)
        for flags, stops in (([], True), (["--batch=2"], False)):
            result = self.check(self.convert(*flags), daemons.OK)
            self.assertEqual(llama_client.parse_graph(result.out).loop.HasField("stop"), stops)
            self.assertEqual("does not end at a stop token" in result.err, not stops)
        self.configure()
        self.refuse("--prompt is 41", "40", "--max_context", flags=["--max_context=40", "--prompt=41"])
        self.refuse("--top_k", "--sample", flags=["--top_k=3"])
        self.refuse("--top_k is 21", "20", flags=["--sample", "--top_k=21"])
        self.refuse("--top_p is 2", flags=["--sample", "--top_p=2"])
        self.refuse("128", "--prefix", flags=["--prefix=" + "p" * 120])
        self.refuse("f64", flags=["--cache=f64"])

    def test_options_of_quantized_weights(self):
        path = self.folder / "quantized.safetensors"
        out = f"--weights_out={path}"
        self.refuse("int2", "int8", flags=["--weights=int2"])
        self.refuse("--group", "--weights", flags=["--group=32"])
        self.refuse("--weights_out", "--weights", flags=[out])
        self.refuse("--group is 0", flags=["--weights=int8", "--group=0"])
        self.refuse("--group is 16777217", flags=["--weights=int4", "--group=16777217"])
        model = self.folder / "model.safetensors"
        before = model.read_bytes()
        self.refuse("model.safetensors", "is a file of the model",
                    flags=["--weights=int8", f"--weights_out={model}"])
        self.assertEqual(model.read_bytes(), before)
        self.refuse("128", "--prefix", flags=["--weights=int8", "--prefix=" + "p" * 85])
        # A file that is replaced by a rename must be a file, and not that of the graph.
        self.refuse("--weights_out is not a file", flags=["--weights=int8", "--weights_out=/dev/null"])
        graph = self.folder / "graph.json"
        for same in (graph, self.folder / "." / "other" / ".." / "graph.json"):
            (self.folder / "other").mkdir(exist_ok=True)
            self.refuse("--weights_out is the file of --out, too",
                        flags=["--weights=int8", f"--weights_out={same}", f"--out={graph}"])
            graph.write_text("exists")
        self.assertFalse(path.exists())
        result = self.check(self.convert("--weights=int8", f"--weights_out={self.folder}/none/file"), USAGE)
        self.assertIn("none", result.err)
        # The same bits each time.
        files = []
        for flags in (["--weights=int4"], ["--weights=int4", "--group=128", "--prompt=4"]):
            self.check(self.convert(*flags, out), daemons.OK)
            files.append(path.read_bytes())
        self.assertEqual(*files)
        self.assertLess(len(files[0]), len(before) / 2)

    def test_weights_that_cannot_be_quantized(self):
        for value in (np.nan, np.inf, 1e6):
            tensors = self.model.tensors()
            name = "model.layers.0.mlp.up_proj.weight"
            weights = self.model.weights[name].copy()
            weights[7, 3] = value
            tensors[name] = ("F32", weights.shape, llama_model.encode(weights, "f32"))
            llama_model.write_safetensors(self.folder / "model.safetensors", tensors)
            path = self.folder / "quantized.safetensors"
            path.write_bytes(b"as it was")
            self.refuse(name, "row 7", "458528", flags=["--weights=int4", f"--weights_out={path}"])
            self.assertEqual(path.read_bytes(), b"as it was")
            # Nothing else remains in the folder.
            self.assertEqual(len(list(self.folder.iterdir())), 3)

    def test_weights_that_are_quantized_already(self):
        path = self.folder / "quantized.safetensors"
        self.check(self.convert("--weights=int8", f"--weights_out={path}"), daemons.OK)
        path.rename(self.folder / "model.safetensors")
        self.refuse("_proj.weight", "i8", "before it was quantized")
        self.refuse("_proj.weight", "i8", "before it was quantized", flags=["--weights=int8"])


if __name__ == "__main__":
    unittest_main.main()
