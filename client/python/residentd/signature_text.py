"""Fills in the structured form of parameters from the text of a signature, for daemons that do not
return it."""

from __future__ import annotations

import re
from typing import Any

_PARAMETER = re.compile(r"\s*(\w+):\s*(in|out|inout|scalar)\s+(strided\s+)?([\w|]+)\s*(\[[^\]]*\])?"
                        r"\s*(?:=\s*([^,\s]+))?\s*(?:,|$)")


def complete(operator: Any) -> None:
    """Sets shape, strided and default of a resident.v1.Operator if they are absent."""
    if any(p.shape or p.strided or p.WhichOneof("default") for p in operator.parameters):
        return
    for parameter, match in zip(operator.parameters, _PARAMETER.finditer(operator.signature)):
        _, kind, strided, dtype, shape, default = match.groups()
        parameter.strided = bool(strided)
        for dim in (shape or "[]")[1:-1].replace(" ", "").split(","):
            if dim.isdigit():
                parameter.shape.add(size=int(dim))
            elif dim.startswith("*"):
                kind = "broadcast" if dim.endswith("~") else "spread"
                parameter.shape.add(**{kind: dim.strip("*~")})
            elif dim:
                parameter.shape.add(name=dim)
        if default is not None:
            if dtype in ("f32", "f64", "f16", "bf16"):
                parameter.default_f64 = float(default)
            else:
                parameter.default_i64 = int(default)
