"""Runs a graph that `residentctl graph llama` wrote, with the Python package.

    with LlamaClient(daemon.address) as client:
        run = client.run(graph, prompt=[1, 2, 3], steps=10)
        print(run.tokens, run.logits.shape)
        session = client.open(graph)                       # Its states and scalars stay.
        next = client.run(graph, prompt=[1, 2, 3], steps=1, session=session)
        runs = client.run_batch(batch, [[1, 2], [3]], steps=10)    # A Run for each text.
"""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent.parent / "python"))
from support import residentd  # noqa: E402

# Runs of 1,000 steps beside other work.
TIMEOUT_S = 600


def parse_graph(text):
    return residentd.Graph.from_json(text).message


def context_of(graph):
    """The positions of the graph's cache, or of each of its caches."""
    return next(tensor.shape[2].size for tensor in graph.tensors if tensor.name in ("cache", "cache0"))


def prompt_of(graph):
    """The tokens that fit into the graph's prompt, or each of its prompts."""
    return next(tensor.shape[0].size for tensor in graph.tensors if tensor.name in ("prompt", "prompt0"))


class Run:
    """What a run returned for one of `texts` texts. `tokens` and `logits` have a row for each step."""

    def __init__(self, result, text=0, texts=1):
        records = {name: record.reshape(result.steps, texts, -1)[:, text]
                   for name, record in result.records.items()}
        self.tokens = records["token"][:, 0].tolist()
        self.logits = records.get("step_logits", np.array([]))
        self.steps = result.steps
        self.end = result.end


class LlamaClient:
    """A session."""

    def __init__(self, address):
        self.rd = residentd.connect(address, timeout=TIMEOUT_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.rd.close()

    def states(self, graph):
        """Buffers of zeros for the graph's states, by name."""
        return {tensor.name: self.rd.upload(np.zeros([dim.size for dim in tensor.shape], np.int8),
                                            residentd.dtypes.BY_NUMBER[tensor.dtype].name)
                for tensor in graph.tensors
                if tensor.kind == residentd.graph.KINDS["state"] and not tensor.alias_of}

    def open(self, graph):
        """Loads the graph and opens a graph session."""
        return self.rd.graphs.load(residentd.Graph(graph)).open()

    def run(self, graph, prompt, steps=0, pos=0, states=None, session=None, **scalars):
        """A run from position `pos`; a graph that reads a prompt always begins with the first. With
        `session`, the run continues where the session is, whatever `pos` is."""
        scalars = {"prompt_len": len(prompt), **scalars}
        if session is None and graph.HasField("loop"):
            scalars.update(pos=pos, position=pos)
        return Run(self._run(graph, session, steps, {"prompt": prompt}, states, scalars))

    def run_batch(self, graph, prompts, steps=0, positions=(), states=None, session=None, **scalars):
        """A run of a graph for several texts. positions[i]: where text i begins; a text without one
        begins where the session is, or with the first token."""
        texts = range(len(prompts))
        for text in texts:
            scalars[f"prompt_len{text}"] = len(prompts[text])
        for text, position in enumerate(positions):
            if position is not None:
                scalars.update({f"pos{text}": position, f"position{text}": position})
        done = self._run(graph, session, steps, {f"prompt{text}": prompts[text] for text in texts}, states,
                         scalars)
        return [Run(done, text, len(prompts)) for text in texts]

    def _run(self, graph, session, steps, prompts, states, scalars):
        values = {**(states or {}), **scalars}
        for name, prompt in prompts.items():
            values[name] = np.zeros(prompt_of(graph), np.int64)
            values[name][:len(prompt)] = prompt
        if session is None:
            return self.rd.graphs.run(residentd.Graph(graph), values, max_steps=steps)
        return session.run(values, max_steps=steps)
