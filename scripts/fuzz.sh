#!/bin/sh
# Fuzzes the parsers of tenant input and the embedded API server. Inputs and findings are kept in build/fuzz.
#   scripts/fuzz.sh MINUTES   so long each: the parsers with hypothesis, the same with Atheris, which is guided by coverage,
#                             and the API with schemathesis
#   scripts/fuzz.sh short     the last two in less than a minute, as a group of `make test`; the first is among its tests
set -eu
cd "$(dirname "$0")/.."
scripts/setup.sh fuzz
status=0
case ${1:?usage: fuzz.sh MINUTES, or fuzz.sh short} in
  short) limit=--inputs=10000 api_seconds=20 seed=--seed=1 ;; # the same inputs each time
  *)
    FUZZ_MINUTES=$1 build/venv/bin/python -m pytest -q --timeout=0 tests/fuzz || status=1
    parsers=$(build/venv/bin/python -c 'from tests.fuzz.parsers import PARSERS; print(len(PARSERS))')
    limit=--seconds=$(($1 * 60 / parsers + 1)) api_seconds=$(($1 * 60)) seed= ;;
esac
build/fuzz/venv/bin/python -m tests.fuzz.coverage_guided $limit || status=1
build/fuzz/venv/bin/python -m tests.fuzz.api_by_openapi build/venv/bin/python $api_seconds $seed || status=1
exit $status
