"""Both languages: the gate that keeps the catalogue complete, the choice of language, the same numbers in both."""

import re
import subprocess
import sys

import pytest

from conftest import ROOT, SCRIPTS, run_script, shown

sys.path.insert(0, str(ROOT / "locale"))

import gate  # noqa: E402

from catalogue import Entry, read_catalogue, read_entries  # noqa: E402
from language import choose, short  # noqa: E402

CATALOGUE = (ROOT / "locale" / "zh.po").read_text(encoding="utf-8")
TEXTS = {text: path.name for path in gate.sources() for text in gate.messages(path)[0]}
each_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")


def test_the_gate_is_open():
    process = subprocess.run([sys.executable, ROOT / "locale" / "gate.py"], capture_output=True, text=True)
    assert process.returncode == 0, process.stdout


def replaced(entries, *changes):
    """The entries with something else in their translations."""
    for old, new in changes:
        entries = [entry._replace(msgstr=entry.msgstr.replace(old, new)) for entry in entries]
    return entries


@pytest.mark.parametrize(
    "slip, complaint",
    [
        (lambda entries: entries[1:], "missing"),
        (lambda entries: [entries[0]._replace(flags=("fuzzy",)), *entries[1:]], "fuzzy"),
        (lambda entries: [entries[0]._replace(msgstr=""), *entries[1:]], "untranslated"),
        (lambda entries: [entries[0]._replace(obsolete=True), *entries[1:]], "obsolete"),
        (lambda entries: [*entries, Entry("no such text", "x", (), False)], "obsolete"),
        (lambda entries: [*entries, entries[0]], "there twice"),
        (
            lambda entries: [e._replace(msgstr=e.msgstr.replace("{", "{{").replace("}", "}}")) for e in entries],
            "differ",
        ),
        (lambda entries: [e._replace(msgstr=e.msgstr.replace(":.2f}", ":.3f}")) for e in entries], "differ"),
        (lambda entries: [e._replace(msgstr=e.msgstr + " {extra}") for e in entries[:1]] + entries[1:], "differ"),
    ],
)
def test_the_gate_closes_on(slip, complaint):
    entries = read_entries(CATALOGUE)
    assert gate.problems(TEXTS, entries) == []
    assert any(complaint in problem for problem in gate.problems(TEXTS, slip(list(entries))))


@pytest.mark.parametrize(
    "code", ["_(name)", "_(f'{x}')", "_('a', 'b')", "_, l = f()", "def f(_): pass", "for _ in x: pass"]
)
def test_the_gate_closes_on_code_that_gettext_could_not_read(code, tmp_path):
    path = tmp_path / "1.py"
    path.write_text(code)
    assert gate.messages(path)[1]


def test_updating_keeps_translations_adds_what_is_new_and_drops_what_is_gone(tmp_path):
    path = tmp_path / "zh.po"
    path.write_text(CATALOGUE, encoding="utf-8")
    kept = next(iter(TEXTS))
    gate.update(path, {kept: "a.py", 'new "text"\nin two lines': "b.py"})
    entries = {entry.msgid: entry.msgstr for entry in read_entries(path.read_text(encoding="utf-8"))}
    assert entries == {kept: read_catalogue(ROOT / "locale" / "zh.po")[kept], 'new "text"\nin two lines': ""}


def test_fuzzy_and_obsolete_entries_are_not_shown(tmp_path):
    path = tmp_path / "zh.po"
    path.write_text('#, fuzzy\nmsgid "a"\nmsgstr "b"\n\n#~ msgid "c"\n#~ msgstr "d"\n\nmsgid "e"\nmsgstr ""\n"f"\n')
    assert read_catalogue(path) == {"e": "f"}


@pytest.mark.parametrize(
    "arguments, environment, expected",
    [
        (["--lang", "zh"], {"LAB_LANG": "en"}, "zh"),
        (["--lang=zh_CN"], {}, "zh"),
        ([], {"LAB_LANG": "zh", "LANG": "en_US.UTF-8"}, "zh"),
        ([], {"LANG": "zh_CN.UTF-8"}, "zh"),
        ([], {"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, "en"),
        ([], {"LANGUAGE": "zh", "LANG": "de_DE.UTF-8"}, "zh"),
        ([], {"LANG": "de_DE.UTF-8"}, "en"),
        ([], {}, "en"),
    ],
)
def test_the_language_is_the_flags_then_lab_lang_then_the_locales_then_english(arguments, environment, expected):
    assert choose(arguments, environment) == expected


def test_a_language_by_any_of_its_names():
    assert {short(name) for name in ("zh", "zh-Hans", "zh_CN.UTF-8", "ZH")} == {"zh"}


@pytest.mark.parametrize("arguments, environment", [(["--lang", "fr"], {}), (["--lang"], {}), ([], {"LAB_LANG": "xx"})])
def test_a_language_that_is_not_there_gets_one_sentence(arguments, environment):
    process = run_script(SCRIPTS[0], *arguments, **environment)
    assert process.returncode == 2 and process.stdout == "" and process.stderr.count("\n") == 1
    assert "it has to be one of en, zh" in process.stderr


@each_script
def test_both_languages_show_the_same_numbers(script):
    (_screens, english), (_other, chinese) = (shown(script, lang, "--more") for lang in ("en", "zh"))
    assert (english["lang"], chinese["lang"]) == ("en", "zh") and english["script"] == chinese["script"] == script.name
    for one, other in zip(english["demos"], chinese["demos"], strict=True):
        assert one["knobs"] == other["knobs"] and one["title"] != other["title"]
        assert [t["key"] for t in one["tables"]] == [t["key"] for t in other["tables"]]
        for table, translated in zip(one["tables"], other["tables"], strict=True):
            assert table["row_keys"] == translated["row_keys"] and table["headers"] != translated["headers"]
            assert [numbers(row) for row in table["rows"]] == [numbers(row) for row in translated["rows"]]
        assert [(c["holds"], c["kind"]) for c in one["claims"]] == [(c["holds"], c["kind"]) for c in other["claims"]]
        assert [digits(c["text"]) for c in one["claims"]] == [digits(c["text"]) for c in other["claims"]]


def numbers(row):
    return [value for value in row if not isinstance(value, str)]


def digits(text):
    """The figures of a sentence, in any order: languages order them differently."""
    return sorted(re.findall(r"\d+(?:[.,]\d+)*", text))


@each_script
def test_no_text_is_left_in_english(script):
    screens, _record = shown(script, "zh", "--more")
    text = screens["200"]
    assert not [word for word in ("the", "and", "of", "is") if f" {word} " in text]


@each_script
def test_the_help_is_there_in_both_languages(script):
    english, chinese = (run_script(script, "--help", "--lang", lang).stdout for lang in ("en", "zh"))
    assert english != chinese and "--lang" in chinese and not any(f" {w} " in chinese for w in ("the", "and", "of"))
