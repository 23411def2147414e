"""The tests of the families of operators in this folder: NAME_test.cc.

A large family has several. tests/gpu builds them, too.
"""

FAMILIES = [
    "attention",
    "attention_16_bit",
    "decoding",
    "elementwise",
    "embedding",
    "gemm",
    "gemv",
    "gemv_quant",
    "normalization",
    "pointwise",
    "reduction",
    "training",
]
