#!/usr/bin/python3
"""Trains a small model of the Llama form on documents and writes it as Hugging Face's transformers do:

  deploy/demo/train.py FOLDER DOCUMENT.md...

FOLDER gets config.json, model.safetensors (bfloat16) and tokenizer.json (a list of pieces of text,
by token). Seeded: the same documents and the same products of matrices (deploy/demo/products.py) give
the same model. Takes 27 s of processor time on two threads with $RESIDENT_OPS_LIBRARY, 90 s on one
without.

  --steps N     steps of the optimizer (default 600)
"""

import argparse
import json
import math
import pathlib
import re
import struct
import sys
import time

sys.dont_write_bytecode = True
import numpy as np

import pieces
import products
import tiny_llama

SEED = 7
PIECES = 512
SEQUENCES = 8
POSITIONS = 64
# Positions of config.json: the model has learned distances up to POSITIONS.
CONTEXT = 128
RATE = 6e-3
WARM_UP_STEPS = 20


def prose(markdown):
    """The paragraphs and items of a document as lines, without code, tables and links' targets."""
    text = re.sub(r"```.*?```|<!--.*?-->", "\n\n", markdown, flags=re.S)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    lines = []
    for line in text.split("\n"):
        line = line.strip()
        if re.match(r"[|#>]", line):
            line = ""
        item = re.match(r"(?:[*-]|\d+\.) +(.*)", line)
        if item or not line or not lines:
            lines.append(item.group(1) if item else line)
        else:
            lines[-1] = (lines[-1] + " " + line).strip() if lines[-1] else line
    kept = [line for line in lines if len(line) >= 40]
    return "".join(re.sub(r"[^ -~]+", "", re.sub(r"[`*]", "", line)) + pieces.END for line in kept)


def train(tokens, vocab, steps, multiply, report):
    """The model after `steps` steps; `report(step, loss)` is called after each."""
    rng = np.random.default_rng(SEED)
    model = tiny_llama.TinyLlama(tiny_llama.Shape(vocab=vocab), rng, multiply=multiply)
    optimizer = tiny_llama.AdamW(model)
    for step in range(steps):
        starts = rng.integers(0, len(tokens) - POSITIONS, SEQUENCES)
        batch = tokens[starts[:, None] + np.arange(POSITIONS + 1)]
        loss, gradients = model.loss_and_gradients(batch)
        cooled = 0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2
        optimizer.step(gradients, RATE * min(1, (step + 1) / WARM_UP_STEPS) * cooled)
        report(step + 1, loss)
    return model


def bfloat16(values):
    """The bytes of values rounded to nearest, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + (((bits >> 16) & 1) + 0x7fff).astype(np.uint32)) >> 16).astype(np.uint16).tobytes()


def write(folder, model, table):
    folder.mkdir(parents=True, exist_ok=True)
    header, content = {}, b""
    for name, values in model.tensors().items():
        data = bfloat16(values)
        header[name] = {"dtype": "BF16", "shape": list(values.shape),
                        "data_offsets": [len(content), len(content) + len(data)]}
        content += data
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + content)
    config = model.shape.config(CONTEXT, table.index(pieces.END))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "tokenizer.json").write_text(json.dumps(table) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("documents", type=pathlib.Path, nargs="+")
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps is {}. Fix: give at least 1".format(options.steps))
    text = "".join(prose(document.read_text()) for document in options.documents)
    if len(text) < 2000:
        parser.error("the documents have {} characters of prose, and at least 2000 are needed. Fix: "
                     "give more documents".format(len(text)))
    table, tokens = pieces.learn(text, PIECES)
    began, losses = time.monotonic(), []

    def report(step, loss):
        losses.append(loss)
        if step % 50 == 0 or step == options.steps:
            print("   step {:4} of {}: loss {:.2f} nats per token of {:.1f} characters".format(
                step, options.steps, np.mean(losses[-20:]), len(text) / len(tokens)), flush=True)

    with products.Products.open() as used:
        model = train(tokens, len(table), options.steps, used.multiply, report)
        print("   {:,} parameters, {:,} characters of documents, {:.0f} s with the products of {}".format(
            model.flat.size, len(text), time.monotonic() - began, used.name), flush=True)
    write(options.folder, model, table)


if __name__ == "__main__":
    main()
