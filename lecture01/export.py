"""The record as JSON, for other programs to read."""

import json
import math
from types import SimpleNamespace

from console import Claim

SILENT = SimpleNamespace(**dict.fromkeys(("header", "table", "observations", "lines"), lambda *_shown: None))


def as_json(record, script, lang):
    """One object: script, lang, demos[] with title, knobs, tables, claims and notes (sentences that claim nothing).

    A table has its key, headers, rows of raw values (non-finite ones as strings) and the rows' keys.
    """
    demos = [
        {
            "title": demo.title,
            "knobs": demo.knobs,
            "tables": [
                {
                    "key": table.key,
                    "headers": table.headers,
                    "rows": [[plain(value) for value in row.values] for row in table.rows],
                    "row_keys": [row.key for row in table.rows],
                }
                for table in demo.tables
            ],
            "claims": [vars(item) for item in demo.observations if isinstance(item, Claim)],
            "notes": [item for item in demo.observations if isinstance(item, str)],
        }
        for demo in record.demos
    ]
    return json.dumps({"script": script, "lang": lang, "demos": demos}, ensure_ascii=False, indent=1)


def plain(value):
    """A cell's value as JSON has it: NumPy's numbers as Python's, NaN and infinities as strings."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)
