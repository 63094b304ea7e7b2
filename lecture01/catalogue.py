"""Reading gettext's .po catalogues, as text: no compiled files, and nothing to install.

A catalogue is a list of entries: comments, flags (#, fuzzy), the English text (msgid) and its translation (msgstr).
Of the format only what the lab uses is read: no plurals and no contexts.
"""

import re
from typing import NamedTuple

ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}


class Entry(NamedTuple):
    """One text of a catalogue. flags: such as "fuzzy"; obsolete: kept in the file but no longer in the code."""

    msgid: str
    msgstr: str
    flags: tuple
    obsolete: bool


def read_entries(text):
    """Every Entry of a catalogue's text, in order, its header (with the empty msgid) left out."""
    entries = []
    for block in re.split(r"\n\s*\n", text):
        parts, flags, part = {"msgid": "", "msgstr": ""}, [], "msgid"
        for line in block.splitlines():
            if line.startswith("#,"):
                flags += [flag.strip() for flag in line[2:].split(",")]
            found = re.match(r'(?:#~ )?(msgid|msgstr)?\s*"(.*)"\s*$', line)
            if found:
                part = found[1] or part
                parts[part] += re.sub(r"\\(.)", lambda escape: ESCAPES.get(escape[1], escape[1]), found[2])
        if parts["msgid"]:
            entries.append(Entry(parts["msgid"], parts["msgstr"], tuple(flags), "\n#~" in "\n" + block))
    return entries


def read_catalogue(path):
    """{English text: translation} of a catalogue, fuzzy and obsolete entries left out."""
    entries = read_entries(path.read_text(encoding="utf-8"))
    return {entry.msgid: entry.msgstr for entry in entries if "fuzzy" not in entry.flags and not entry.obsolete}
