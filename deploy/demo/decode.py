#!/usr/bin/python3
"""Trains a small language model on this repository's documents, loads it into a running daemon, and
prints the text that a task graph decodes, piece by piece as records arrive. deploy/demo.sh runs it.

  deploy/demo/decode.py RESIDENTCTL FOLDER DOCUMENT.md...

FOLDER gets the model, the graphs and figures.json. $RESIDENTD_SERVER is the daemon's address.

  --steps N     steps of training (default: that of deploy/demo/train.py)

Exit status: 0 only if each token of the greedy texts is the one that NumPy finds most likely too.
"""

import argparse
import json
import pathlib
import struct
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import numpy as np

import pieces
import tiny_llama

PROMPTS = ["The daemon", "A task", "If the engine", "Each client"]
TEMPERATURE = 0.4
PREFIX = "demo."
# How much larger a logit of NumPy may be than that of the token that was chosen: the cache has
# bfloat16 elements.
TOLERANCE = 0.1


class Decoder:
    """A graph of the model. Each call is a run; records are printed as they come."""

    def __init__(self, residentctl, folder, *flags):
        self.residentctl = str(residentctl)
        self.folder = folder
        self.file = folder / ("graph" + "".join(flags) + ".json")
        self.call("graph", "llama", str(folder), "--prefix=" + PREFIX, "--out", str(self.file), *flags)
        graph = json.loads(self.file.read_text())
        self.nodes = len(graph["nodes"])
        self.context = int(graph["loop"]["max_steps"])
        self.table = json.loads((folder / "tokenizer.json").read_text())

    def call(self, *words):
        subprocess.run([self.residentctl, *words], check=True, stdout=subprocess.DEVNULL)

    def run(self, prompt, show, **scalars):
        """Decodes until the end of the paragraph; returns the tokens, and the steps after the first one
        with their time in seconds. `show`: whether to print the text."""
        tokens = pieces.Pieces(self.table).encode(prompt)
        data = self.folder / "prompt.i64"
        data.write_bytes(struct.pack(f"<{self.context}q", *tokens, *[0] * (self.context - len(tokens))))
        words = [f"{name}={value}" for name, value in dict(scalars, prompt_len=len(tokens)).items()]
        process = subprocess.Popen([self.residentctl, "graph", "run", str(self.file), "--json",
                                    f"prompt=@{data}", *words], stdout=subprocess.PIPE, text=True)
        if show:
            print("   " + prompt, end="", flush=True)
        steps, began = 0, 0.0
        for line in process.stdout:
            if not line.startswith('{"step"'):
                process.stdout.read()  # The result.
                break
            token = json.loads(line)["records"]["token"]["values"][0]
            if token >= 0:
                tokens.append(token)
                if show:
                    print(self.table[token], end="", flush=True)
            steps += 1
            began = began or time.monotonic()
        seconds = time.monotonic() - began
        if show and tokens[-1] != 0:
            print("...")
        if process.wait() != 0:
            raise SystemExit("decode.py: a run of the graph failed")
        return tokens, steps - 1, seconds


def read_model(folder):
    """The model in NumPy, from the files."""
    config = json.loads((folder / "config.json").read_text())
    model = tiny_llama.TinyLlama(tiny_llama.Shape(config["vocab_size"]), np.random.default_rng(0))
    content = (folder / "model.safetensors").read_bytes()
    begin = 8 + struct.unpack("<Q", content[:8])[0]
    for name, tensor in json.loads(content[8:begin]).items():
        first, last = (begin + offset for offset in tensor["data_offsets"])
        bits = np.frombuffer(content[first:last], np.uint16).astype(np.uint32) << 16
        model.weights[name][:] = bits.view(np.float32).reshape(tensor["shape"])
    return model


def count_wrong(model, tokens, prompt_length):
    """How many tokens after the prompt are not the most likely ones."""
    logits = model.logits(np.array([tokens[:-1]]))[prompt_length - 1:]
    chosen = logits[np.arange(len(logits)), tokens[prompt_length:]]
    return int((logits.max(1) - chosen > TOLERANCE).sum())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("residentctl", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("documents", nargs="+")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    folder = options.folder
    print("   Training a model of the Llama form on the documents of this repository:\n", flush=True)
    flags = [] if options.steps is None else [f"--steps={options.steps}"]
    train = pathlib.Path(__file__).resolve().with_name("train.py")
    subprocess.run([sys.executable, str(train), str(folder), *options.documents, *flags], check=True)

    subprocess.run([str(options.residentctl.resolve()), "buffers", "load",
                    str(folder / "model.safetensors"), "--prefix=" + PREFIX],
                   check=True, stdout=subprocess.DEVNULL)
    sampling = Decoder(options.residentctl.resolve(), folder, "--sample")
    print(f"\n   A task graph of {sampling.nodes} nodes computes a token in each step. Texts drawn with "
          f"temperature {TEMPERATURE}:\n")
    for seed, prompt in enumerate(PROMPTS):
        sampling.run(prompt, True, temperature=TEMPERATURE, seed=seed + 1)
    greedy = Decoder(options.residentctl.resolve(), folder)
    model, made, wrong, all_steps, all_seconds = read_model(folder), 0, 0, 0, 0.0
    for prompt in PROMPTS:
        tokens, steps, seconds = greedy.run(prompt, False)
        length = len(pieces.Pieces(greedy.table).encode(prompt))
        made += len(tokens) - length
        wrong += count_wrong(model, tokens, length)
        all_steps += steps
        all_seconds += seconds
    speed = all_steps / all_seconds if all_seconds else 0.0
    figures = {"tokens": made, "wrong": wrong, "tokens_per_second": speed, "nodes": greedy.nodes}
    (folder / "figures.json").write_text(json.dumps(figures))
    print(f"\n   Without chance: {made} tokens, {speed:.0f} steps/s; NumPy disagrees with {wrong} of them", flush=True)
    sys.exit(0 if wrong == 0 else 1)


if __name__ == "__main__":
    main()
