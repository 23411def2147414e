#!/usr/bin/env python3
"""An input is used as it was written, or refused with a reason: lists, numbers, addresses and files of
residentctl and of `residentd serve` (docs/architecture.md).

The last line is `N passed, N failed`.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402
from daemon import FAILED, OK, REFUSED, USAGE  # noqa: E402

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 16, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "eos_token_id": 2,
}
BITS = {"F32": 32, "BOOL": 8, "F8_E4M3": 8, "F4": 4, "C64": 64, "I16": 16, "NEW": 32}


def weights():
    """Shapes of a model with CONFIG."""
    layer = "model.layers.0."
    return {
        "model.embed_tokens.weight": (16, 8), "lm_head.weight": (16, 8), "model.norm.weight": (8,),
        layer + "input_layernorm.weight": (8,), layer + "post_attention_layernorm.weight": (8,),
        layer + "self_attn.q_proj.weight": (8, 8), layer + "self_attn.k_proj.weight": (4, 8),
        layer + "self_attn.v_proj.weight": (4, 8), layer + "self_attn.o_proj.weight": (8, 8),
        layer + "mlp.gate_proj.weight": (8, 8), layer + "mlp.up_proj.weight": (8, 8),
        layer + "mlp.down_proj.weight": (8, 8),
    }


def safetensors(tensors):
    """A file: {name: (dtype, shape)}, whose elements of F32 are small and different."""
    header, data = {}, b""
    for name, (dtype, shape) in tensors.items():
        count = 1
        for size in shape:
            count *= size
        size = -(-count * BITS[dtype] // 8)
        values = [((7 * i + len(name)) % 13 - 6) / 8 for i in range(count)]
        content = struct.pack("<{}f".format(count), *values) if dtype == "F32" else bytes(size)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + size]}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class FilesTest(daemons.DaemonTest):
    """With a folder for files, and a daemon."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def model(self, name="model", prefix="", more=(), generation=None, **config):
        """A folder with a model; a value of `config` that is ... removes the key."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        made = {key: value for key, value in dict(CONFIG, **config).items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(made, indent=1))
        if generation is not None:
            (folder / "generation_config.json").write_text(json.dumps(generation))
        tensors = {prefix + key: ("F32", shape) for key, shape in weights().items()}
        (folder / "model.safetensors").write_bytes(safetensors(dict(tensors, **dict(more))))
        return folder

    def refused(self, text, *words, code=USAGE, **options):
        error = self.ctl(*words, code=code, **options).err
        self.assertIn(text, error)
        return error


class Values(FilesTest):
    """Lists and numbers of the command line."""

    def test_items_of_lists(self):
        program = self.folder / "program.s"
        program.write_text("ADD R0, R0, R1\nHALT\n")
        run, flux = ("run", "add", "y=10,20"), ("flux", "run", program)
        for words, text in (
            (run + ("x=1,,2",), "item 2 of x is empty. Fix: give a value between two commas"),
            (run + ("x=,1,2",), "item 1 of x is empty"), (run + ("x=1,2,,",), "item 3 of x is empty"),
            (run + ("x=1, ,2",), "item 2 of x is empty"), (run + ("x=,",), "item 1 of x is empty"),
            (flux + ("--initial=0,,5",), "item 2 of --initial is empty"),
            (flux + ("--registers=0,,1",), "item 2 of --registers is empty"),
            (flux + ("--initial=,5",), "item 1 of --initial is empty"),
            (("ops", "install", "a", "--expr=x", "--example=a.json,,b.json"), "item 2 of --example is empty"),
        ):
            with self.subTest(words=words):
                self.refused(text, *words)
        for text in ("x=1,2", "x=1,2,", "x=1, 2", "x=1 2", "x=1;2"):
            self.assertRegex(self.ctl(*run, text).out, r"out +f32 +2 +11 22")
        self.assertIn("R0  5", self.ctl(*flux, "--initial=0, 5,", "--registers=0,").out)

    def test_numbers(self):
        add = ("run", "add", "y=0")
        for words, text in (
            (add + ("x=16777217",), "'16777217' is not a valid f32, which does not have this number"),
            (add + ("x:f16=2049",), "'2049' is not a valid f16"), (add + ("x:bf16=-257",), "'-257' is not a valid bf16"),
            (add + ("x:f64=9007199254740993",), "is not a valid f64"),
            (add + ("x=1e39",), "'1e39' is not a valid f32"), (add + ("x:f16=70000.5",), "'70000.5' is not a valid f16"),
            (add + ("x=1", "alpha=9007199254740993"), "invalid value '9007199254740993' for alpha"),
            (add + ("x=1", "alpha=1e400"), "invalid value '1e400' for alpha"),
            (("run", "scale", "x=1", "s=16777217"), "invalid value '16777217' for s. Fix: give one number of f32"),
            (("run", "copy", "x:u8=256"), "'256' is not a valid u8"),
        ):
            with self.subTest(words=words):
                self.refused(text, *words)
        for words, value in ((("x=16777216",), "16777216"), (("x=16777218",), "16777218"), (("x=-inf",), "-inf"),
                             (("x:f64=16777217", "out:f64="), "16777217"), (("x=0.1",), "0.1")):
            self.assertRegex(self.ctl("run", "add", "y:f64=0" if "f64" in words[0] else "y=0", *words).out,
                             "out +f.. +1 +" + value)

    def test_flags_and_files_of_roll_outs(self):
        path = self.folder / "operators.yaml"
        path.write_text("version: 1\nset: s\noperators:\n- {name: a, expr: x}\n")
        apply = ("apply", path)
        for words, text in (
            (apply + ("--waves=50%",), "invalid value for --waves"),
            (apply + ("--waves=50%,,100%",), "invalid value for --waves"),
            (apply + ("--waves=50%,20%,100%",), "invalid value for --waves"),
            (apply + ("--max_down=-1",), "invalid value for --max_down"),
            (apply + ("--max_down=101%",), "invalid value for --max_down"),
            (apply + ("--canary_nodes=a,,b",), "item 2 of --canary_nodes is empty"),
            (apply + ("--bake=-1s",), "invalid value for --bake"),
            (apply + ("--lease=999ms",), "invalid value for --lease"),
            (apply + ("--undo", "--again"), "--undo excludes"),
            (apply + ("--targets=dns:///nodes.test",), "nodes.test"),
            (("apply",), "FILE"), (("diff",), "FILE"),
            (("diff", self.folder / "none.yaml"), "none.yaml"),
        ):
            with self.subTest(words=words):
                self.refused(text, *words)
        path.write_text("version: 1\nset: s\noperators:\n- {name: a, exp: x}\n")
        self.refused("operators.yaml:4: unknown key 'exp' of an operator. Fix: did you mean 'expr'?", *apply)

    def test_words_of_the_command_line(self):
        for words, text, code in (
            (("run", "sum", "x:2x3=1,2,3,4,5,6"), "sum needs axes. Fix: give axes=VALUE", USAGE),
            (("run", "fill", "out:2="), "fill needs value. Fix: give value=VALUE", USAGE),
            (("run", "ad", "x=1"), "did you mean 'add'? `residentctl ops list` lists all operators", REFUSED),
            (("run", "qqqqqq", "x=1"), "`residentctl ops list`", REFUSED),
            (("ops", "lst"), "did you mean `residentctl ops list`?", USAGE),
            (("ops", "instal"), "did you mean `residentctl ops install`?", USAGE),
            (("run", "add", "x=1", "y=1", "--op_version=9"), "omit --op_version for the active one", REFUSED),
        ):
            with self.subTest(words=words):
                error = self.refused(text, *words, code=code)
                for wire in ("Operators.", "column", "infer_shape", "version 0"):
                    self.assertNotIn(wire, error)
        self.assertIn("add", self.ctl("ops", "add").out)
        # A scalar with a default that is not the last one.
        self.assertIn("R0", self.refused("no operator", "flux", "run", "--operator=R0", code=REFUSED))

    def test_details_are_explained(self):
        for words, text in (
            (("sum", "x:2x3=1,2,3,4,5,6", "axes=2"), "`out` has the wrong shape for these axes (detail 2). Fix: give "
                                                    "out the axes that remain"),
            (("sum", "x:2x3=1,2,3,4,5,6", "out:2=", "axes=4"), "the bit of an axis that x does not have (detail 1)"),
            (("embedding", "ids:i64=9", "table:2x1=1,2", "out:1x1="), "an index of `ids` is outside of the table"),
            (("gelu", "x=1", "tanh=2"), "tanh is neither 0 nor 1 (detail 1)"),
            (("fill", "out:i32:1=", "value=0.5"), "for i32 the scalar is not a whole number"),
        ):
            with self.subTest(words=words):
                self.refused(text, "run", *words, code=FAILED)

    def test_suggestions_compute_the_same(self):
        for expression, text in (
            ("log10(x)", "write log(x) / 2.302585"), ("sum(x)", "an expression is elementwise; use the operator sum"),
            ("sign(x)", "write x > 0 ? 1 : x < 0 ? -1 : 0"), ("asin(x)", "use one of: abs(x)"),
            ("sqr(x)", "write x * x"), ("max(x)", "write maximum(x, y) for the larger of two"),
            ("sgimoid(x)", "did you mean sigmoid?"),
        ):
            error = self.refused(text, "ops", "install", "a", "--expr", expression, code=REFUSED)
            self.assertEqual("did you mean" in error, expression == "sgimoid(x)", error)
        for name in ("log10", "selu", "tan"):
            self.assertNotIn("did you mean", self.ctl("run", name, "x=1", code=REFUSED).err)

    def test_expressions_with_inputs_and_values(self):
        self.ctl("ops", "install", "behind", "--expr=x, y -> t * t where t = y - x, unused: scalar f32 = 1",
                 "--wait=active")
        self.assertRegex(self.ctl("run", "behind", "x=1", "y=4").out, "out +f32 +1 +9")
        self.assertRegex(self.ctl("run", "behind", "x=4", "y=6", "unused=3").out, "out +f32 +1 +4")

    def test_sources_without_a_signature(self):
        source = self.folder / "doubled.cu.cc"
        source.write_text('extern "C" __global__ void doubled(const float* x, float* out, int n) {}\n')
        error = self.refused("doubled.cu.cc has no `// signature:` comment, and --signature is not given", "ops",
                             "install", "my.doubled", source)
        self.assertIn("RESIDENT_OPERATOR(my_doubled), not a __global__ kernel", error)
        self.assertIn("docs/operators.md", error)
        source.write_text("int f() { return 1; }\n")
        error = self.refused("has no `// signature:` comment", "ops", "install", "f", source)
        self.assertNotIn("__global__", error)
        self.assertNotIn("runtime/model", self.ctl("ops", "install", "f", source, "--signature=x: on f32",
                                                   code=REFUSED).err)

    def test_assembly(self):
        program = self.folder / "far.s"
        for text, expected in (
            ("JMP far\n" + "NOP\n" * 40000 + "far: HALT\n", "jump in two steps"),
            ("JNZ R1, far\n" + "NOP\n" * 300 + "far: HALT\n", "branch to a JMP within this distance"),
            ("LOOP R1, far\nfar: HALT\n", "put the label at or before LOOP"),
            ("MOVI R0, 1 # one\n", "comments begin with ';'"), ("# one\nHALT\n", "comments begin with ';'"),
            ("HALT // end\n", "comments begin with ';'"), ("MOVI R0, , 1\n", "separate operands by single commas"),
        ):
            program.write_text(text)
            error = self.refused(expected, "flux", "asm", program)
            self.assertNotIn("use JMP for a longer distance", error)


class Addresses(FilesTest):
    """Ports of the client and of the daemon."""

    def test_addresses_of_the_client(self):
        port = int(self.daemon.address.rpartition(":")[2])
        text = "it is not HOST:PORT; give a port from 1 to 65535"
        for address in ("127.0.0.1:{}".format(port + 65536), "127.0.0.1:-1", "127.0.0.1", "127.0.0.1:", ":50051",
                        "127.0.0.1:0", "127.0.0.1:65536", "::1:5", "dns:///localhost:{}".format(port + 65536), ""):
            with self.subTest(address=address):
                flag = daemons.ctl("status", "--server=" + address)
                self.assertEqual(flag.code, USAGE, flag)
                self.assertIn(text, flag.err)
                variable = daemons.ctl("status", env={"RESIDENTD_SERVER": address}) if address else flag
                self.assertEqual(variable.code, USAGE, variable)
                self.assertIn(text, variable.err)
        for address in (self.daemon.address, "dns:///" + self.daemon.address, "ipv4:" + self.daemon.address):
            self.check(daemons.ctl("status", "--server=" + address), OK)

    def serve(self, *flags):
        return subprocess.run([str(daemons.RESIDENTD), "serve", "--address=127.0.0.1:0",
                               "--metrics_address=127.0.0.1:0", "--devices=cpu"] + list(flags), capture_output=True,
                              text=True, timeout=daemons.COMMAND_TIMEOUT_S)

    def test_what_another_start_cannot_cure_has_exit_status_two(self):
        for flags, text in (
            (["--address=127.0.0.1"], "127.0.0.1:50051"), (["--address=:50051"], "127.0.0.1:50051"),
            (["--address=127.0.0.1:99999"], "127.0.0.1:50051"), (["--address=127.0.0.1:-1"], "a port from 0 to 65535"),
            (["--metrics_address=127.0.0.1:99999"], "127.0.0.1:9464"), (["--devices=gpu"], "'gpu' is not a device"),
            (["--devices=cpu,,cpu"], "'' is not a device"), (["--devices="], "'' is not a device"),
            (["--metrics_hosts=a,,b"], "give names separated by single commas"), (["--ring_slots=100"], "a power of two"),
            (["--tls_cert=a.pem"], "--tls_key"), (["--address=0.0.0.0:0"], "--insecure_non_loopback"),
        ):
            with self.subTest(flags=flags):
                done = self.serve(*flags)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(text, done.stderr)
                self.assertRegex(done.stderr, "Fix: |fix: ")

    def test_what_another_start_may_cure_has_exit_status_one(self):
        done = self.serve("--address=" + self.daemon.address)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("Address already in use", done.stderr)

    def test_the_first_line_has_the_addresses(self):
        self.assertRegex(self.daemon.log.read_text().splitlines()[0],
                         r"residentd [0-9.]+: serving on 127.0.0.1:\d+ .*metrics at http://127.0.0.1:\d+/metrics")


class Files(FilesTest):
    """Files of models."""

    def test_files_of_another_kind(self):
        path = self.folder / "model.safetensors"
        for content, text in (
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4976698672\n",
             "is a Git LFS pointer, not the file. Fix: run git lfs pull"),
            (b"<!DOCTYPE html><html>", "is an HTML page. Fix: download the file itself"),
            (b"\n <html><body>Not found</body></html>", "is an HTML page"),
            (b"PK\x03\x04" + bytes(60), "is a zip archive, as torch.save writes. Fix: load it with the program"),
            (b"\x80\x02}q\x00." + bytes(60), "is a pickle"), (b"GGUF" + bytes(60), "is a GGUF file"),
            (b'{"weight_map": {}}', "is a JSON text, such as an index"), (b"\x93NUMPY\x01\x00" + bytes(60), "a NumPy array"),
            (b"abc", "is not a valid safetensors file: it is shorter than 8 bytes"),
            (b"\xff" * 16, "is longer than the file of 16 bytes"),
        ):
            path.write_bytes(content)
            self.refused("{} {}".format(path, text) if text.startswith("is a ") else text, "buffers", "load", path)
            model = self.model()
            (model / "model.safetensors").write_bytes(content)
            self.refused(text, "graph", "llama", model)

    def test_dtypes_that_residentd_does_not_have(self):
        path = self.folder / "mask.safetensors"
        for dtype, shape in (("BOOL", (2, 2)), ("F8_E4M3", (3,)), ("F4", (3,)), ("C64", (1,)), ("I16", (2,)), ("NEW", (2,))):
            path.write_bytes(safetensors({"mask": (dtype, shape), "a": ("F32", (2,))}))
            error = self.refused("tensor 'mask' has the dtype '{}', which residentd does not have".format(dtype),
                                 "buffers", "load", path)
            self.assertNotIn("valid", error)
            done = self.ctl("buffers", "load", path, "--skip_unsupported", "--prefix=" + dtype)
            self.assertIn("tensor 'mask' is skipped", done.err)
            self.assertIn(dtype + "a", done.out)
            self.ctl("buffers", "free", dtype + "a")
        # Its size is checked nevertheless.
        content = safetensors({"mask": ("BOOL", (3,))})
        path.write_bytes(content.replace(b"[3]", b"[4]"))
        self.refused("its shape and dtype need 4", "buffers", "load", path)
        model = self.model(more={"model.layers.0.self_attn.bias": ("BOOL", (1, 1, 4, 4))})
        self.refused("tensor 'model.layers.0.self_attn.bias' has the dtype 'BOOL'", "graph", "llama", model)
        done = self.ctl("graph", "llama", model, "--skip_unsupported")
        self.assertIn("is skipped, because residentd does not have its dtype BOOL", done.err)

    def test_several_files(self):
        names = ["model-0000{}-of-00002.safetensors".format(i) for i in (1, 2)]
        for name, tensor in zip(names, "ab"):
            (self.folder / name).write_bytes(safetensors({tensor: ("F32", (2,))}))
        index = self.folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": dict(zip("ab", names))}))
        for words in ([index], [self.folder], [self.folder / name for name in names]):
            done = self.ctl("buffers", "load", *words, "--json").json
            self.assertEqual([buffer["name"] for buffer in done["buffers"]], ["a", "b"])
            self.ctl("buffers", "free", "a", "b")
        self.refused("tensor 'a' is in", "buffers", "load", self.folder / names[0], self.folder / names[0])
        (self.folder / names[1]).unlink()
        self.refused(names[1], "buffers", "load", index)
        self.assertNotIn('"a"', self.ctl("buffers", "list", "--json").out)
        index.write_text('{"weight_map": {"a": "../model.safetensors"}}')
        self.refused("which is not a file's name", "buffers", "load", index)
        empty = self.folder / "empty"
        empty.mkdir()
        self.refused("has neither model.safetensors nor model.safetensors.index.json", "buffers", "load", empty)

    def test_files_that_the_daemon_reads(self):
        (self.folder / "a.safetensors").write_bytes(safetensors({"a": ("F32", (2,)), "mask": ("BOOL", (3,))}))
        (self.folder / "b.safetensors").write_bytes(safetensors({"b": ("F32", (2,))}))
        (self.folder / "lfs.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
        daemon = daemons.Daemon("--load_dir={}".format(self.folder))
        self.addCleanup(daemon.stop)
        load = ("buffers", "load", "--on_daemon")
        refused = daemon.ctl(*load, "a.safetensors")
        self.assertEqual(refused.code, REFUSED, refused)
        self.assertIn("tensor 'mask' has the dtype 'BOOL', which residentd does not have", refused.err)
        done = self.check(daemon.ctl(*load, "--skip_unsupported", "a.safetensors", "b.safetensors"), OK)
        self.assertIn("note: a.safetensors: tensor 'mask' is skipped", done.err)
        self.assertRegex(done.out, r"(?s) a\n.* b\n")
        self.assertIn("is a Git LFS pointer", self.check(daemon.ctl(*load, "lfs.safetensors"), REFUSED).err)

    def test_json_files(self):
        model = self.model()
        config = model / "config.json"
        text = config.read_text()
        config.write_text(text.replace("{", '{"initializer_range": NaN, "a": [Infinity, -Infinity], "b": "NaN",', 1))
        self.ctl("graph", "llama", model)
        config.write_text(text.replace("1e-05", "NaN"))
        self.refused("config.json: 'rms_norm_eps' is \"NaN\" and may be a number above 0", "graph", "llama", model)
        config.write_text(text.replace('"vocab_size": 16,', '"vocab_size": 16'))
        error = self.refused("config.json is not valid JSON in line ", "graph", "llama", model)
        line = 1 + text[:text.index('"vocab_size"')].count("\n")
        self.assertIn("in line {}, column ".format(line + 1), error)
        config.write_text("[1]")
        self.refused("is not a JSON object, but array", "graph", "llama", model)
        config.write_text("version https://git-lfs.github.com/spec/v1\n")
        self.refused("config.json is a Git LFS pointer", "graph", "llama", model)
        examples = self.folder / "examples.json"
        examples.write_text("[\n {x: 1}]")
        self.refused("not valid JSON in line 2, column ", "ops", "install", "a", "--expr=x", "--example={}".format(examples))

    def test_the_file_that_is_wrong_is_named(self):
        model = self.model(generation={"eos_token_id": [2, 40]})
        self.refused("generation_config.json: 'eos_token_id' is 40", "graph", "llama", model)
        self.refused("config.json: 'eos_token_id' is 41", "graph", "llama", self.model("other", eos_token_id=41))
        (model / "generation_config.json").write_text("{")
        self.refused("generation_config.json is not valid JSON", "graph", "llama", model)

    def test_names_with_another_prefix(self):
        for prefix, text in (("_orig_mod.", "(a compiled module was saved)"), ("module.", "DataParallel"),
                             ("base_model.model.", "strip 'base_model.model.'")):
            model = self.model(prefix.strip("."), prefix=prefix)
            error = self.refused("have '{}model.layers.0.self_attn.k_proj.weight'".format(prefix), "graph", "llama", model)
            self.assertIn("strip '{}' from the names".format(prefix), error)
            self.assertIn(text, error)
        model = self.model("base")
        content = {key.replace("model.", "", 1): ("F32", shape) for key, shape in weights().items()}
        (model / "model.safetensors").write_bytes(safetensors(content))
        self.refused("put 'model.' before the names", "graph", "llama", model)

    def test_values_as_in_transformers(self):
        mistral = {"architectures": ["MistralForCausalLM"]}
        for name, config, positions in (("absent", {}, 4096), ("none", {"sliding_window": None}, 8192),
                                        ("large", {"sliding_window": 1 << 20}, 8192),
                                        ("small", {"sliding_window": 16}, 16)):
            model = self.model(name, max_position_embeddings=8192, **mistral, **config)
            self.ctl("graph", "llama", model, "--max_context={}".format(positions))
            self.refused("--max_context is", "graph", "llama", model, "--max_context={}".format(positions + 1))
        self.ctl("graph", "llama", self.model("window", sliding_window=4096, **mistral), "--max_context=16")
        self.ctl("graph", "llama", self.model("act", hidden_act=...))
        self.refused("'hidden_act' is 'gelu'", "graph", "llama", self.model("gelu", hidden_act="gelu"))

    def graph(self, **config):
        """The graph of a model, as JSON without its name."""
        return self.ctl("graph", "llama", self.model("rope", **config), "--max_context=16").out

    def test_rotary_parameters(self):
        linear, default = {"type": "linear", "factor": 4.0}, {"rope_type": "default", "rope_theta": 10000.0}
        alone = self.graph(rope_scaling=linear)
        self.assertNotEqual(alone, self.graph())
        self.assertEqual(alone, self.graph(rope_scaling=linear, rope_parameters=default))
        self.assertEqual(alone, self.graph(rope_scaling={}, rope_parameters=linear))
        self.assertEqual(alone, self.graph(rope_scaling=None, rope_parameters=linear))
        self.assertEqual(self.graph(), self.graph(rope_scaling={}, rope_parameters={}))
        self.assertEqual(self.graph(), self.graph(rope_parameters=default))
        self.assertEqual(self.graph(rope_theta=500.0),
                         self.graph(rope_theta=1.0, rope_parameters={"rope_type": "default", "rope_theta": 500.0}))
        yarn = {"rope_type": "yarn", "factor": 4.0}
        for config, text in (
            ({"rope_scaling": yarn, "rope_parameters": default}, "'rope_scaling.rope_type' is 'yarn'"),
            ({"rope_scaling": {}, "rope_parameters": yarn}, "'rope_parameters.rope_type' is 'yarn'"),
            ({"rope_scaling": {"type": "yarn", "rope_type": "default"}}, "'rope_scaling.type' is yarn, and rope_type is "),
            ({"rope_parameters": {"factor": 4.0}}, "'rope_parameters.factor' is 4, and there is no rope_type that uses it"),
            ({"rope_scaling": {"factor": 4.0}, "rope_parameters": default}, "'rope_scaling.factor' is 4"),
            ({"rope_parameters": {"full_attention": default}}, "'rope_parameters.full_attention'"),
            ({"rope_parameters": dict(default, partial_rotary_factor=0.5)}, "partial_rotary_factor' is '0.5'"),
            ({"rope_scaling": dict(linear, beta_fast=32)}, "'rope_scaling.beta_fast'"),
            ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "rope_parameters": default},
             "'rope_scaling.low_freq_factor' is missing"),
            ({"rope_scaling": "linear"}, "'rope_scaling' is not an object"),
        ):
            with self.subTest(config=config):
                self.refused(text, "graph", "llama", self.model("wrong", **config))

    def test_prompts(self):
        model, graph = self.model(), self.folder / "g.json"
        self.ctl("buffers", "load", model)
        self.addCleanup(lambda: self.ctl("buffers", "free", *weights()))
        self.ctl("graph", "llama", model, "--max_context=16", "--out={}".format(graph))
        whole = self.ctl("graph", "run", graph, "prompt=5,7,3,0*13", "prompt_len=3", "--json").out.splitlines()
        for words in (["prompt=5,7,3"], ["prompt=5,7,3", "prompt_len=3"], ["prompt=5,7,3,0", "prompt_len=3"]):
            short = self.ctl("graph", "run", graph, *words, "--json").out.splitlines()
            self.assertEqual([json.loads(line)["records"] for line in short if line.startswith('{"re')],
                             [json.loads(line)["records"] for line in whole if line.startswith('{"re')])
        for words, text in (
            (["prompt=5,,3"], "item 2 of prompt is empty"), (["prompt=1*17"], "prompt has 17 of its 16 elements"),
            (["prompt=5,7", "prompt_len=3"], "prompt_len is 3, and only 2 values are given"),
            (["prompt=5,7,3", "text=1,2"], "text has 2 of its 31 elements"),
        ):
            self.refused(text, "graph", "run", graph, *words)
        self.refused("the token is outside of the table", "graph", "run", graph, "prompt=5,99,3", code=REFUSED)
        batch = self.folder / "batch.json"
        self.ctl("graph", "llama", model, "--max_context=16", "--batch=2", "--out={}".format(batch))
        self.ctl("graph", "run", batch, "prompt0=5,7", "prompt1=3", "--steps=3")


if __name__ == "__main__":
    unittest_main.main()
