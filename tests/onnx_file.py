"""Writes small models in the form of ONNX, without the package `onnx`.

    model([value("x", ["batch", 4])], [tensor("w", [4, 3], w)], [node("MatMul", "x w", "y")], ["y"])

Field numbers are those of onnx.proto.
"""

import struct

FLOAT = 1
INT_ATTRIBUTE = 2
OPSET = 17


def _varint(number):
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def _field(number, value):
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def value(name, shape):
    """An input of floats; a dimension is a number or a name."""
    dims = b"".join(_field(1, _field(1 if isinstance(size, int) else 2, size)) for size in shape)
    return _field(1, name) + _field(2, _field(1, _field(1, FLOAT) + _field(2, dims)))


def tensor(name, shape, values=(), location=None):
    """A weight: its values, or the file with its data."""
    out = b"".join(_field(1, size) for size in shape) + _field(2, FLOAT) + _field(8, name)
    if location is None:
        return out + _field(9, struct.pack("<{}f".format(len(values)), *values))
    return out + _field(13, _field(1, "location") + _field(2, location)) + _field(14, 1)


def node(operator, inputs, outputs, **attributes):
    """Names are separated by spaces; attributes are integers."""
    out = b"".join(_field(1, name) for name in inputs.split())
    out += b"".join(_field(2, name) for name in outputs.split()) + _field(4, operator)
    for name, number in attributes.items():
        out += _field(5, _field(1, name) + _field(3, number) + _field(20, INT_ATTRIBUTE))
    return out


def model(inputs, weights, nodes, outputs):
    graph = b"".join(_field(1, each) for each in nodes) + _field(2, "test")
    graph += b"".join(_field(5, each) for each in weights)
    graph += b"".join(_field(11, each) for each in inputs)
    graph += b"".join(_field(12, _field(1, name)) for name in outputs)
    return _field(1, 8) + _field(7, graph) + _field(8, _field(2, OPSET))


def affine(w, b, location=None):
    """y = relu(x w' + b) for float inputs x of the shape [batch, columns]; w: rows. location: the file
    with the contents of w."""
    columns = len(w[0])
    return model(
        [value("x", ["batch", columns])],
        [tensor("w", [len(w), columns], [number for row in w for number in row], location),
         tensor("b", [len(b)], b)],
        [node("Gemm", "x w b", "h", transB=1), node("Relu", "h", "y")], ["y"])


def tokens(w):
    """y = relu(x w) for float inputs x of the shape [batch, seq, columns]; w: rows, one for each column of x."""
    return model([value("x", ["batch", "seq", len(w)])],
                 [tensor("w", [len(w), len(w[0])], [number for row in w for number in row])],
                 [node("MatMul", "x w", "h"), node("Relu", "h", "y")], ["y"])
