"""scripts/environment.sh chooses the interpreter: run where every command that it might find is a stub."""

from __future__ import annotations

import itertools
import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement

SCRIPT = Path(__file__).parents[1] / "scripts" / "environment.sh"
TOOLS = ("bash", "cat", "chmod", "cksum", "dirname", "env", "grep", "ls", "mkdir", "mktemp", "rm", "sed", "uname")

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
cat >"$1/bin/python" <<'END'
#!/usr/bin/env bash
echo "python $*" >>"$CALLS"
END
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
        for tool in TOOLS:
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

    def run(self, python: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        unset = {"OLDEST": "", "NEWEST": ""}
        variables = {"PATH": self.commands, "CALLS": self.calls, "PYTHON": python or "", **unset, **variables}
        environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        command = ["bash", str(SCRIPT), str(self.environment)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    def called(self, name: str) -> list[str]:
        return [line for line in self.calls.read_text().splitlines() if line.startswith(name)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_first_python_that_fits_is_taken_and_uv_not_asked(machine: Machine) -> None:
    machine.add_python("python3", "3.9")
    machine.add_python("python3.11", "3.11")
    machine.add("uv", UV)
    run = machine.run()
    assert run.returncode == 0, run.stderr
    assert "with Python 3.11\n" in run.stdout
    assert not machine.called("uv")


@pytest.mark.parametrize(("version", "has_venv"), [("3.9", True), ("3.12", False)])
def test_uv_makes_the_environment_where_no_python_can(machine: Machine, version: str, has_venv: bool) -> None:
    machine.add_python("python3", version, has_venv)
    machine.add("uv", UV)
    run = machine.run()
    assert run.returncode == 0, run.stderr
    assert machine.called("uv") == [f"uv venv --quiet --seed --python 3.12 {machine.environment}"]
    again = machine.run()
    assert (again.returncode, again.stdout) == (0, "")


@pytest.mark.parametrize(
    ("python", "variables", "words"),
    [
        (("python3", "3.9", True), {}, "no Python that runs and fits .*fitting: 3.10 .* 3.14\\).*or install uv"),
        (("python3", "3.12", False), {}, "apt install python3.12-venv"),
        (("python3", "3.13", True), {"OLDEST": "1"}, "no Python that runs and fits"),
        (("python3", "3.11", True), {"NEWEST": "1"}, "no Python that runs and fits"),
    ],
)
def test_without_uv_it_says_what_to_type(
    machine: Machine, python: tuple[str, str, bool], variables: dict[str, str], words: str
) -> None:
    machine.add_python(*python)
    run = machine.run(**variables)
    assert run.returncode == 1
    assert re.search(words, run.stderr, re.DOTALL)
    assert not machine.environment.exists()


def test_python_that_is_named_is_not_replaced_by_another(machine: Machine) -> None:
    machine.add("uv", UV)
    run = machine.run(python=machine.add_python("python3.9", "3.9"))
    assert run.returncode == 1
    assert "python3.9;" in run.stderr
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


@pytest.mark.parametrize(
    ("version", "variables", "torch", "has_stand_in"),
    [
        ("3.12", {}, "2.13.0", False),
        ("3.12", {"OLDEST": "1"}, "2.6.0", False),
        ("3.12", {"NEWEST": "1"}, "2.13.0", True),
        ("3.13", {}, "2.13.0", True),
        ("3.14", {}, "2.13.0", True),
    ],
)
def test_versions_are_those_asked_for(
    machine: Machine, version: str, variables: dict[str, str], torch: str, has_stand_in: bool
) -> None:
    machine.add_python("python3", version)
    run = machine.run(**variables)
    assert run.returncode == 0, run.stderr
    (found,) = [line for line in machine.called("python") if " torch==" in line]
    assert found.endswith(f"torch=={torch}+cpu")
    assert any(line.endswith(" ./compat") for line in machine.called("python")) == has_stand_in


def test_without_a_cpu_build_of_torch_the_other_is_taken(machine: Machine) -> None:
    machine.add_python("python3", "3.12")
    machine.add("make_environment", MAKE_ENVIRONMENT.replace('>>"$CALLS"', '>>"$CALLS"; [[ "$*" != *+cpu* ]]'))
    run = machine.run()
    assert run.returncode == 0, run.stderr
    assert "installing the CUDA build" in run.stdout
    asked_for = [line.split()[-1] for line in machine.called("python") if "torch==" in line]
    assert asked_for == ["torch==2.13.0+cpu", "torch==2.13.0+cpu", "torch==2.13.0"]


def test_newest_are_newer_than_the_others() -> None:
    pins = {}
    for name in ("constraints", "constraints-newest"):
        lines = (SCRIPT.parents[1] / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        pins[name] = dict(line.split("#")[0].split(";")[0].strip().split("==") for line in lines if "==" in line)
    newer = pins["constraints-newest"]
    assert newer["numpy"].startswith("2.")
    assert not {name for name, version in newer.items() if pins["constraints"].get(name) == version}


def requirements_in(file: Path) -> list[Requirement]:
    lines = [line.split("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines()]
    return [Requirement(line) for line in lines if line]


@pytest.mark.parametrize("narrower", ["constraints", "constraints-oldest", "constraints-newest"])
def test_pins_fit_all_that_is_asked_for(narrower: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setuptools = pytest.importorskip("setuptools")
    root, given = SCRIPT.parents[1], {}
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: given.update(arguments))
    runpy.run_path(str(root / "setup.py"))
    asked = [*given["install_requires"], *itertools.chain(*given["extras_require"].values())]
    requirements = [*map(Requirement, asked), *requirements_in(root / "experiments" / "requirements.txt")]
    pins = {}
    for name in ("constraints", narrower):
        pins |= {(pin.name, str(pin.marker)): str(pin.specifier)[2:] for pin in requirements_in(root / f"{name}.txt")}
    versions = [(each, version) for each in requirements for (name, _), version in pins.items() if each.name == name]
    assert {"torch", "scikit-learn", "kornia"} < {each.name for each, _ in versions}
    assert not [(each, version) for each, version in versions if not each.specifier.contains(version)]


def test_hooks_before_a_commit_have_the_pinned_tools() -> None:
    root = SCRIPT.parents[1]
    hooks = root / ".pre-commit-config.yaml"
    if not hooks.exists():
        pytest.skip("no part of the sdist")
    (pin,) = re.findall(r"^ruff==\S+", (root / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert re.findall(r"ruff==[\d.]+", hooks.read_text(encoding="utf-8")) == [pin, pin]


def test_tests_that_make_oldest_names_are_there() -> None:
    root = SCRIPT.parents[1]
    makefile = (root / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    (core,) = re.findall(r"^CORE *:=(.*)$", makefile, re.MULTILINE)
    assert core.split()
    assert not [name for name in core.split() if not (root / "tests" / f"test_{name}.py").exists()]
