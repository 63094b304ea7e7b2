"""Set up the lab: python3 lecture01/setup_venv.py [dev] [ci]

Makes .venv in the repository and installs the locked packages, each checked against its hash; with `dev` the test
tools too, with `ci` NVIDIA's compiler for the kernels (Linux and Windows). Works without make, on Linux, macOS and
Windows; does nothing when all is there already.
"""

import hashlib
import os
import shutil
import subprocess
import sys

from start import ROOT, venv_python

VENV = os.path.join(ROOT, ".venv")
PYTHON = venv_python()


def main(wanted):
    if sys.version_info < (3, 11):
        fail(
            "Python 3.11 or newer is needed, and this is %d.%d. Start a newer one, such as: python3.11 %s"
            % (sys.version_info[0], sys.version_info[1], os.path.relpath(__file__))
        )
    locks = ["requirements.lock"] + ["requirements-%s.lock" % extra for extra in ("dev", "ci") if extra in wanted]
    todo = [name for name in locks if not installed(name)]
    if todo and not os.path.isfile(PYTHON):
        make_venv()
    for name in todo:
        say("Installing %s into .venv ..." % name)
        install(os.path.join(ROOT, name))
        write(stamp(name), digest(name))
    if todo:
        write(os.path.join(site_packages(), "lab.pth"), ROOT + "\n")


def make_venv():
    """With the standard library's venv, or with uv where Debian left ensurepip out."""
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        if not shutil.which("uv"):
            fail(
                "This Python cannot make a .venv: its ensurepip is missing. Type: sudo apt install python%d.%d-venv"
                " (or install uv), then try again." % sys.version_info[:2]
            )
        run(["uv", "venv", "--quiet", "--python", sys.executable, VENV])
    else:
        run([sys.executable, "-m", "venv", "--clear", VENV])


def install(lock):
    options = ["--quiet", "--require-hashes", "-r", lock]
    if os.path.isfile(os.path.join(site_packages(), "pip", "__init__.py")):
        run([PYTHON, "-m", "pip", "--disable-pip-version-check", "install", *options])
    else:
        run(["uv", "pip", "install", "--python", PYTHON, *options])


def site_packages():
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return subprocess.check_output([PYTHON, "-c", code], text=True).strip()


def stamp(name):
    return os.path.join(VENV, name + ".sha256")


def digest(name):
    with open(os.path.join(ROOT, name), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def installed(name):
    try:
        with open(stamp(name)) as file:
            return os.path.isfile(PYTHON) and file.read() == digest(name)
    except OSError:
        return False


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def run(command):
    try:
        code = subprocess.call(command)
    except OSError as error:
        fail("%s could not be started: %s" % (command[0], error.strerror))
    if code:
        fail("Setting up .venv failed at: %s\nOnce the cause is gone, the same command goes on." % " ".join(command))


def say(text):
    sys.stderr.write(text + "\n")


def fail(text):
    say(text)
    raise SystemExit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
