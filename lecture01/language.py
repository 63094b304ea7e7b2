"""The language of what is printed. English for now: `_` returns the text it is given."""


def _(message):
    """The text in the reader's language."""
    return message
