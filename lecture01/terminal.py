"""The terminal renderer: plain lines of at most the terminal's width, whatever is in the cells.

Width is LAB_WIDTH, else COLUMNS, else the terminal's, else 120. A table that does not fit first folds its text
columns and its titles, then becomes one card per row; a numeric cell is never broken and nothing ends in dots.
Bold only, on a terminal without NO_COLOR and TERM=dumb (or with FORCE_COLOR); meaning never hangs on it.
LAB_BOX=ascii draws rules in ASCII, and a stream that cannot show a character gets the nearest one it can.
"""

import codecs
import os
import re
import sys

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from language import _

GAP = 2  # columns between two cells: one of padding, one where a box would draw its line
NARROWEST_TEXT = 10  # a text column folds down to this before the table becomes cards
RULE = box.Box("    \n    \n ── \n    \n    \n    \n    \n    \n")
ASCII_RULE = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
NEAREST = dict(zip("✓✗─−–—·…→×≤≥≈∞α√", "[ok] [no] - - - - . ... -> x <= >= ~ inf a sqrt".split(), strict=True))
NO_LINE_START = ",.;:!?)]}%,。、;:!?)】》」』”’…"
NO_LINE_END = "([{(【《「『“‘"


class Terminal:
    """Shows headers, tables and observations on sys.stdout."""

    def __init__(self):
        make_safe(sys.stdout)
        self.width = width(sys.stdout)
        self.ascii = os.environ.get("LAB_BOX") == "ascii"
        styled = is_styled(sys.stdout)
        self.console = Console(
            file=sys.stdout,
            width=self.width,
            color_system="standard" if styled else None,
            force_terminal=styled,
            legacy_windows=False,
            markup=False,
            emoji=False,
            highlight=False,
        )

    def header(self, demo):
        """A blank line, the title, and the knobs with the values of this run."""
        self.lines([""])
        self.lines(wrap(shown(demo.title), self.width), style="bold")
        if demo.knobs:
            knobs = "   ".join(f"{name}={value}" for name, value in demo.knobs.items())
            self.lines(wrap(knobs, self.width))

    def table(self, table):
        """The table, folded to the width, or as cards where even that is too wide."""
        headers = [shown(title) for title in table.headers]
        rows = [[shown(text) for text in row.texts] for row in table.rows]
        numeric = [is_numeric(table, rows, column) for column in range(len(headers))]
        widths = fit(headers, rows, numeric, self.width)
        self.lines([""])
        if widths is None:
            self.lines(cards(headers, rows, self.width))
        else:
            self.grid(headers, rows, numeric, widths)

    def grid(self, headers, rows, numeric, widths):
        rule = ASCII_RULE if self.ascii else RULE
        grid = Grid(box=rule, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0), header_style="bold")
        for title, size, right in zip(headers, widths, numeric, strict=True):
            grid.add_column(folded(title, size), justify="right" if right else "left", width=size, no_wrap=True)
        for row in rows:
            grid.add_row(*(folded(text, size) for text, size in zip(row, widths, strict=True)))
        self.guarded(lambda: self.console.print(grid))

    def observations(self, items):
        """One paragraph per item, with its verdict in front: a mark, and words where it does not hold."""
        lines = [""]
        for item in items:
            if isinstance(item, str):
                mark, text = "-", item
            elif item.holds:
                mark, text = "✓", item.text
            else:
                mark, text = "✗", _("No longer holds with these settings: ") + item.text
            mark = shown(mark)
            folds = wrap(shown(text), self.width - cell_len(mark) - 1)
            lines += [f"{mark} {folds[0]}"] + [" " * (cell_len(mark) + 1) + fold for fold in folds[1:]]
        self.lines(lines)

    def lines(self, lines, style=""):
        self.guarded(lambda: self.console.print(Text("\n".join(lines), style=style), soft_wrap=True))

    def guarded(self, write):
        """Write and flush; when the reader has gone (`| head`), end quietly."""
        try:
            write()
            self.console.file.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.console.file.fileno())
            raise SystemExit(0) from None


def width(stream):
    """Columns to use. Raises SystemExit with one sentence for a LAB_WIDTH that is not a width."""
    asked = os.environ.get("LAB_WIDTH", "")
    if asked and not (asked.isascii() and asked.isdigit() and 20 <= int(asked) <= 1000):
        sys.stderr.write(f"LAB_WIDTH is {asked!r}; a whole number from 20 to 1000 is needed, such as LAB_WIDTH=80.\n")
        raise SystemExit(2)
    columns = os.environ.get("COLUMNS", "")
    if asked or (columns.isascii() and columns.isdigit() and int(columns) > 0):
        return int(asked or columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 120


def is_styled(stream):
    """Whether escape codes may be written at all."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    forced = os.environ.get("FORCE_COLOR", "")
    return forced not in ("", "0") or stream.isatty()


def make_safe(stream):
    """What the stream's encoding lacks is replaced from now on, never an error."""
    codecs.register_error("lab", nearest_character)
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="lab")


def nearest_character(error):
    """An encoding error handler: the nearest thing the stream can show, else a question mark."""
    return NEAREST.get(error.object[error.start], "?"), error.start + 1


def shown(text):
    """The text as the stream will show it, control characters made visible, so that widths are those on screen."""
    text = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in str(text))
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "lab").decode(encoding)


def is_numeric(table, texts, column):
    """Whether a column holds numbers: raw ones, or texts that are a number with at most a short unit."""
    values = [row.values[column] for row in table.rows]
    as_number = re.compile(r"[<>~≈=±+\-−]*\s*[\d.,]*\d[\d.,]*(e[+-]?\d+)?\s?[^\s\d]{0,3}|[-+]?(nan|inf)|-|", re.I)
    return bool(values) and all(
        not isinstance(value, str) or as_number.fullmatch(row[column]) for value, row in zip(values, texts, strict=True)
    )


def fit(headers, rows, numeric, total):
    """Column widths that fit into `total`, or None where only cards do."""
    widths, least = [], []
    for column, title in enumerate(headers):
        cells = [cell_len(line) for row in rows for line in row[column].split("\n")] or [0]
        widths.append(max([cell_len(title), *cells]))
        words = longest_unit(title)
        least.append(max(words, *cells) if numeric[column] else min(widths[-1], max(words, NARROWEST_TEXT)))
    room = total - GAP * (len(widths) - 1)
    while sum(widths) > room:
        spare = [size - low for size, low in zip(widths, least, strict=True)]
        if max(spare) <= 0:
            return None
        widest = max(range(len(widths)), key=lambda column: (spare[column] > 0, widths[column]))
        widths[widest] -= 1
    return widths


def cards(headers, rows, total):
    """One block of `title: value` lines per row; a value that is too long goes on under its title."""
    lines = []
    for number, row in enumerate(rows):
        lines += [""] if number else []
        for title, text in zip(headers, row, strict=True):
            lines += wrap(f"{title}: {text}", total, indent="  ")
    return lines


def folded(text, size):
    return Text("\n".join(wrap(text, size)))


def longest_unit(text):
    return max((cell_len(unit.strip()) for unit in units(text)), default=0)


def wrap(text, size, indent=""):
    """Lines of at most `size` columns. Breaks at spaces and between wide characters, never before a closing or
    after an opening mark; a word that is longer than a line is broken where the line ends."""
    lines = []
    for paragraph in text.split("\n"):
        line = ""
        for unit in units(paragraph):
            if cell_len(line) + cell_len(unit.rstrip()) > size and line.strip():
                lines.append(line.rstrip())
                line, unit = indent, unit.lstrip()
            line += unit
            while cell_len(line.rstrip()) > size:
                head = longest_prefix(line, size)
                lines.append(head)
                line = indent + line[len(head) :]
        lines.append(line.rstrip())
    return lines


def longest_prefix(text, size):
    """As many leading characters as fit into `size` columns, at least one."""
    end = 1
    while end < len(text) and cell_len(text[: end + 1]) <= size:
        end += 1
    return text[:end]


def units(text):
    """The pieces between which a line may break: words with the space after them, and single wide characters."""
    pieces: list[str] = []
    for piece in re.findall(r"[^\s\u2e80-\uffef]+\s*|\s+|.\s*", text):
        if pieces and (piece[0] in NO_LINE_START or pieces[-1][-1] in NO_LINE_END):
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return pieces
