"""scripts/environment.sh chooses the interpreter: run where every command that it might find is a stub."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "environment.sh"
TOOLS = ("bash", "cat", "chmod", "cksum", "dirname", "grep", "ls", "mkdir", "rm", "uname")

# Answers as an interpreter of a version, and makes "environments" whose interpreter accepts all it is told.
PYTHON = """#!/usr/bin/env bash
case "$*" in
*version_info*) echo {version} ;;
*ensurepip*) exit {without_venv} ;;
"-m venv"*) make_environment "${{@: -1}}" ;;
esac
"""
UV = """#!/usr/bin/env bash
echo "uv $*" >>"$CALLS"
make_environment "${@: -1}"
"""
MAKE_ENVIRONMENT = """#!/usr/bin/env bash
mkdir -p "$1/bin"
printf '#!/usr/bin/env bash\\n' >"$1/bin/python"
chmod +x "$1/bin/python"
printf '' >"$1/pyvenv.cfg"
"""

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="no scripts beside the tests")


class Machine:
    """A PATH with these commands alone."""

    def __init__(self, folder: Path) -> None:
        self.commands = folder / "commands"
        self.environment = folder / "environment"
        self.calls = folder / "calls"
        self.commands.mkdir()
        self.calls.write_text("")
        for tool in (*TOOLS, "env"):
            found = shutil.which(tool)
            assert found is not None
            (self.commands / tool).symlink_to(found)
        self.add("make_environment", MAKE_ENVIRONMENT)

    def add(self, name: str, script: str) -> Path:
        command = self.commands / name
        command.write_text(script)
        command.chmod(0o755)
        return command

    def add_python(self, name: str, version: str, has_venv: bool = True) -> Path:
        return self.add(name, PYTHON.format(version=version, without_venv=int(not has_venv)))

    def run(self, python: Path | None = None) -> subprocess.CompletedProcess[str]:
        variables = {"PATH": str(self.commands), "CALLS": str(self.calls), "PYTHON": str(python or "")}
        command = ["bash", str(SCRIPT), str(self.environment)]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables}, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_first_python_that_fits_is_taken_and_uv_not_asked(machine: Machine) -> None:
    machine.add_python("python3", "3.13")
    machine.add_python("python3.11", "3.11")
    machine.add("uv", UV)
    run = machine.run()
    assert run.returncode == 0, run.stderr
    assert "with Python 3.11\n" in run.stdout
    assert not machine.calls.read_text()


@pytest.mark.parametrize(("version", "has_venv"), [("3.13", True), ("3.12", False)])
def test_uv_makes_the_environment_where_no_python_can(machine: Machine, version: str, has_venv: bool) -> None:
    machine.add_python("python3", version, has_venv)
    machine.add("uv", UV)
    run = machine.run()
    assert run.returncode == 0, run.stderr
    assert machine.calls.read_text() == f"uv venv --quiet --seed --python 3.12 {machine.environment}\n"
    again = machine.run()
    assert (again.returncode, again.stdout) == (0, "")


def test_without_uv_it_says_what_to_type(machine: Machine) -> None:
    machine.add_python("python3", "3.13")
    run = machine.run()
    assert run.returncode == 1
    assert "no Python 3.10, 3.11 or 3.12 that runs" in run.stderr
    assert "or install uv, which gets one: curl -LsSf https://astral.sh/uv/install.sh | sh\n" in run.stderr
    assert not machine.environment.exists()


def test_python_that_cannot_make_environments_says_what_to_install(machine: Machine) -> None:
    machine.add_python("python3", "3.12", has_venv=False)
    assert "apt install python3.12-venv" in machine.run().stderr


def test_python_that_is_named_is_not_replaced_by_another(machine: Machine) -> None:
    machine.add("uv", UV)
    run = machine.run(python=machine.add_python("python3.13", "3.13"))
    assert run.returncode == 1
    assert "python3.13)" in run.stderr
    assert not machine.calls.read_text()


def test_folder_with_something_else_is_left_alone(machine: Machine) -> None:
    machine.add_python("python3", "3.13")
    machine.add("uv", UV)
    machine.environment.mkdir()
    (machine.environment / "letters").write_text("kept")
    run = machine.run()
    assert run.returncode == 1
    assert "is a directory with something else in it" in run.stderr
    assert (machine.environment / "letters").exists()
