"""The night before class: what is there, and what each missing thing would give. python3 lecture01/doctor.py

Needs nothing but Python. Ends with status 1 if the lectures would not run.
"""

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys

import start
from language import _

LIBRARIES = {"linux": "libcuda.so.1", "win32": "nvcuda.dll"}


def python():
    """(found, what) of a Python that can run the scripts: this one, else the repository's .venv."""
    here = start.missing()
    if not here:
        return True, _("Python {version} has all the packages").format(version=sys.version.split()[0])
    venv = start.venv_python()
    code = "import numpy, ml_dtypes, rich, sys; print(sys.version.split()[0])"
    if os.path.isfile(venv):
        run = subprocess.run([venv, "-c", code], capture_output=True, text=True, check=False)
        if run.returncode == 0:
            return True, _("Python {version} in .venv has all the packages").format(version=run.stdout.strip())
    return False, here


def screen():
    """(good, what) of the terminal: 80 columns are what the tables are made for, UTF-8 what the signs need."""
    columns, encoding = shutil.get_terminal_size().columns, (sys.stdout.encoding or "").lower()
    text = _("{columns} columns, {encoding}").format(columns=columns, encoding=encoding)
    return columns >= 80 and encoding.replace("-", "") == "utf8", text


def compiler():
    """(found, which) of the C++ compilers that the kernels can be run with on a CPU."""
    names = ("g++", "clang++", "c++")
    found = next((name for name in names if shutil.which(name)), None)
    return found is not None, found or _("looked for {names}").format(names=", ".join(names))


def cupy():
    """(found, what) of CuPy; that it can be found says nothing of a GPU."""
    found = importlib.util.find_spec("cupy") is not None
    return found, _("installed") if found else _("not installed")


def gpu():
    """(found, how many) NVIDIA GPUs, asked of the driver itself."""
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL(LIBRARIES.get(sys.platform, ""))
        found = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except (OSError, AttributeError):
        found = False
    return found, _("{count} found").format(count=count.value) if found else _("no driver or no device")


def main():
    """Print one line per thing."""
    lines = [
        (_("Python"), python(), _("Needed for everything: python3 lecture01/setup_venv.py sets it up.")),
        (_("terminal"), screen(), _("Narrow tables become cards; without UTF-8 signs are replaced by letters.")),
        (_("C++ compiler"), compiler(), _("It would run the CUDA kernels on this CPU.")),
        ("CuPy", cupy(), _("With a GPU it would run the CUDA kernels there.")),
        ("GPU", gpu(), _("The lectures need none; the kernels would be timed on it.")),
    ]
    for name, (good, what), otherwise in lines:
        text = _("yes {name}: {what}") if good else _("no  {name}: {what}. {otherwise}")
        print(text.format(name=name, what=what, otherwise=otherwise))
    return 0 if lines[0][1][0] else 1


if __name__ == "__main__":
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    sys.exit(main())
