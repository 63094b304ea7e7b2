"""What the public functions refuse, each with one sentence."""

import math
import operator

import numpy as np

from .counting import Counted
from .masks import ALIGNMENTS

FLOATS = (np.float32, np.float64)


def as_float(x, name):
    """x as a float32 or float64 array; whole numbers become float64. Raises ValueError for other dtypes."""
    x = np.asarray(x)
    if x.dtype.kind in "iu":
        return x.astype(np.float64)
    if x.dtype not in FLOATS:
        raise ValueError(f"{name} has dtype {x.dtype}; float32 or float64 is needed: try {name}.astype(np.float32)")
    return x


def check_qkv(Q, K, V, q_ndim=None):
    """Raise ValueError unless shapes, heads and dtypes fit together (q_ndim=1 for a single query)."""
    for name, x in (("Q" if q_ndim is None else "q", Q), ("K", K), ("V", V)):
        if not hasattr(x, "shape") or not hasattr(x, "dtype"):
            raise ValueError(f"{name} is a {type(x).__name__}; an array is needed: try np.array(...)")
        wanted = q_ndim if x is Q and q_ndim else 2
        if len(x.shape) < wanted or (q_ndim and len(x.shape) != wanted):
            raise ValueError(f"{name} has shape {tuple(x.shape)}; {wanted} dimensions are needed")
        if x.dtype not in FLOATS:
            raise ValueError(f"{name} has dtype {x.dtype}; float32 or float64 is needed: try {name}.astype(np.float32)")
    if Q.shape[-1] != K.shape[-1]:
        raise ValueError(f"queries have head size {Q.shape[-1]} and keys {K.shape[-1]}; they must be equal")
    if K.shape[-2] != V.shape[-2]:
        raise ValueError(f"there are {K.shape[-2]} keys and {V.shape[-2]} values; there must be one value per key")
    if not Q.dtype == K.dtype == V.dtype:
        raise ValueError(f"Q, K, V have dtypes {Q.dtype}, {K.dtype}, {V.dtype}; they must be the same")
    if q_ndim is None:
        check_heads(Q.shape[:-2], K.shape[:-2], V.shape[:-2])


def check_heads(q, k, v):
    """Raise ValueError unless the leading dimensions (..., heads) agree, K and V with as many heads or a divisor."""
    if k != v:
        raise ValueError(f"keys have leading dimensions {k} and values {v}; they must be equal")
    if len(q) != len(k) or q[:-1] != k[:-1] or (q and (q[-1] % k[-1] if k[-1] else q[-1])):
        raise ValueError(
            f"queries have leading dimensions {q} and keys {k}; all but the heads must be equal, and the heads of the "
            "keys must divide those of the queries"
        )


def check_causal(causal):
    """The alignment of the causal mask. Raises ValueError for one that does not exist."""
    if not any(causal is allowed or (isinstance(causal, str) and causal == allowed) for allowed in ALIGNMENTS):
        raise ValueError(f'causal is {causal!r}; False, True, "bottom-right" or "top-left" is needed')
    return causal


def check_mask(mask, shape):
    """The mask broadcast to `shape` (..., n_q, n_k), or None. Raises ValueError unless it is boolean and fits."""
    if mask is None:
        return None
    kind = getattr(mask, "dtype", type(mask).__name__)
    if kind not in (bool,):
        raise ValueError(f"mask is of {kind}; a boolean array is needed, True where a key is visible")
    if isinstance(mask, Counted) and tuple(mask.shape) == shape:
        return mask
    try:
        return np.broadcast_to(mask, shape)
    except ValueError:
        raise ValueError(f"mask has shape {mask.shape}, which does not broadcast to {shape}") from None


def check_accumulator(dtype, default):
    """The accumulator's dtype. Raises ValueError unless it is float32 or float64."""
    try:
        dtype = np.dtype(default if dtype is None else dtype)
    except TypeError:
        dtype = None
    if dtype not in FLOATS:
        raise ValueError("accumulator is no such dtype; np.float32 or np.float64 is needed")
    return dtype


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
