#!/bin/sh
# Builds the documentation site in build/docs/site and checks its links; `scripts/docs.sh serve` shows it while it is edited.
# It has a virtual environment of its own; a stamp named after the pins' checksum makes the second run a matter of seconds.
set -eu
cd "$(dirname "$0")/.."
pins=requirements/docs.txt
stamp=build/docs/.venv-$(sha256sum "$pins" | cut -c1-16)
if [ ! -e "$stamp" ]; then
  echo "docs: installing MkDocs into build/docs/venv"
  mkdir -p build/docs
  rm -rf build/docs/venv build/docs/.venv-*
  if [ -x build/venv/bin/python ]; then # a second pip would take a third of the time
    python3 -m venv --without-pip build/docs/venv
    pip="build/venv/bin/python -m pip --python build/docs/venv/bin/python"
  else
    python3 -m venv build/docs/venv
    pip="build/docs/venv/bin/python -m pip"
  fi
  $pip install -qq --no-compile --disable-pip-version-check --require-hashes -r "$pins" # most modules are never imported
  touch "$stamp"
fi
export NO_MKDOCS_2_WARNING=1
[ "${1:-build}" != serve ] || exec build/docs/venv/bin/mkdocs serve
build/docs/venv/bin/mkdocs build --quiet --strict
exec build/docs/venv/bin/python scripts/site/check.py build/docs/site
