"""Two separate counters: `Tally` for memory traffic, `Work` for arithmetic. Both count what a run does.

Traffic. A `Counted` array stands in for a plain one where code reads x[a:b] and writes x[a:b] = v. Each access
is logged with its elements: what moves between memory and on-chip memory, with no cache (L2) in between.
It refuses everything else NumPy could do with it, so that nothing is read uncounted.

Work. A `WorkArray` computes as usual and adds the operations of each ufunc to its `Work`, by kind.
"""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np


class Access(NamedTuple):
    """One read or write: which array, "read" or "write", the index used, and how many elements it moved."""

    array: str
    kind: str
    index: Any
    elements: int


class Tally:
    """The log of every access to the arrays it counts."""

    def __init__(self):
        self.log = []

    def count(self, **arrays):
        """Wrap arrays by name: `K, V = tally.count(K=K, V=V)`.

        arrays: NumPy arrays, any shape and dtype. Returns a list of Counted in the order given.
        """
        return [Counted(array, name, self) for name, array in arrays.items()]

    def elements(self, array=None, kind=None):
        """The elements moved so far, an int.

        array: the name of the array, all by default; kind: "read" or "write", both by default.
        """
        return sum(a.elements for a in self.log if array in (None, a.array) and kind in (None, a.kind))

    def bytes(self, bytes_per_element, array=None, kind=None):
        """The bytes moved so far if each element took `bytes_per_element` (a format's: FP16 takes 2).

        array and kind as in `elements`.
        """
        return bytes_per_element * self.elements(array, kind)


class Counted:
    """An array whose slices are counted in a `Tally`. Only x[...] and x[...] = v work; shape, dtype, len are free.

    array: the NumPy array; name: what the log calls it; tally: the `Tally` it is counted in.
    """

    __array_ufunc__ = None  # K @ q, K * 2, ...: TypeError
    __iter__ = None

    def __init__(self, array, name, tally):
        self._array, self.name, self.tally = array, name, tally

    def __array__(self, dtype=None, copy=None):
        raise TypeError(f"{self.name} is counted: read it as {self.name}[a:b], so that no element escapes the count")

    @property
    def shape(self):
        """The shape of the array, as NumPy's; not counted."""
        return self._array.shape

    @property
    def dtype(self):
        """The dtype of the array; not counted."""
        return self._array.dtype

    def __len__(self):
        return len(self._array)

    def __getitem__(self, index):
        part = self._array[index].view()
        part.flags.writeable = False  # a write has to be counted as one
        self.tally.log.append(Access(self.name, "read", index, part.size))
        return part

    def __setitem__(self, index, value):
        self._array[index] = value
        self.tally.log.append(Access(self.name, "write", index, self._array[index].size))

    def uncounted(self):
        """The plain array, for a look that is not part of the algorithm."""
        return self._array


def new_array(like, name, shape, dtype=None):
    """An uninitialised array, of like's dtype unless given, counted by the same tally where `like` is counted."""
    array = np.empty(shape, like.dtype if dtype is None else dtype)
    return Counted(array, name, like.tally) if isinstance(like, Counted) else array


def part_of(x, index):
    """x[index] as an array to be read later, such as one head: nothing is counted yet."""
    return Counted(x._array[index], x.name, x.tally) if isinstance(x, Counted) else x[index]


class Work(Counter):
    """Operations by kind: matmul (2 per multiply-add), scale, max, subtract, exp, sum, rescale, per_row.

    `rescale` is every multiplication or division of a matrix by a column; adding P @ V to o belongs to the matmul;
    `per_row` gathers what is done once per row and tile. Everything but matmul counts 1 per element.
    """

    def array(self, x):
        """The array x as a WorkArray that counts here; x: anything np.asarray takes."""
        counted = np.asarray(x).view(WorkArray)
        counted.work = self
        return counted

    def non_matmul(self, lone=1, exp=1):
        """The operations on whole tiles outside the matmuls, weighted: max, subtract, exp, sum and rescale.

        lone, exp: what an operation and an exp count, for instance their time in matmul FLOPs.
        Left out: `scale`, which kernels fold into the exponent's multiply-add, and `per_row`.
        """
        return lone * sum(self[kind] for kind in ("max", "subtract", "sum", "rescale")) + exp * self["exp"]


class WorkArray(np.ndarray):
    """An array that counts the arithmetic done with it; results of its operations count too.

    work: the `Work` it counts in; made by `Work.array`.
    """

    work: Any

    def __array_finalize__(self, parent):
        self.work = parent.work if isinstance(parent, WorkArray) else Work()

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        work = next(x.work for x in inputs + (out or ()) if isinstance(x, WorkArray))
        plain = [np.asarray(x) if isinstance(x, WorkArray) else x for x in inputs]
        plain_out = {"out": tuple(np.asarray(x) for x in out)} if out else {}
        result = getattr(ufunc, method)(*plain, **plain_out, **options)
        kind, operations = _classify(ufunc.__name__, method, plain, result)
        work[kind] += operations
        return work.array(result)


def _classify(name, method, inputs, result):
    """(kind, operations) of one ufunc call on plain arrays."""
    if name == "matmul":
        return "matmul", 2 * result.size * inputs[0].shape[-1]
    if method == "reduce":
        return {"maximum": "max", "add": "sum"}.get(name, "per_row"), inputs[0].size
    if np.ndim(result) < 2:
        return "per_row", np.size(result)
    if name == "add":
        return "matmul", 0
    if name == "multiply" and min(np.ndim(x) for x in inputs) == 0:
        return "scale", result.size
    return {"multiply": "rescale", "divide": "rescale"}.get(name, name), result.size
