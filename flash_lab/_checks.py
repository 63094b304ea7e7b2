"""What the public functions refuse, each with one sentence."""

import math
import operator

import numpy as np

FLOATS = (np.float32, np.float64)


def as_float(x, name):
    """x as a float32 or float64 array; whole numbers become float64. Raises ValueError for other dtypes."""
    x = np.asarray(x)
    if x.dtype.kind in "iu":
        return x.astype(np.float64)
    if x.dtype not in FLOATS:
        raise ValueError(f"{name} has dtype {x.dtype}; float32 or float64 is needed: try {name}.astype(np.float32)")
    return x


def check_qkv(Q, K, V, q_ndim=2):
    """Raise ValueError unless shapes and dtypes fit together (q_ndim=1 for a single query)."""
    for name, x, ndim in (("Q" if q_ndim == 2 else "q", Q, q_ndim), ("K", K, 2), ("V", V, 2)):
        if not hasattr(x, "shape") or not hasattr(x, "dtype"):
            raise ValueError(f"{name} is a {type(x).__name__}; an array is needed: try np.array(...)")
        if len(x.shape) != ndim:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; {ndim} dimensions are needed")
        if x.dtype not in FLOATS:
            raise ValueError(f"{name} has dtype {x.dtype}; float32 or float64 is needed: try {name}.astype(np.float32)")
    if Q.shape[-1] != K.shape[1]:
        raise ValueError(f"queries have head size {Q.shape[-1]} and keys {K.shape[1]}; they must be equal")
    if K.shape[0] != V.shape[0]:
        raise ValueError(f"there are {K.shape[0]} keys and {V.shape[0]} values; there must be one value per key")
    if not Q.dtype == K.dtype == V.dtype:
        raise ValueError(f"Q, K, V have dtypes {Q.dtype}, {K.dtype}, {V.dtype}; they must be the same")


def check_block(block, name):
    """block as an int. Raises ValueError unless it is a whole number of at least 1."""
    try:
        size = operator.index(block)
    except TypeError:
        size = 0
    if size < 1 or isinstance(block, bool):
        raise ValueError(f"{name} is {block!r}; a whole number of at least 1 is needed, such as 64")
    return size


def check_scale(scale, d):
    """The scale as a Python float, 1/sqrt(d) for None. Raises ValueError unless it is finite and positive."""
    if scale is None:
        return 1.0 / math.sqrt(max(d, 1))
    if not (isinstance(scale, int | float | np.number) and math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale is {scale!r}; a finite number above 0 is needed, such as 1/sqrt({d})")
    return float(scale)
