#!/usr/bin/env bash
# Makes the virtual environment that the Makefile's targets run in: the pinned packages, and this package in place.
#
#     scripts/environment.sh DIRECTORY
#
# The interpreter is $PYTHON if that is set, else the first of python3, python3.12, ... that fits, else one that uv gets,
# where there is uv. With OLDEST set, constraints-oldest.txt goes before constraints.txt; with NEWEST set, or on Python
# 3.13 and 3.14, constraints-newest.txt does. Needs no root and no compiler. Returns at once when DIRECTORY already holds
# what the pins say.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${1:?"usage: scripts/environment.sh DIRECTORY"}
stamp=$venv/.pins
py3nj=py3nj==0.2.1
torch_cpu_index=https://download.pytorch.org/whl/cpu

say() { printf 'environment: %s\n' "$*"; }
fail() {
    printf 'environment: error: %s\n' "$@" >&2
    exit 1
}

# Prints major.minor; fails where the command is missing, broken or too old to answer.
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

has_gpu() { [ "$(uname -s)" = Linux ] && nvidia-smi -L >/dev/null 2>&1; }

# What the environment is made from; its place counts because the package is installed in place.
pins() {
    printf '%s\n' "$PWD" "$venv" "${OLDEST:+oldest}" "${NEWEST:+newest}"
    if has_gpu; then printf 'cuda\n'; fi
    cat constraints*.txt setup.py scripts/environment.sh compat/pyproject.toml
}

is_ready() {
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(pins | cksum)" ] || return 1
    [ -z "${PYTHON:-}" ] || [ "$(version_of "$PYTHON")" = "$(version_of "$venv/bin/python")" ]
}

# Sets $python, to "uv" where only that can get one, and $version.
choose_python() {
    local candidates=(python3 python3.12 python3.11 python3.10 python3.13 python3.14) fitting="3.10 3.11 3.12 3.13 3.14" without_venv=
    if [ -n "${OLDEST:-}" ]; then fitting="3.10 3.11 3.12"; fi
    if [ -n "${NEWEST:-}" ]; then candidates=(python3.13 python3 python3.12 python3.14) fitting="3.12 3.13 3.14"; fi
    if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
    for python in "${candidates[@]}"; do
        version=$(version_of "$python") || continue
        case " $fitting " in
        *" $version "*) ;;
        *) continue ;;
        esac
        if "$python" -c 'import ensurepip, venv' 2>/dev/null; then return; fi
        without_venv=$python
    done
    if [ -z "${PYTHON:-}" ] && command -v uv >/dev/null; then
        python=uv version=3.12
        if [ -n "${NEWEST:-}" ]; then version=3.13; fi
        return
    fi
    if [ -n "$without_venv" ]; then
        fail "$without_venv cannot make virtual environments: its module venv or ensurepip is missing." \
            "On Debian or Ubuntu: apt install python$(version_of "$without_venv")-venv"
    fi
    fail "no Python that runs and fits (tried: ${candidates[*]}; fitting: $fitting)." \
        "Name an interpreter with PYTHON, as in: make test PYTHON=/usr/bin/python3.12" \
        "or install uv, which gets one: curl -LsSf https://astral.sh/uv/install.sh | sh"
}

# Sets $constraints to one file with all pins, those of a narrower file before the others.
merge_constraints() {
    local narrower=
    if [ -n "${OLDEST:-}" ]; then narrower=constraints-oldest.txt; fi
    if [ -n "${NEWEST:-}" ] || [ "$version" = 3.13 ] || [ "$version" = 3.14 ]; then narrower=constraints-newest.txt; fi
    constraints=constraints.txt
    if [ -z "$narrower" ]; then return; fi
    constraints=$(mktemp)
    trap 'rm -f "$constraints"' EXIT
    cat "$narrower" >"$constraints"
    grep -v "$(sed -n 's/^\(.*==\).*/^\1/p' "$narrower")" constraints.txt >>"$constraints"
}

make_venv() {
    if [ "$python" = uv ]; then
        say "making $venv with Python $version, which uv gets where it finds none"
        rm -rf "$venv" # uv before 0.8 knows no --clear, uv since then needs it
        uv venv --quiet --seed --python "$version" "$venv" || fail "uv made no environment with Python $version"
    else
        say "making $venv with Python $version"
        "$python" -m venv --clear "$venv"
    fi
}

# --no-deps throughout: the pins are the whole set, and escnn's dependency py3nj must not come in by itself.
pip_install() { "$venv/bin/python" -m pip install -qq --no-input --disable-pip-version-check --no-deps "$@"; }

# On Linux plain torch is the CUDA build, which is gigabytes, with packages of NVIDIA's that only it needs. Where there is
# no GPU ask for the CPU build by name, here and at its publisher's, before that one.
install_torch() {
    local torch
    torch=$(grep '^torch==' "$constraints")
    if [ "$(uname -s)" != Linux ]; then
        pip_install "$torch"
        return
    fi
    if ! has_gpu; then
        if pip_install "$torch+cpu" 2>/dev/null; then return; fi
        if pip_install --index-url "$torch_cpu_index" "$torch+cpu" 2>/dev/null; then return; fi
        say "the CPU build of torch is not to be had: installing the CUDA build, some GB"
    fi
    "$venv/bin/python" -m pip install -qq --no-input --disable-pip-version-check -c "$constraints" "$torch"
}

# Without a Fortran compiler only a wheel will do. An installed py3nj that does not import would be worse than none.
install_py3nj() {
    local limit=() wheels_only=(--only-binary :all:)
    if command -v timeout >/dev/null; then limit=(timeout 300); fi
    if command -v gfortran >/dev/null; then wheels_only=(); fi
    # pip is called by its path, as `timeout` cannot run a function. ${a[@]+"${a[@]}"}: an empty array in bash 3.
    if ${limit[@]+"${limit[@]}"} "$venv/bin/python" -m pip install -qqq --no-input --no-deps \
        ${wheels_only[@]+"${wheels_only[@]}"} "$py3nj" >/dev/null 2>&1 &&
        "$venv/bin/python" -c 'import py3nj' 2>/dev/null; then
        say "$py3nj installed"
    else
        "$venv/bin/python" -m pip uninstall -qqq --yes py3nj >/dev/null 2>&1 || true
        say "without py3nj, which needs a Fortran compiler (Debian: gfortran); only escnn's 3D groups use it"
    fi
}

# setuptools writes beside the sources, where another environment may be made at the same time.
install_in_place() {
    local one_at_a_time=()
    if command -v flock >/dev/null; then one_at_a_time=(flock setup.py); fi
    ${one_at_a_time[@]+"${one_at_a_time[@]}"} "$venv/bin/python" -m pip install -qq --no-input \
        --disable-pip-version-check --no-deps --no-build-isolation --editable .
}

# pip's own view of the result; escnn's py3nj may be missing, nothing else.
check_dependencies() {
    local unmet
    unmet=$("$venv/bin/python" -m pip check 2>/dev/null | grep -v -e 'requires py3nj,' -e '^No broken' || true)
    [ -z "$unmet" ] || fail "the pins do not fit together:" "$unmet"
}

if is_ready; then exit; fi

choose_python
if [ -d "$venv" ] && [ ! -f "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv")" ]; then
    fail "$venv is a directory with something else in it; name another with VENV"
fi

make_venv
merge_constraints
pip_install "$(grep '^pip==' "$constraints")" "$(grep '^setuptools==' "$constraints")"
build="CPU build, about 200 MB"
if has_gpu; then build="CUDA build, some GB"; fi
say "installing torch (the $build), then the other packages"
install_torch || fail "torch (the $build) could not be installed"
if grep -q '^lie_learn==.*+standin' "$constraints"; then pip_install --no-build-isolation ./compat; fi
pip_install -r "$constraints" ||
    fail "the pinned packages could not be installed." \
        "lie_learn 0.0.2 has builds for Linux on x86-64 alone. Elsewhere take the newest versions, with Python 3.12 to 3.14:" \
        "make test NEWEST=1"
install_py3nj
install_in_place
check_dependencies
pins | cksum >"$stamp"
say "ready after $SECONDS s"
