#!/bin/sh
# Fuzzes for MINUTES each: the parsers of tenant input with hypothesis, the same with Atheris, which is guided by coverage,
# and the embedded API server with schemathesis. The last two have a virtual environment of their own; a stamp named after
# the pins' checksum makes later runs skip the installation. Inputs and findings are kept in build/fuzz.
set -eu
cd "$(dirname "$0")/.."
minutes=${1:?usage: fuzz.sh MINUTES}
pins=requirements/fuzz.txt
stamp=build/fuzz/.venv-$(sha256sum "$pins" | cut -c1-16)
if [ ! -e "$stamp" ]; then
  echo "fuzz: installing Atheris and schemathesis into build/fuzz/venv"
  mkdir -p build/fuzz
  rm -rf build/fuzz/venv build/fuzz/.venv-*
  build/venv/bin/python -m venv build/fuzz/venv
  build/fuzz/venv/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r "$pins"
  touch "$stamp"
fi
status=0
FUZZ_MINUTES=$minutes build/venv/bin/python -m pytest -q --timeout=0 tests/fuzz || status=1
parsers=$(build/venv/bin/python -c 'from tests.fuzz.parsers import PARSERS; print(len(PARSERS))')
build/fuzz/venv/bin/python -m tests.fuzz.coverage_guided $((minutes * 60 / parsers + 1)) 2>build/fuzz/atheris.log || {
  status=1
  tail -n 60 build/fuzz/atheris.log >&2
}
build/fuzz/venv/bin/python -m tests.fuzz.api_by_openapi build/venv/bin/python $((minutes * 60)) || status=1
exit $status
