"""Holds the catalogues against the code: python3 locale/gate.py (or with --update, to write in what is new).

A text to be translated is a literal inside _( ), and what --help takes from docstrings: the first paragraph of a
script, the first line of each demo. The gate fails on a text that a catalogue lacks, on one that is untranslated,
fuzzy, obsolete or there twice, on placeholders that differ in name or format, on _( ) around anything but a literal,
and on an assignment to _.
"""

import ast
import string
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "lecture01"))

from catalogue import read_entries

SOURCES = ("lecture*/*.py", "prereq*/*.py", "kernels/*.py", "exercises/*.py")


def sources():
    """The files with texts in them."""
    return sorted(path for pattern in SOURCES for path in ROOT.glob(pattern) if not path.name.startswith("_"))


def messages(path):
    """({text: line}, [complaints]) of one file."""
    tree, texts, complaints = ast.parse(path.read_text(encoding="utf-8")), {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_":
            if len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                texts.setdefault(node.args[0].value, node.lineno)
            else:
                complaints.append(f"{path.name}:{node.lineno}: _( ) takes one literal text")
        stored = isinstance(node, ast.Name) and node.id == "_" and not isinstance(node.ctx, ast.Load)
        if (stored or (isinstance(node, ast.arg) and node.arg == "_")) and path.name != "language.py":
            complaints.append(f"{path.name}:{node.lineno}: _ is gettext's and is not assigned")
    if path.name[0].isdigit():
        texts.setdefault((ast.get_docstring(tree) or "").split("\n\n")[0], 1)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("demo"):
                texts.setdefault((ast.get_docstring(node) or node.name).splitlines()[0], node.lineno)
    return dict(sorted(texts.items(), key=lambda item: item[1])), complaints


def placeholders(text):
    """The fields of a format string: names with their formats, as a sorted list."""
    return sorted(
        (field, spec, conversion) for _text, field, spec, conversion in string.Formatter().parse(text) if field
    )


def problems(texts, entries):
    """What is wrong with a catalogue's entries for these texts, one sentence each."""
    found, seen = [], set()
    for entry in entries:
        name = repr(entry.msgid)
        if entry.obsolete or entry.msgid not in texts:
            found.append(f"obsolete: {name}")
        elif "fuzzy" in entry.flags:
            found.append(f"fuzzy: {name}")
        elif not entry.msgstr.strip():
            found.append(f"untranslated: {name}")
        elif placeholders(entry.msgid) != placeholders(entry.msgstr):
            found.append(f"placeholders differ: {name} and {entry.msgstr!r}")
        if entry.msgid in seen:
            found.append(f"there twice: {name}")
        seen.add(entry.msgid)
    return found + [f"missing: {text!r}" for text in texts if text not in seen]


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'


def update(path, places):
    """Rewrite a catalogue in the order of the code: translations kept, new texts empty, obsolete ones dropped."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    known = {entry.msgid: entry for entry in read_entries(text)}
    blocks = ['msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"']
    for message, place in places.items():
        flags = [f"#, {', '.join(known[message].flags)}"] if message in known and known[message].flags else []
        msgstr = known[message].msgstr if message in known else ""
        blocks.append("\n".join([f"#: {place}", *flags, f"msgid {quoted(message)}", f"msgstr {quoted(msgstr)}"]))
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")


def main():
    places, complaints = {}, []
    for path in sources():
        texts, more = messages(path)
        complaints += more
        for text in texts:
            places.setdefault(text, path.relative_to(ROOT).as_posix())
    for path in sorted((ROOT / "locale").glob("*.po")):
        if "--update" in sys.argv:
            update(path, places)
        complaints += [
            f"{path.name}: {problem}" for problem in problems(places, read_entries(path.read_text(encoding="utf-8")))
        ]
    print("\n".join(complaints) or f"{len(places)} texts, all translated.")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
