"""The families of operators that have a test in this folder: FAMILY_test.cc."""

FAMILIES = [
    "attention",
    "decoding",
    "elementwise",
    "matrix",
    "normalization",
    "reduction",
    "training",
]
