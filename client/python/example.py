"""Scores rows with a daemon at 127.0.0.1:50051. It passes `mypy --strict`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import residentd

Rows = npt.NDArray[np.float32]


def score(rd: residentd.Client, rows: Rows, weights: residentd.Buffer) -> Rows:
    """The softmax of each row, times weights that stay on the device."""
    softmax = rd.op("softmax")
    scores: Rows = rd.op("mul")(softmax(rows), weights)
    return scores


def pipeline(rd: residentd.Client) -> residentd.Graph:
    """The sum of each row, times a factor, as a graph of two nodes."""
    b = residentd.GraphBuilder("pipeline", rd)
    factor: residentd.GraphScalar = b.real("factor", least=0, most=10, initial=1)
    rows: residentd.GraphTensor = b.input("rows", (3, 4))
    b.output("sums", b.call("scale", b.call("sum_rows", rows), s=factor))
    return b.build()


def main() -> None:
    rows: Rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    with residentd.connect("127.0.0.1:50051", client_name="example") as rd:
        with rd.upload([1, 2, 3, 4], "f32") as weights:
            print(score(rd, rows, weights))
            result: residentd.Result = rd.op("sum_rows").run(rows)
            print(result.value, "by version", result.version)
        with rd.graphs.load(pipeline(rd)) as loaded:
            run: residentd.GraphResult = loaded.run(rows=rows, factor=2)
            print(run.outputs["sums"], "in", run.steps, "step")


if __name__ == "__main__":
    main()
