"""Every knob of every script: what it means and which values are allowed.

A knob is a keyword default of a demo: edit it in the file, or give it as a flag (seq_len is --seq-len).
"""

from typing import NamedTuple

from language import _


class Knob(NamedTuple):
    """kind: int, float or bool; low and high bound it (inclusive); example is what a message suggests."""

    kind: type
    low: float
    high: float
    example: str
    help: str

    def problem(self, value):
        """Why this value is not allowed, as "a whole number from 1 to 64, such as 8"; None if it is."""
        right_kind = isinstance(value, int | float) and not isinstance(value, bool)
        if self.kind is int:
            right_kind = isinstance(value, int) and not isinstance(value, bool)
        if self.kind is bool:
            return None if isinstance(value, bool) else _("True or False")
        if right_kind and self.low <= value <= self.high:
            return None
        what = _("a whole number") if self.kind is int else _("a number")
        return _("{what} from {low:,} to {high:,}, such as {example}").format(
            what=what, low=self.low, high=self.high, example=self.example
        )

    def parse(self, text):
        """The value of a flag's text, or the text itself where it is no number at all."""
        try:
            return self.kind(text)
        except ValueError:
            return text


KNOBS = {
    "seq_len": Knob(int, 1, 65_536, "4096", _("keys (and values) of the sequence")),
    "head_dim": Knob(int, 1, 512, "64", _("size d of a head")),
    "block": Knob(int, 1, 1_000_000, "256", _("keys per block")),
    "block_q": Knob(int, 1, 1_000_000, "64", _("queries per block")),
    "block_k": Knob(int, 1, 1_000_000, "64", _("keys per block")),
    "splits": Knob(int, 1, 1000, "4", _("splits of the keys in decoding")),
    "segments": Knob(int, 1, 1000, "12", _("segments a row is cut into")),
    "l_block": Knob(int, 1, 1_000_000, "64", _("terms added up before they go into the 16-bit sum l")),
    "v_mean": Knob(float, -1000.0, 1000.0, "1", _("mean of the values V")),
    "sharpness": Knob(float, 0.001, 1000.0, "4", _("factor on the scores: larger is nearer to one-hot")),
    "value": Knob(float, -1e30, 1e30, "0.1", _("number to be rounded")),
    "terms": Knob(int, 1, 262_144, "4096", _("terms of a sum")),
    "top_k": Knob(int, 1, 1000, "3", _("largest scores to be kept")),
    "seed": Knob(int, 0, 2**32 - 1, "0", _("seed of the random data")),
    "more": Knob(bool, 0, 1, "", _("print the further tables too")),
}
