"""The language of what is printed: English in the code, others from the catalogues in locale/.

`--lang zh` on the command line comes first, then LAB_LANG, then the locale, then English. The choice is made once,
when this module is imported, so that every text a script makes is in it.
"""

import os
import sys
from pathlib import Path

from catalogue import read_catalogue

CATALOGUES = Path(__file__).resolve().parent.parent / "locale"
LANGUAGES = ("en", *sorted(path.stem for path in CATALOGUES.glob("*.po")))


def asked_for(arguments, environment):
    """What was asked for by name, as typed; None where it is left to the locale."""
    for i, word in enumerate(arguments):
        if word == "--lang":
            return "".join(arguments[i + 1 : i + 2])
        if word.startswith("--lang="):
            return word.removeprefix("--lang=")
    return environment.get("LAB_LANG") or None


def from_locale(environment):
    """The language of the user's locale, as in gettext: the first of these variables that is set decides."""
    names = ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
    setting = next((environment[name] for name in names if environment.get(name)), "")
    if not setting and os.name == "nt":  # Windows keeps it elsewhere, as "Chinese (Simplified)_China"
        import locale

        setting = (locale.getlocale()[0] or "").replace("Chinese", "zh")
    return short(setting) if short(setting) in LANGUAGES else "en"


def short(name):
    """zh for zh, zh_CN.UTF-8 and zh-Hans."""
    return name.replace("-", "_").replace(" ", "_").replace(".", "_").split("_")[0].lower()


def choose(arguments, environment):
    """The language of this run. Ends with status 2 and one sentence for one that does not exist."""
    asked = asked_for(arguments, environment)
    if asked is None:
        return from_locale(environment)
    if short(asked) not in LANGUAGES:
        where = "LAB_LANG" if environment.get("LAB_LANG") == asked else "--lang"
        sys.stderr.write(f"{where} is {asked!r}; it has to be one of {', '.join(LANGUAGES)}, such as --lang en.\n")
        raise SystemExit(2)
    return short(asked)


language = choose(sys.argv[1:], os.environ)
messages = {} if language == "en" else read_catalogue(CATALOGUES / f"{language}.po")


def translated(message):
    """The text in the run's language; in English where the catalogue lacks it."""
    return messages.get(message) or message


_ = translated  # gettext's name for it: texts to be translated are the literals inside _( )
