#!/usr/bin/env bash
# Builds sdist and wheel into dist/, checks both, and runs the demo from the wheel in an environment of its own, which is
# made from what the sdist holds.
#
#     scripts/package.sh DIRECTORY
#
# DIRECTORY is a virtual environment with the packages of docs/constraints.txt.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$PWD/${1:?"usage: scripts/package.sh DIRECTORY"}/bin/python
case $1 in /*) python=$1/bin/python ;; esac
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
say() { printf 'package: %s\n' "$*"; }

rm -rf dist
"$python" -m build --no-isolation --outdir dist . >"$scratch/build.log" 2>&1 || {
    cat "$scratch/build.log" >&2
    exit 1
}
"$python" -m twine check --strict dist/*

say "what the archives hold"
"$python" scripts/archives.py dist

mkdir "$scratch/source"
tar -xzf dist/*.tar.gz -C "$scratch/source" --strip-components 1
wheel=$(ls "$PWD"/dist/*.whl)
"$scratch/source/scripts/environment.sh" "$scratch/venv"
own=$scratch/venv/bin/python
"$own" -m pip uninstall -qq --yes escnn_relaxed
"$own" -m pip install -qq --no-input --disable-pip-version-check --no-deps "$wheel"
mkdir "$scratch/elsewhere"
cd "$scratch/elsewhere"
"$own" -W 'ignore:`py3nj` package not found' -c '
import escnn_relaxed, sys
assert "site-packages" in escnn_relaxed.__file__, escnn_relaxed.__file__
print("package:", escnn_relaxed.__version__, "is imported from the wheel")'
MPLBACKEND=Agg "$own" -W 'ignore:`py3nj` package not found' "$scratch/source/examples/mnist6_180.py" --smoke --seeds 1
say "the demo ran from the wheel"
