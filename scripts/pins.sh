#!/bin/sh
# Renews requirements/*.txt from pyproject.toml: exact versions with hashes, and no registry's name.
set -eu
cd "$(dirname "$0")/.."
[ -x build/pins/bin/pip-compile ] || { python3 -m venv build/pins; build/pins/bin/pip install --quiet pip-tools; }
compile() {
  build/pins/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header --no-annotate "$@"
}
compile --extra demo --output-file requirements/runtime.txt pyproject.toml
compile --extra demo --extra dev --constraint requirements/runtime.txt --output-file requirements/dev.txt pyproject.toml requirements/dev.in
compile --extra demo --constraint requirements/dev.txt --output-file requirements/fuzz.txt pyproject.toml requirements/fuzz.in
# the site's tools share nothing with the product
compile --output-file requirements/docs.txt requirements/docs.in
