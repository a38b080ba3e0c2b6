#!/usr/bin/env bash
# Adds what the site and the packages are built with, docs/constraints.txt, to a virtual environment of environment.sh.
#
#     scripts/docs_environment.sh DIRECTORY
#
# Apart from environment.sh, so that who only tests does not wait for it. Returns at once when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${1:?"usage: scripts/docs_environment.sh DIRECTORY"}
stamp=$venv/.docs-pins
pins() { cat docs/constraints.txt scripts/docs_environment.sh "$venv/.pins" | cksum; }
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(pins)" ]; then exit; fi

"$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    printf 'docs: error: the site is built with Python 3.11 or newer; %s is of %s\n' \
        "$venv" "$("$venv/bin/python" --version)" "Name another: make docs VENV=.venv312 PYTHON=python3.12" >&2
    exit 1
}
printf 'docs: installing the packages of docs/constraints.txt\n'
"$venv/bin/python" -m pip install -qq --no-input --disable-pip-version-check --no-deps -r docs/constraints.txt
unmet=$("$venv/bin/python" -m pip check 2>/dev/null | grep -v -e 'requires py3nj,' -e '^No broken' || true)
if [ -n "$unmet" ]; then
    printf 'docs: error: the pins do not fit together:\n%s\n' "$unmet" >&2
    exit 1
fi
pins >"$stamp"
printf 'docs: ready after %s s\n' "$SECONDS"
