#!/bin/sh
# Run the checks that only a Mac can run, and write one file to send back: verify-on-a-mac.txt, in this checkout.
# docs/verify-on-a-mac.md says what each line means. Nothing is installed, changed or sent.
set -u
cd "$(dirname "$0")/../.." || exit 2
python=${PYTHON:-.venv/bin/python}
if [ ! -x "$python" ]; then
    echo "no Python at $python: run \`make .venv/.installed\` first, or name one: PYTHON=/path/to/python3 $0" >&2
    exit 2
fi
report=${1:-verify-on-a-mac.txt}
"$python" tests/mac/verify.py >"$report" 2>&1
status=$?
cat "$report"
echo "written to $report"
exit "$status"
