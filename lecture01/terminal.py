"""The terminal renderer: plain lines of at most the terminal's width, whatever is in the cells.

Width is LAB_WIDTH, else COLUMNS, else the terminal's, else 120; never below 20. A table that does not fit first
folds its text columns and its titles, then becomes one card per row; numbers stay whole and nothing ends in dots.
Bold only, on a terminal without NO_COLOR and TERM=dumb (or with FORCE_COLOR); meaning never hangs on it.
LAB_BOX=ascii replaces signs by ASCII, and a stream that cannot show a character gets the nearest one it can.
"""

import codecs
import errno
import os
import re
import sys

from rich.cells import cell_len

from language import _

GAP = "  "  # between two columns
NARROWEST_WIDTH = 20
NARROWEST_TEXT = 10  # a text column folds down to this, or to its longest word, before the table becomes cards
SIGNS, IN_ASCII = "✓✗─−–—·…→×±≤≥≈∞α√²“”‘’", "[ok] [no] - - - - . ... -> x +/- <= >= ~ inf a sqrt ^2 \" \" ' '"
NEAREST = dict(zip(SIGNS, IN_ASCII.split(), strict=True))
NO_LINE_START = ",.;:!?)]}%\u201d\u2019\u2026\uff0c\u3002\u3001\uff1b\uff1a\uff01\uff1f\uff09\u3011\u300b\u300d\u300f"
NO_LINE_END = "([{\u201c\u2018\uff08\u3010\u300a\u300c\u300e"
A_NUMBER = re.compile(r"[<>~≈=±+\-−]*\s*[\d.,]*\d[\d.,]*(e[+-]?\d+)?\s?[^\s\d]{0,3}|[-+]?(nan|inf)|-|", re.I)


class Terminal:
    """Shows headers, tables and observations on what is sys.stdout when the run begins."""

    def __init__(self):
        if sys.stdout is None:  # the script was started with its output closed
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        self.stream = sys.stdout
        make_safe(self.stream)
        self.width = width(self.stream)
        self.styled = is_styled(self.stream)
        self.ascii = wants_ascii()
        self.rule = self.shown("─")

    def header(self, demo, before=None):
        """A blank line, the title, and the knobs with their values, those of a run `before` where they were others."""
        self.lines([""])
        self.lines([demo.title], bold=True)
        was = {**demo.knobs, **(before or {})}
        if demo.knobs:
            self.lines(["   ".join(f"{name}={value}" if was[name] == value else f"{name} {was[name]} \u2192 {value}"
                                   for name, value in demo.knobs.items())])  # fmt: skip

    def table(self, table):
        """The table, folded to the width, or as cards where even that is too wide."""
        titles = [self.shown(title) for title in table.headers]
        shown = table.shown()
        rows = [[self.shown(text) for text in row.texts] for row in shown]
        numeric = [list(map(is_number, row.values, texts)) for row, texts in zip(shown, rows, strict=True)]
        widths = fit(titles, rows, numeric, self.width)
        self.write([""])
        if widths is None:
            self.write(cards(titles, rows, self.width))
        else:
            right = [all(column) for column in zip(*numeric, strict=True)] or [False] * len(titles)
            self.write(grid_lines(titles, widths, right, bottom=True), bold=True)
            self.write([self.rule * (sum(widths) + len(GAP) * (len(widths) - 1))])
            self.write([line for row in rows for line in grid_lines(row, widths, right)])

    def observations(self, items):
        """One paragraph per item, with its verdict in front: a mark, and words where it does not hold."""
        lines = [""]
        for item in items:
            if isinstance(item, str):
                mark, text = "- ", item
            elif item.holds:
                mark, text = "✓ ", item.text
            else:
                mark, text = "✗ ", _("No longer holds with these settings: ") + item.text
            lines += hanging(self.shown(mark), self.shown(text), self.width)
        self.write(lines)

    def lines(self, texts, bold=False):
        """Each text on lines of its own."""
        self.write([line for text in texts for line in wrap(self.shown(text), self.width)], bold)

    def pairs(self, pairs):
        """Each text behind its lead, its further lines indented as far."""
        self.write([line for lead, text in pairs for line in hanging(self.shown(lead), self.shown(text), self.width)])

    def verbatim(self, text):
        """Text for other programs: not wrapped."""
        self.write([text])

    def write(self, lines, bold=False):
        """Write and flush, without spaces at the ends; when the reader has gone (`| head`), end quietly."""
        before, after = ("\x1b[1m", "\x1b[0m") if bold and self.styled else ("", "")
        try:
            self.stream.writelines(f"{before}{line.rstrip()}{after}\n" for line in lines)
            self.stream.flush()
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EINVAL):  # EINVAL is what Windows says
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())  # for what Python flushes at its end
            raise SystemExit(0) from None

    def shown(self, text):
        """The text as the stream will show it, control characters made visible, so that widths are those on screen."""
        text = "".join(c if c.isprintable() or c in "\n\u00a0\u3000" else repr(c)[1:-1] for c in str(text))
        if self.ascii:
            text = text.translate(str.maketrans(NEAREST))
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        return text.encode(encoding, "lab").decode(encoding)


def width(stream):
    """Columns to use. Raises SystemExit with one sentence for a LAB_WIDTH that is not a width."""
    asked = os.environ.get("LAB_WIDTH", "")
    if asked and not (asked.isascii() and asked.isdigit() and NARROWEST_WIDTH <= int(asked) <= 1000):
        text = _("LAB_WIDTH is {asked!r}; a whole number from 20 to 1000 is needed, such as LAB_WIDTH=80.")
        sys.stderr.write(text.format(asked=asked) + "\n")
        raise SystemExit(2)
    columns = os.environ.get("COLUMNS", "")
    if asked or (columns.isascii() and columns.isdigit() and int(columns) > 0):
        return max(int(asked or columns), NARROWEST_WIDTH)
    try:
        return max(os.get_terminal_size(stream.fileno()).columns or 80, NARROWEST_WIDTH)
    except (OSError, ValueError, AttributeError):
        return 120


def wants_ascii():
    """Whether signs outside ASCII are to be replaced. Raises SystemExit with one sentence for an unknown LAB_BOX."""
    box = os.environ.get("LAB_BOX", "")
    if box not in ("", "ascii"):
        sys.stderr.write(_("LAB_BOX is {box!r}; it has to be ascii, or not set.").format(box=box) + "\n")
        raise SystemExit(2)
    return box == "ascii"


def is_styled(stream):
    """Whether escape codes may be written at all."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    if os.environ.get("FORCE_COLOR", "") not in ("", "0"):
        return True
    if sys.platform == "win32" and not {"WT_SESSION", "TERM_PROGRAM"} & os.environ.keys():
        return False  # older consoles print the codes
    try:
        return os.isatty(stream.fileno())  # not stream.isatty(): IDLE says yes, and prints the codes
    except (OSError, ValueError, AttributeError):
        return False


def make_safe(stream):
    """What the stream's encoding lacks is replaced from now on, never an error."""
    codecs.register_error("lab", nearest_character)
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="lab")


def nearest_character(error):
    """An encoding error handler: the nearest thing the stream can show, else a question mark."""
    return NEAREST.get(error.object[error.start], "?"), error.start + 1


def is_number(value, text):
    """Whether a cell is a number: a raw one, or a text that is a number with at most a short unit."""
    return not isinstance(value, str) or bool(A_NUMBER.fullmatch(text))


def fit(titles, rows, numeric, total):
    """Column widths that fit into `total`, or None where only cards do. Numbers and words stay whole."""
    widths, least = [], []
    for column, title in enumerate(titles):
        sizes, lows = [widest_line(title)], [longest_unit(title)]
        for row, is_numeric in zip(rows, numeric, strict=True):
            text, size = row[column], widest_line(row[column])
            sizes.append(size)
            lows.append(size if is_numeric[column] else max(longest_unit(text), min(size, NARROWEST_TEXT)))
        widths.append(max(sizes))
        least.append(max(lows))
    room = total - len(GAP) * (len(widths) - 1)
    while sum(widths) > room:
        spare = [size - low for size, low in zip(widths, least, strict=True)]
        if max(spare) <= 0:
            return None
        widest = max(range(len(widths)), key=lambda column: (spare[column] > 0, widths[column]))
        widths[widest] -= 1
    return widths


def grid_lines(cells, widths, right, bottom=False):
    """The lines of one row: each cell folded to its column's width, short cells at the top or at the bottom."""
    folds = [wrap(cell, size) for cell, size in zip(cells, widths, strict=True)]
    height = max(map(len, folds), default=0)
    padded = [[""] * (height - len(fold)) + fold if bottom else fold + [""] * (height - len(fold)) for fold in folds]
    lines = []
    for parts in zip(*padded, strict=True):
        spaces = [" " * (size - cell_len(part)) for size, part in zip(widths, parts, strict=True)]
        aligned = [space + part if r else part + space for space, part, r in zip(spaces, parts, right, strict=True)]
        lines.append(GAP.join(aligned))
    return lines


def cards(titles, rows, total):
    """One block of `title: value` lines per row; a value that does not fit behind its title goes below it."""
    lines = []
    for number, row in enumerate(rows):
        lines += [""] if number else []
        for title, text in zip(titles, row, strict=True):
            name = title and f"{title}:"
            line = f"{name} {text}".strip()
            fits = cell_len(line) <= total and "\n" not in line
            lines += [line] if fits else wrap(name, total) + hanging("  ", text, total)
    return lines


def hanging(lead, text, total):
    """The text wrapped behind `lead`, its further lines indented as far."""
    first, *others = wrap(text, total - cell_len(lead))
    return [lead + first] + [" " * cell_len(lead) + line for line in others]


def wrap(text, size):
    """Lines of at most `size` columns. Breaks at spaces and between wide characters, never before a closing or
    after an opening mark; a word that is longer than a line is broken where the line ends."""
    lines = []
    for paragraph in text.split("\n"):
        line = ""
        for unit in units(paragraph):
            if cell_len(line + unit.rstrip()) > size and line.strip():
                lines.append(line.rstrip())
                line = ""
            line += unit
            while cell_len(line.rstrip()) > size:
                head = longest_prefix(line, size)
                lines.append(head.rstrip())
                line = line[len(head) :].lstrip()
        lines.append(line.rstrip())
    return lines


def longest_prefix(text, size):
    """As many leading characters as fit into `size` columns, at least one."""
    end = 1
    while end < len(text) and cell_len(text[: end + 1]) <= size:
        end += 1
    return text[:end]


def widest_line(text):
    return max(map(cell_len, text.split("\n")))


def longest_unit(text):
    return max((cell_len(unit.strip()) for unit in units(text)), default=0)


def units(text):
    """The pieces between which a line may break: words with the space after them, and single wide characters."""
    pieces: list[str] = []
    for piece in re.findall(r"[^\s\u2e80-\ud7ff\uf900-\ufaff\uff00-\uffef]+\s*|\s+|.\s*", text):
        before = pieces[-1] if pieces else " "
        is_mark = not piece.strip(NO_LINE_START + " ")  # a word such as .5 or :name: may begin a line
        follows = piece[0] in NO_LINE_START and (is_mark or not before[-1].isspace())
        if pieces and (follows or before[-1] in NO_LINE_END):
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return pieces
