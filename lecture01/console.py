"""Headers, tables and observations: recorded as data, and shown as they come.

    print_header("One query, three algorithms")
    print_table(["algorithm", Column("largest error", ".1e")], {"one": ["one pass", 3e-8]}, key="errors")
    print_observations([claim(error < bound, "They agree within {bound:.0f} u.", bound=8)])

The record is what counts: the terminal is one way of rendering it (`renderer`), chosen once per run.

Record = demos, each with a title, its knobs, its tables and its observations.
- A table has a key and its rows have keys; keys are never translated, so runs in two languages, or with other
  knobs, can be compared row by row.
- A cell is recorded as its raw value and as the text shown; how to show it belongs to the column.
- A claim is recorded with its text, whether it held in this run, and its kind: an "identity" holds for every seed
  and setting, a "finding" at the defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from terminal import Terminal


class Column(NamedTuple):
    """A column's title and how its values are shown: a format spec (".2e"), a template ("{:.0f} u") or a function.

    factor: each value is a factor since the row before, whose key is a whole number, as all of the table's are.
    """

    title: str
    format: Any = ""
    factor: bool = False


@dataclass(frozen=True)
class Row:
    """A row's key, its raw values, and the texts shown for them."""

    key: str
    values: list
    texts: list


@dataclass(frozen=True)
class Table:
    """A table: its key, column titles and rows; the keys of the rows shown, None for all; the columns of factors."""

    key: str
    headers: list
    rows: list
    first: list | None = None
    factors: tuple = ()

    def shown(self):
        """The rows to be shown."""
        return [row for row in self.rows if self.first is None or row.key in self.first]


@dataclass(frozen=True)
class Claim:
    """A sentence that this run has checked. kind: "identity" or "finding"."""

    text: str
    holds: bool
    kind: str


@dataclass
class Demo:
    """What one demo printed. observations: Claim, or str for a sentence that claims nothing measurable."""

    title: str
    knobs: dict
    tables: list = field(default_factory=list)
    observations: list = field(default_factory=list)


@dataclass
class Record:
    """What one run printed. knobs: those of the demo about to run, set by whoever runs it."""

    demos: list = field(default_factory=list)
    knobs: dict = field(default_factory=dict)

    def claims(self):
        """Every claim of every demo, in order."""
        return [item for demo in self.demos for item in demo.observations if isinstance(item, Claim)]


record = Record()
renderer: Any = Terminal()


def print_header(title):
    """Begin a demo with this title; what is printed next belongs to it."""
    record.demos.append(Demo(str(title), dict(record.knobs)))
    renderer.header(record.demos[-1])


def print_table(headers, rows, key="", first=None):
    """Record and show a table.

    headers: titles, each a str or a Column. rows: {key: cells}, or a list of cells whose first cell is the key.
    Cells are raw values (numbers, str, None for none) or ready text. key: the table's name, never translated.
    first: the keys of the rows to show, all by default; all are recorded.
    Raises ValueError for a row with too few or too many cells, or for two rows with one key.
    """
    columns = [title if isinstance(title, Column) else Column(str(title)) for title in headers]
    keyed = list(rows.items()) if isinstance(rows, Mapping) else [(row[0] if len(row) else "", row) for row in rows]
    if isinstance(rows, Mapping) and len({str(name) for name, _cells in keyed}) < len(keyed):
        raise ValueError(f"two rows of the table {key!r} have the same key")
    table = Table(
        key,
        [column.title for column in columns],
        [_row(str(name), cells, columns) for name, cells in keyed],
        first and [str(name) for name in first],
        tuple(i for i, column in enumerate(columns) if column.factor),
    )
    _demo().tables.append(table)
    renderer.table(table)


def print_observations(items):
    """Record and show what was seen: claims, or plain sentences."""
    items = [item if isinstance(item, Claim) else str(item) for item in items]
    _demo().observations.extend(items)
    renderer.observations(items)


def claim(holds, text, /, **numbers):
    """An identity: a sentence that must hold for every seed and setting. `text` may name the numbers: {error:.1e}."""
    return Claim(text.format(**numbers), bool(holds), "identity")


def finding(holds, text, /, **numbers):
    """A sentence that holds at the defaults and may honestly stop holding with other knobs."""
    return Claim(text.format(**numbers), bool(holds), "finding")


def show(value, how=""):
    """A cell's text: `how` is a format spec, a template with {}, or a function; -0 is shown as 0."""
    if hasattr(value, "item"):
        value = value.item()  # NumPy's scalars as Python's, so that float32 is shown as float64 is
    if value is None:
        return "-"
    if isinstance(value, str | bool):
        return str(value)
    if value == 0:
        value = abs(value)
    if callable(how):
        return str(how(value))
    if "{" in how:
        return how.format(value)
    return format(value, how or ("," if isinstance(value, int) else ".4g" if isinstance(value, float) else ""))


def _row(name, cells, columns):
    cells = list(cells)
    if len(cells) != len(columns):
        raise ValueError(f"row {name!r} has {len(cells)} cells for {len(columns)} columns")
    return Row(name, cells, [show(cell, column.format) for cell, column in zip(cells, columns, strict=True)])


def _demo():
    if not record.demos:
        record.demos.append(Demo("", dict(record.knobs)))
    return record.demos[-1]
