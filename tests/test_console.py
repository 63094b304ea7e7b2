"""What the console records and how it draws it: values, sentences, wrapping, tables that fit and that do not."""

import io
import os
import re
import sys
from collections import Counter
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

import console
import terminal
from console import Column, claim, finding, print_header, print_observations, print_table, show
from terminal import NO_LINE_END, NO_LINE_START, wrap

HAN = "块大小最误差状态通过在线核心"


def recorded(show_it, renderer=None):
    """The demos that `show_it()` leaves in the record."""
    with (
        mock.patch.object(console, "record", console.Record()),
        mock.patch.object(console, "renderer", renderer or mock.Mock()),
    ):
        show_it()
        return console.record.demos


def drawn(show_it, width=80, encoding="utf-8", **environment):
    """What `show_it()` prints at this width."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    environment["LAB_WIDTH"] = str(width)
    with mock.patch.object(sys, "stdout", stream), mock.patch.dict(os.environ, environment, clear=True):
        recorded(show_it, terminal.Terminal())
    return stream.buffer.getvalue().decode(encoding)


def drawn_table(headers, rows, width=80, **more):
    return drawn(lambda: print_table(headers, rows), width, **more)


def is_rule(line):
    return re.fullmatch("─+|-{3,}", line) is not None


def columns(text):
    """A table's columns, each the texts of its lines at one width: cut where every line is blank for two columns."""
    lines = ["".join(c + "\0" * (cell_len(c) - 1) for c in line) for line in text.strip("\n").split("\n")]
    rows = [line for line in lines if not is_rule(line.replace("\0", ""))]
    size = max(map(len, rows))
    blank = "".join(" " if all(row[i : i + 1] in ("", " ") for row in rows) else "x" for i in range(size))
    spans = [match.span() for match in re.finditer(r"x+( x+)*", blank)]
    return [[row[a:b].ljust(b - a).replace("\0", "") for row in rows] for a, b in spans]


def test_a_table_is_recorded_with_its_keys_raw_values_and_texts():
    error = np.float32(0.25)
    rows = {"one": ["one pass", error], 64: ["sixty-four", None]}
    (demo,) = recorded(lambda: print_table(["way", Column("error", ".1e")], rows, key="errors"))
    (table,) = demo.tables
    assert (table.key, table.headers, [row.key for row in table.rows]) == ("errors", ["way", "error"], ["one", "64"])
    assert [row.texts for row in table.rows] == [["one pass", "2.5e-01"], ["sixty-four", "-"]]
    assert table.rows[0].values[1] is error and table.rows[1].values[1] is None


def test_a_list_of_cells_has_its_first_cell_as_key():
    (demo,) = recorded(lambda: print_table(["way", "error"], [["one pass", "2.5e-01"], (64, "-")]))
    assert [row.key for row in demo.tables[0].rows] == ["one pass", "64"]


def test_what_is_printed_belongs_to_the_header_before_it():
    def lesson():
        print_header("first")
        print_table(["a"], [["1"]])
        print_header("second")
        print_observations(["seen", claim(True, "held")])

    demos = recorded(lesson)
    assert [(demo.title, len(demo.tables), len(demo.observations)) for demo in demos] == [
        ("first", 1, 0),
        ("second", 0, 2),
    ]
    assert console.Record(demos).claims() == [claim(True, "held")]


@pytest.mark.parametrize("rows", [[["a"]], [["a", 1, 2]], {"a": []}, {1: ["a", 2], "1": ["b", 3]}])
def test_a_row_with_the_wrong_number_of_cells_or_a_second_one_of_its_key_is_refused(rows):
    with pytest.raises(ValueError, match="cells for 2 columns|the same key"):
        recorded(lambda: print_table(["x", "y"], rows))


def test_claims_format_the_numbers_they_name_and_keep_whether_they_held():
    identity = claim(np.bool_(True), "{error:.1e} is {share:.0%}, {{kept}}", error=3e-8, share=0.5)
    assert identity == console.Claim("3.0e-08 is 50%, {kept}", True, "identity") and identity.holds is True
    assert finding(0, "{text}", text="of this name") == console.Claim("of this name", False, "finding")


VALUES = [
    (None, "", "-"), (None, ".2e", "-"), (True, "", "True"), (False, ".2f", "False"), (np.True_, "", "True"),
    (np.False_, ",d", "False"), ("as it is", ".2f", "as it is"), ("{}", "{} u", "{}"), (0, "", "0"), (-0.0, "", "0"),
    (-0.0, ".2f", "0.00"), (np.float32(-0.0), "", "0"), (-0.0, "{:.1f} u", "0.0 u"), (-0.0, "{:+.1f}".format, "+0.0"),
    (1234567, "", "1,234,567"), (np.int64(1234567), "", "1,234,567"), (10**400, "", f"{10**400:,}"), (3.0, "", "3"),
    (np.float32(3), "", "3"), (np.float64(3), "", "3"), (np.float32(0.1), "", "0.1"), (ml_dtypes.bfloat16(3), "", "3"),
    (np.array(2.5), ".2f", "2.50"), (np.nan, "", "nan"), (np.nan, ".2e", "nan"), (-np.inf, ",.1f", "-inf"),
    (np.float16(np.inf), "", "inf"), (12.3, "{:.0f} u", "12 u"), (7, lambda n: n + 1, "8"), ((1, 2), "", "(1, 2)"),
]  # fmt: skip


@pytest.mark.parametrize("value, how, text", VALUES, ids=range(len(VALUES)))
def test_every_kind_of_value_has_a_sensible_text(value, how, text):
    assert show(value, how) == text


# ------------------------------------------------------------------------------------------------ wrapping


@settings(max_examples=200)
@given(st.text(max_size=60) | st.text(HAN + "ab 12.,()。“”《》【】\n", max_size=60), st.integers(1, 40))
def test_wrapping_loses_nothing_but_spaces_at_breaks_and_keeps_to_the_size(text, size):
    lines, rest = wrap(text, size), text
    for line in lines:
        left_out, rest = rest[: rest.index(line)], rest[rest.index(line) + len(line) :]
        assert not left_out.strip()
    assert not rest.strip()
    assert all(cell_len(line) <= size or len(line) == 1 for line in lines)


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([*HAN, *",。;:!?)】》」』”’([{【《「『“‘", "o", "lse"]), max_size=50), st.integers(8, 30)
)
def test_no_line_begins_with_a_closing_or_ends_with_an_opening_mark(pieces, size):
    text = "".join(pieces)
    if terminal.longest_unit(text) <= size:
        for before, after in zip(wrap(text, size), wrap(text, size)[1:], strict=False):
            assert after[0] not in NO_LINE_START and before[-1] not in NO_LINE_END


@given(st.text(HAN, min_size=1, max_size=60), st.integers(2, 40))
def test_chinese_text_fills_every_line_but_the_last(text, size):
    assert all(size - cell_len(line) < 2 for line in wrap(text, size)[:-1])


@given(st.lists(st.sampled_from("acc[m, o] [/b] :smile: .5 %s {x}".split()), max_size=20), st.integers(7, 30))
def test_words_are_broken_only_at_spaces_whatever_they_begin_with(words, size):
    assert " ".join(wrap(" ".join(words), size)) == " ".join(words)


# ------------------------------------------------------------------------------------------------ tables

NUMBER = st.floats(width=32) | st.integers(-(10**6), 10**6) | st.none()
TABLES = st.integers(1, 5).flatmap(
    lambda count: st.tuples(
        st.lists(st.text(HAN + "ab [", max_size=15), min_size=count, max_size=count),
        st.lists(st.tuples(*[NUMBER | st.text(HAN + "ab,。 \n[/]:é", max_size=30)] * count), max_size=4),
    )
)


@settings(max_examples=200)
@given(TABLES, st.integers(20, 90))
def test_any_table_keeps_to_the_width_with_every_number_whole_and_no_character_lost(table, width):
    titles, rows = table
    text = drawn_table(titles, rows, width)
    lines = text.split("\n")
    assert all(cell_len(line) <= width and line == line.rstrip() for line in lines)
    assert all(show(cell) in text for row in rows for cell in row if not isinstance(cell, str))
    named = titles if any(map(is_rule, lines)) else [f"{title}:" for title in titles if title] * len(rows)
    printed = "".join(line for line in lines if not is_rule(line))
    expected = "".join([*named, *(show(cell) for row in rows for cell in row)])
    assert rows == [] or Counter("".join(printed.split())) == Counter("".join(expected.split()))


def test_a_narrower_table_first_folds_its_text_then_becomes_cards_with_every_number_whole():
    headers = [
        "how the parts are combined",
        Column("largest error", ".10e"),
        Column("all moved", ",d"),
        "compared with",
    ]
    rows = [["outputs averaged by length", 1.1920928955e-7, 548864, "1.386294361120 u"], ["[/b]", 5, 1, "not compared"]]
    layouts = []
    for width in range(130, 19, -1):
        text = drawn_table(headers, rows, width)
        lines = text.strip("\n").split("\n")
        assert max(map(cell_len, lines)) <= width
        assert all(number in text for number in ("1.1920928955e-07", "548,864", "5.0000000000e+00", "1.386294361120 u"))
        layouts.append(("fold" if len(lines) > 4 else "whole") if any(map(is_rule, lines)) else "cards")
    assert layouts == sorted(layouts, key=["whole", "fold", "cards"].index) and len(set(layouts)) == 3


def test_cards_keep_a_number_with_its_unit_whole_and_indent_further_lines():
    rows = [["123,456,789 u", "first\nsecond", "unnamed"]]
    text = drawn_table(["largest err.", "a longer note on it", ""], rows, 20)
    assert text == "\nlargest err.:\n  123,456,789 u\na longer note on it:\n  first\n  second\nunnamed\n"


@pytest.mark.parametrize("encoding", ["utf-8", "gbk", "cp1252", "ascii"])
def test_columns_of_chinese_and_other_cells_start_and_end_at_one_offset(encoding):
    headers, rows = ["块大小", "误差 ×", "∞", "end"], [["64", "±1e-7", "通过", "0"], ["8", "≤ 1", "失败(NaN)", "x"]]
    text = drawn_table(headers, rows, encoding=encoding)
    shown = [
        [c.encode(encoding, "lab").decode(encoding) for c in column] for column in zip(headers, *rows, strict=True)
    ]
    assert [[cell.strip() for cell in column] for column in columns(text)] == shown
    assert ("─" in text) == (encoding in ("utf-8", "gbk"))


def test_numbers_are_right_aligned_also_as_text_and_words_are_left_aligned():
    rows = [["one", "1.5", "-12 u", 7, "1", None], ["seven", "12.25", "< 1 u", True, "none", 10**6]]
    for column, right in zip(columns(drawn_table([*"abcdef"], rows)), [0, 1, 1, 1, 0, 1], strict=True):
        assert all(cell[-1 if right else 0] != " " for cell in column)


def test_cells_of_several_lines_and_control_characters_keep_the_frame():
    rows = [["first\nsecond", "a\tb", 1], ["\x1b[31mred\x07", "\r\x00\x7f", 22]]
    first, second, third = columns(drawn_table(["x", "y", "z"], rows))
    assert [cell.rstrip() for cell in first] == ["x", "first", "second", r"\x1b[31mred\x07"]
    assert [cell.rstrip() for cell in second] == ["y", r"a\tb", "", r"\r\x00\x7f"]
    assert third == [" z", " 1", "  ", "22"]


def test_a_table_may_have_one_column_no_row_or_nothing_at_all():
    assert drawn_table(["n"], [["1"], ["-20"]]) == "\n  n\n───\n  1\n-20\n"
    assert drawn_table(["only"], []) == "\nonly\n────\n"
    assert drawn_table([], []).strip() == ""


# ------------------------------------------------------------------------------------------------ sentences, streams


def test_plain_sentences_and_titles_print_as_typed():
    typed = "acc[m, l, o] [/b] [bold] :smile: {braces} {0} 100% %s %d \\n |\u3000|\u00a0|"
    assert drawn(lambda: print_observations([typed])) == f"\n- {typed}\n"
    assert drawn(lambda: print_header(typed)) == f"\n{typed}\n"


def test_a_claim_that_does_not_hold_says_so_in_words():
    text, in_ascii = (
        drawn(lambda: print_observations([claim(True, "A."), finding(False, "B.")]), encoding=encoding)
        for encoding in ("utf-8", "ascii")
    )
    assert text == "\n✓ A.\n✗ No longer holds with these settings: B.\n"
    assert in_ascii == text.replace("✓", "[ok]").replace("✗", "[no]")


def test_a_long_sentence_is_indented_behind_its_mark():
    first, *others = drawn(lambda: print_observations([claim(True, "word " * 30)]), 40).strip().split("\n")
    assert first.startswith("✓ word") and len(others) == 4 and all(line.startswith("  word") for line in others)


@pytest.mark.parametrize("asked, width", [("", 120), ("70", 70), ("0", 120), ("many", 120), ("1", 20)])
def test_columns_gives_the_width_unless_it_is_no_width_and_never_one_too_small_to_print_in(asked, width):
    with mock.patch.dict(os.environ, {"COLUMNS": asked}, clear=True):
        assert terminal.width(io.StringIO()) == width


@pytest.mark.parametrize("platform, environment, styled", [("linux", {}, True), ("win32", {}, False),
                                                           ("win32", {"WT_SESSION": "1"}, True)])  # fmt: skip
def test_a_window_that_would_print_the_codes_gets_none(platform, environment, styled):
    with mock.patch.object(sys, "platform", platform), mock.patch.dict(os.environ, environment, clear=True):
        with mock.patch.object(os, "isatty", lambda _number: True):
            assert terminal.is_styled(mock.Mock(fileno=lambda: 1)) == styled
        idle = io.StringIO()
        idle.isatty = lambda: True  # as IDLE's window says
        assert not terminal.is_styled(idle)
