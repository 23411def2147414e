"""Torch tensors as residentd describes them: dtypes, and tensors of arrays of shared memory."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np
import torch

from .. import dtypes
from ..dtypes import DType
from ..errors import InvalidArgument

# By the name of residentd.
TORCH: Dict[str, torch.dtype] = {
    "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64, "i32": torch.int32,
    "i64": torch.int64, "u8": torch.uint8, "i8": torch.int8, "u32": torch.uint32}
DTYPES: Dict[torch.dtype, DType] = {torch_dtype: dtypes.BY_NAME[name] for name, torch_dtype in TORCH.items()}


def dtype_of(dtype: torch.dtype) -> DType:
    """The element type of residentd. InvalidArgument if there is none."""
    found = DTYPES.get(dtype)
    if found is None:
        raise InvalidArgument("residentd has no element type for {}".format(dtype),
                              "use one of " + ", ".join(str(each) for each in DTYPES))
    return found


def from_array(array: "np.ndarray[Any, Any]", dtype: DType) -> torch.Tensor:
    """The tensor of an array's memory, which it keeps."""
    bits = array.view(np.ndarray)
    if dtype is dtypes.BF16:
        return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(bits)
