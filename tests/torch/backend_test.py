#!/usr/bin/env python3
"""torch.compile(backend="residentd"): parts of graphs become operators, with torch's results."""

import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torch_support  # noqa: E402
from torch_support import rt, unittest_main  # noqa: E402

from residentd.torch.backend import _Part, states  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def gated(gate, up):
    return F.silu(gate) * up + 1.0


class BackendTest(torch_support.TorchTest):

    def setUp(self):
        super().setUp()
        torch._dynamo.reset()

    def tensors(self, *shapes, dtype=torch.float32):
        generator = torch.Generator().manual_seed(3)
        if DEVICE == "cpu":
            return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
        with rt.pool():
            return [torch.randn(shape, generator=generator).to(dtype).to(DEVICE) for shape in shapes]

    def wait(self):
        """Until no operator is being installed; their names."""
        self.wait_for(lambda: "installing" not in states(self.rd).values())
        self.assertNotIn("refused", states(self.rd).values())
        return set(states(self.rd))

    def test_a_part_becomes_an_operator_with_a_name_of_its_contents(self):
        before = set(states(self.rd))
        gate, up = self.tensors((4, 6), (6,))
        compiled = torch.compile(gated, backend="residentd", fullgraph=True)
        torch_support.close(compiled(gate, up), gated(gate, up))  # In torch.
        new = self.wait() - before
        self.assertEqual(len(new), 1)
        name = new.pop()
        self.assertRegex(name, r"^torch\.[0-9a-f]{16}$")
        torch_support.close(compiled(gate, up), gated(gate, up))
        # Another function that computes the same has the same operator.
        torch._dynamo.reset()
        other = torch.compile(lambda a, b: torch.add(torch.mul(F.silu(a), b), 1.0), backend="residentd", fullgraph=True)
        torch_support.close(other(gate, up), gated(gate, up))
        self.assertEqual(self.wait() - before, {name})

    def test_the_operator_runs(self):
        compiled = torch.compile(gated, backend="residentd", fullgraph=True)
        gate, up = self.tensors((3, 5), (3, 5))
        compiled(gate, up)
        self.wait()
        part = self.part_of(compiled, gate, up)
        part.eager = None  # Nothing but the operator can compute it.
        torch_support.close(compiled(gate, up), gated(gate, up))

    def part_of(self, compiled, *tensors):
        """The part of the graph that was compiled last."""
        found = []
        original = _Part.forward

        def forward(part, *args):
            found.append(part)
            return original(part, *args)

        _Part.forward = forward
        self.addCleanup(setattr, _Part, "forward", original)
        compiled(*tensors)
        self.assertEqual(len(found), 1)
        return found[0]

    def test_other_operations_stay_in_torch(self):
        def model(x, w):
            h = torch.tanh(F.linear(x, w) * 0.5 + 1.0)
            return (torch.exp(-h) + h * h).sum(dim=-1, keepdim=True) * torch.ones_like(x)

        compiled = torch.compile(model, backend="residentd", fullgraph=True)
        x, w = self.tensors((4, 6), (6, 6))
        for _ in range(2):
            torch_support.close(compiled(x, w), model(x, w))
            self.wait()

    def test_a_part_with_several_results(self):
        def model(x):
            t = torch.sigmoid(x) * 2 - 1
            return t, torch.exp(t) + t, torch.cumsum(t, 0)

        compiled = torch.compile(model, backend="residentd", fullgraph=True)
        (x,) = self.tensors((5, 3))
        for _ in range(2):
            for got, want in zip(compiled(x), model(x)):
                torch_support.close(got, want)
            self.wait()

    def test_halves_and_conditions(self):
        def model(x, y):
            return torch.where((x > y) & (x < 2), F.gelu(x), y * 0.1) - x

        compiled = torch.compile(model, backend="residentd", fullgraph=True)
        for dtype in (torch.float16, torch.bfloat16):
            x, y = self.tensors((4, 6), (4, 1), dtype=dtype)
            for _ in range(2):
                torch_support.close(compiled(x, y), model(x, y))
                self.wait()

    def test_dynamic_shapes(self):
        compiled = torch.compile(gated, backend="residentd", fullgraph=True, dynamic=True)
        for rows in (2, 5, 9):
            gate, up = self.tensors((rows, 4), (rows, 4))
            torch_support.close(compiled(gate, up), gated(gate, up))
            self.wait()

    def test_gradients_are_those_of_torch(self):
        compiled = torch.compile(gated, backend="residentd", fullgraph=True)
        results = []
        for function in (gated, compiled, compiled):
            gate, up = (each.clone().requires_grad_() for each in self.tensors((4, 6), (6,)))
            function(gate, up).sum().backward()
            results.append((gate.grad, up.grad))
            self.wait()
        for got in results[1:]:
            torch_support.close(got[0], results[0][0])
            torch_support.close(got[1], results[0][1])

    def test_another_client_finds_the_operators(self):
        compiled = torch.compile(gated, backend="residentd", fullgraph=True)
        gate, up = self.tensors((2, 2), (2, 2))
        compiled(gate, up)
        names = self.wait()
        revision = max(each.revision for each in self.rd.operators.list() if each.name in names)
        failed = []

        def other_thread():
            try:
                with self.connect() as rd, rt.attach(rd):
                    torch._dynamo.reset()
                    again = torch.compile(gated, backend="residentd", fullgraph=True)
                    again(gate, up)
                    self.wait_for(lambda: "active" in states(rd).values())
                    torch_support.close(again(gate, up), gated(gate, up))
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()
        self.assertEqual(failed, [])
        self.assertEqual(max(each.revision for each in self.rd.operators.list() if each.name in names), revision)


if __name__ == "__main__":
    unittest_main.main()
