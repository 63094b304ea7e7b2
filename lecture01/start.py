"""What every script does first: check Python and its packages, and set the import paths.

Where something is missing and the repository has a .venv, the script starts again with that; without one it ends
with the command to type. Written so that Python 3.8, and older, can still read it.
"""

import importlib.util
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = [ROOT] + [os.path.join(ROOT, name) for name in ("lecture01", "prereq3")]
NEEDED = (3, 11)
PACKAGES = ("numpy", "ml_dtypes", "rich")


def missing():
    """What this Python lacks, in words; empty when it has all."""
    if sys.version_info < NEEDED:
        return "Python %d.%d or newer is needed, and this is %d.%d" % (NEEDED + sys.version_info[:2])
    lacking = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if lacking:
        return "%s cannot be found by %s" % (", ".join(lacking), sys.executable)
    import numpy

    if int(numpy.__version__.split(".")[0]) < 2:
        return "NumPy 2 is needed, and %s has %s" % (sys.executable, numpy.__version__)
    return ""


def venv_python():
    """Where the repository's .venv has its Python, whether or not it is there."""
    place = ("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")
    return os.path.join(ROOT, ".venv", *place)


def interpreter():
    """What to type for a Python that is new enough."""
    if sys.version_info >= NEEDED:
        return "py" if os.name == "nt" else "python3"
    return "py -3.11" if os.name == "nt" else "python3.11"


def restart(lack):
    """Run this script again with the repository's .venv, or say which command makes one."""
    python = venv_python()
    can_restart = os.path.isfile(python) and os.path.isfile(sys.argv[0]) and "LAB_RESTARTED" not in os.environ
    if not can_restart:
        setup = os.path.join(ROOT, "lecture01", "setup_venv.py")
        sys.stderr.write(
            "%s. To set up everything the lab needs, type: %s %s\n" % (lack, interpreter(), os.path.relpath(setup))
        )
        raise SystemExit(2)
    os.environ["LAB_RESTARTED"] = "1"
    command = [python] + sys.argv
    if os.name == "nt":  # execv there returns to the prompt before the script has ended
        raise SystemExit(subprocess.call(command))
    os.execv(python, command)


def prepare():
    """Set the import paths, then go on only where everything is there."""
    sys.path[:0] = FOLDERS
    lack = missing()
    if lack:
        restart(lack)
