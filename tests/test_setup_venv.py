"""Setting up .venv: what it says when it cannot, and that it does nothing twice."""

import sys

import pytest

import setup_venv


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """An empty lab with two lock files; `commands` collects what would be run."""
    commands = []
    for name in ("requirements.lock", "requirements-dev.lock"):
        (tmp_path / name).write_text("# " + name)
    (tmp_path / ".venv" / "site").mkdir(parents=True)
    monkeypatch.setattr(setup_venv, "ROOT", str(tmp_path))
    monkeypatch.setattr(setup_venv, "VENV", str(tmp_path / ".venv"))
    monkeypatch.setattr(setup_venv, "PYTHON", str(tmp_path / ".venv" / "python"))
    monkeypatch.setattr(setup_venv, "site_packages", lambda: str(tmp_path / ".venv" / "site"))
    monkeypatch.setattr(setup_venv, "run", commands.append)
    return tmp_path, commands


def one_sentence(capsys, error):
    said = capsys.readouterr().err
    assert error.value.code == 2 and said.count("\n") == 1
    return said


def test_an_old_python_is_refused_in_one_sentence(lab, monkeypatch, capsys):
    monkeypatch.setattr(sys, "version_info", (3, 10, 1))
    with pytest.raises(SystemExit) as error:
        setup_venv.main([])
    assert "Python 3.11 or newer is needed, and this is 3.10" in one_sentence(capsys, error)
    assert lab[1] == []


def test_without_ensurepip_and_uv_the_apt_command_is_named(lab, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    monkeypatch.setattr(setup_venv.shutil, "which", lambda _name: None)
    with pytest.raises(SystemExit) as error:
        setup_venv.main([])
    version = "{}.{}".format(*sys.version_info)
    assert f"sudo apt install python{version}-venv" in one_sentence(capsys, error)


def test_without_ensurepip_uv_makes_the_venv_and_installs(lab, monkeypatch):
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    monkeypatch.setattr(setup_venv.shutil, "which", lambda name: "/bin/" + name)
    setup_venv.main([])
    assert [command[:2] for command in lab[1]] == [["uv", "venv"], ["uv", "pip"]]
    assert "--require-hashes" in lab[1][1]


def test_every_package_is_installed_against_its_hash_and_the_lab_put_on_the_path(lab):
    root, commands = lab
    (root / ".venv" / "site" / "pip").mkdir()
    (root / ".venv" / "site" / "pip" / "__init__.py").touch()
    setup_venv.main(["dev"])
    assert commands[0][1:3] == ["-m", "venv"]
    locks = [command[-1] for command in commands if "install" in command and "--require-hashes" in command]
    assert locks == [str(root / "requirements.lock"), str(root / "requirements-dev.lock")]
    assert (root / ".venv" / "site" / "lab.pth").read_text() == str(root) + "\n"


def test_nothing_is_done_twice_but_a_changed_lock_file_is_installed_again(lab):
    root, commands = lab
    setup_venv.main([])
    (root / ".venv" / "python").touch()
    done = len(commands)
    setup_venv.main([])
    assert len(commands) == done
    (root / "requirements.lock").write_text("# changed")
    setup_venv.main([])
    assert [command[-1] for command in commands[done:]] == [str(root / "requirements.lock")]


def test_a_failed_installation_is_not_taken_for_a_finished_one(lab, monkeypatch):
    root, _commands = lab
    monkeypatch.setattr(setup_venv, "run", lambda command: setup_venv.fail("no network") if "pip" in command else None)
    with pytest.raises(SystemExit):
        setup_venv.main([])
    assert not setup_venv.installed("requirements.lock")
