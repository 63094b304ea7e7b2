"""What the tests of every script share: reading a recorded demo, and making its sentences false one at a time."""

import numpy as np

import console
from command_line import knobs_of


def claims(demo):
    """The checked sentences of a recorded demo, in order."""
    return [item for item in demo.observations if isinstance(item, console.Claim)]


def table(demo, key):
    """{key: Row} of the table with this key in a recorded demo."""
    (found,) = [table for table in demo.tables if table.key == key]
    return {row.key: row for row in found.rows}


def with_more(demo):
    """The knob that prints all there is, where the demo has it."""
    return {"more": True} if "more" in knobs_of(demo) else {}


def broken_identities(record, demo, **knobs):
    """The identities that are false in a run with these knobs; nothing but an underflow may go unsaid."""
    with np.errstate(all="raise", under="ignore"):
        found = claims(record(demo, **knobs, **with_more(demo)))
    return [claim.text for claim in found if claim.kind == "identity" and not claim.holds]


def holds_with(script, demo, position, slips, knobs, record, monkeypatch):
    """Whether the demo's sentence at this position holds after names in the script were replaced.

    slips: {"name" or "module.name": value}, as the script spells them.
    """
    for name, value in slips.items():
        module, _dot, attribute = name.rpartition(".")
        monkeypatch.setattr(getattr(script, module) if module else script, attribute, value)
    with np.errstate(all="ignore"):
        return claims(record(demo, **knobs))[position].holds


def every_position(record, demos):
    """{(number of the demo in `demos`, position of the sentence)} of all there are, with --more."""
    return {(i, j) for i, demo in enumerate(demos) for j in range(len(claims(record(demo, **with_more(demo)))))}
