"""Runs a graph that `residentctl graph llama` wrote, over gRPC.

    with LlamaClient(daemon.address) as client:
        run = client.run(graph, prompt=[1, 2, 3], steps=10)
        print(run.tokens, run.logits.shape)
        session = client.open(graph)                       # Its states and scalars stay.
        next = client.run(graph, prompt=[1, 2, 3], steps=1, session=session)
        runs = client.run_batch(batch, [[1, 2], [3]], steps=10)    # A Run for each text.
"""

import os
import sys

import grpc
import numpy as np
from google.protobuf import json_format

sys.path.insert(0, os.environ.get("RESIDENT_PYTHON_PROTOS", "proto"))
from resident.v1 import buffers_pb2, graphs_pb2  # noqa: E402

DTYPES = {graphs_pb2.resident_dot_v1_dot_types__pb2.DTYPE_F32: np.float32,
          graphs_pb2.resident_dot_v1_dot_types__pb2.DTYPE_I64: np.int64}


def parse_graph(text):
    return json_format.Parse(text, graphs_pb2.Graph())


def context_of(graph):
    """The positions of the graph's cache, or of each of its caches."""
    return next(tensor.shape[2].size for tensor in graph.tensors if tensor.name in ("cache", "cache0"))


def prompt_of(graph):
    """The tokens that fit into the graph's prompt, or each of its prompts."""
    return next(tensor.shape[0].size for tensor in graph.tensors if tensor.name in ("prompt", "prompt0"))


class Run:
    """What a run returned for one of `texts` texts. `tokens` and `logits` have a row for each step."""

    def __init__(self, steps, result, text=0, texts=1):
        records = {value.tensor: [] for step in steps for value in step.records}
        for step in steps:
            for value in step.records:
                record = np.frombuffer(value.data, DTYPES[value.dtype]).reshape(texts, -1)
                records[value.tensor].append(record[text])
        self.tokens = [int(record[0]) for record in records["token"]]
        self.logits = np.array(records.get("step_logits", []))
        self.steps = result.steps
        self.end = graphs_pb2.GraphResult.End.Name(result.end)


class LlamaClient:
    """A session."""

    def __init__(self, address):
        limit = [("grpc.max_receive_message_length", 64 << 20)]
        self.channel = grpc.insecure_channel(address, options=limit)
        self.metadata = None
        self.session = self._stream("Sessions/Open", buffers_pb2.OpenSessionRequest(),
                                    buffers_pb2.OpenSessionResponse)
        self.metadata = [("resident-session", next(self.session).session_id)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.session.cancel()
        self.channel.close()

    def _stream(self, method, request, response):
        call = self.channel.unary_stream("/resident.v1." + method,
                                         request_serializer=type(request).SerializeToString,
                                         response_deserializer=response.FromString)
        return call(request, metadata=self.metadata)

    def _call(self, method, request, response):
        call = self.channel.unary_unary("/resident.v1." + method,
                                        request_serializer=type(request).SerializeToString,
                                        response_deserializer=response.FromString)
        return call(request, metadata=self.metadata)

    def allocate(self, dtype, elements):
        """A buffer of zeros."""
        request = buffers_pb2.AllocateRequest(dtype=dtype, shape=[elements])
        buffer = self._call("Buffers/Allocate", request, buffers_pb2.AllocateResponse).buffer.id
        upload = self.channel.stream_unary(
            "/resident.v1.Buffers/Upload",
            request_serializer=buffers_pb2.UploadRequest.SerializeToString,
            response_deserializer=buffers_pb2.UploadResponse.FromString)
        size = {1: 4, 2: 2, 3: 2, 6: 8}[dtype]
        upload(iter([buffers_pb2.UploadRequest(buffer_id=buffer, data=bytes(elements * size))]),
               metadata=self.metadata)
        return buffer

    def states(self, graph):
        """Buffers for the graph's states, by name."""
        return {tensor.name: self.allocate(tensor.dtype, int(np.prod([d.size for d in tensor.shape])))
                for tensor in graph.tensors
                if tensor.kind == graphs_pb2.GraphTensor.KIND_STATE and not tensor.alias_of}

    def open(self, graph):
        """Loads the graph and opens a graph session; returns its id."""
        loaded = self._call("Graphs/Load", graphs_pb2.LoadGraphRequest(graph=graph),
                            graphs_pb2.LoadGraphResponse)
        request = graphs_pb2.OpenGraphSessionRequest(graph_id=loaded.graph_id)
        return self._call("Graphs/OpenSession", request,
                          graphs_pb2.OpenGraphSessionResponse).session.session_id

    def run(self, graph, prompt, steps=0, pos=0, states=None, session=None, **scalars):
        """A run from position `pos`; a graph that reads a prompt always begins with the first. With
        `session`, the run continues where the session is, whatever `pos` is."""
        scalars = {"prompt_len": len(prompt), **scalars}
        if session is None:
            request = graphs_pb2.RunGraphRequest(graph=graph, max_steps=steps)
            if graph.HasField("loop"):
                scalars.update(pos=pos, position=pos)
        else:
            request = graphs_pb2.RunGraphRequest(graph_session=session, max_steps=steps)
        return Run(*self._run(graph, request, {"prompt": prompt}, states, scalars))

    def run_batch(self, graph, prompts, steps=0, positions=(), states=None, session=None, **scalars):
        """A run of a graph for several texts. positions[i]: where text i begins; a text without one
        begins where the session is, or with the first token."""
        target = {"graph": graph} if session is None else {"graph_session": session}
        request = graphs_pb2.RunGraphRequest(max_steps=steps, **target)
        texts = range(len(prompts))
        for text in texts:
            scalars[f"prompt_len{text}"] = len(prompts[text])
        for text, position in enumerate(positions):
            if position is not None:
                scalars.update({f"pos{text}": position, f"position{text}": position})
        done = self._run(graph, request, {f"prompt{text}": prompts[text] for text in texts}, states,
                         scalars)
        return [Run(*done, text, len(prompts)) for text in texts]

    def _run(self, graph, request, prompts, states, scalars):
        """The steps and the result of a run."""
        for name, prompt in prompts.items():
            tokens = np.zeros(prompt_of(graph), np.int64)
            tokens[:len(prompt)] = prompt
            request.bindings.add(tensor=name, data=tokens.tobytes())
        for name, buffer in (states or {}).items():
            request.bindings.add(tensor=name, buffer_id=buffer)
        for name, value in scalars.items():
            request.scalars[name] = value
        events = list(self._stream("Graphs/Run", request, graphs_pb2.RunGraphResponse))
        return [event.step for event in events[:-1]], events[-1].result
