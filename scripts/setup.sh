#!/bin/sh
# Prepares this checkout: Debian packages, Python packages, generated code, BPF objects.
#   scripts/setup.sh demo   what `make demo` needs
#   scripts/setup.sh test   the same, plus what `make test` and `make bench` need
#   scripts/setup.sh arm64  the same, plus what `make test-arm64` needs
#   scripts/setup.sh sched  the same, plus what `make test-sched` needs
#   scripts/setup.sh fuzz   the same as for the tests, plus Atheris and schemathesis in build/fuzz/venv
#   scripts/setup.sh screenshots   the same as for the demo, plus Prometheus, containers and a browser
#   scripts/setup.sh colocation   the same, plus the services and batch work of `make bench-colocation`
# Idempotent: a stamp named after the inputs' checksum makes the second run a matter of milliseconds.
set -eu
cd "$(dirname "$0")/.."
mode=${1:-demo}
case $mode in
  demo) lists="scripts/apt/base.txt scripts/apt/bpf.txt"; pins=requirements/runtime.txt ;;
  screenshots) lists="scripts/apt/base.txt scripts/apt/bpf.txt scripts/apt/screenshots.txt"; pins=requirements/runtime.txt ;;
  test | fuzz) lists="scripts/apt/base.txt scripts/apt/bpf.txt scripts/apt/test.txt scripts/apt/kubernetes.txt"; pins=requirements/dev.txt ;;
  arm64)
    lists="scripts/apt/base.txt scripts/apt/bpf.txt scripts/apt/test.txt scripts/apt/kubernetes.txt scripts/apt/arm64.txt"
    pins=requirements/dev.txt ;;
  sched)
    lists="scripts/apt/base.txt scripts/apt/bpf.txt scripts/apt/test.txt scripts/apt/kubernetes.txt scripts/apt/sched.txt"
    pins=requirements/dev.txt ;;
  colocation)
    lists="scripts/apt/base.txt scripts/apt/bpf.txt scripts/apt/test.txt scripts/apt/kubernetes.txt scripts/apt/colocation.txt"
    pins=requirements/dev.txt ;;
  *) echo "setup: unknown mode '$mode' (demo, screenshots, test, arm64, sched, fuzz or colocation)" >&2; exit 2 ;;
esac
say() { printf 'setup: %s\n' "$*"; }
[ "$(id -u)" = 0 ] || { echo "setup: must run as root: cgroups, BPF and apt-get need it" >&2; exit 1; }
mkdir -p build

sum() { cat "$@" | sha256sum | cut -c1-16; }

# Debian packages
packages=$(sed -e 's/#.*//' -e '/^[[:space:]]*$/d' $lists | sort -u)
missing=""
installed=$(dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' | sed -n 's/^ii  *//p')
for package in $packages; do
  printf '%s\n' "$installed" | grep -qx "$package" || missing="$missing $package"
done
if [ -n "$missing" ]; then
  say "installing Debian packages:$missing"
  export DEBIAN_FRONTEND=noninteractive
  log=build/setup-apt.log
  # Packages with a daemon must not start it: this is a build step, not an installation.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod +x $policy
  fi
  { apt-get update && apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1 || {
    tail -n 30 "$log" >&2; echo "setup: apt-get failed; the log is $log" >&2; exit 1; }
fi

# Python packages
python=/usr/bin/python3
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "setup: $python is older than 3.11" >&2; exit 1; }
pins_sum=$(sum "$pins" pyproject.toml)
# The test environment includes the demo's packages.
test_sum=$(sum requirements/dev.txt pyproject.toml)
stamp=build/.venv-$pins_sum
if [ ! -e "$stamp" ] && [ ! -e "build/.venv-$test_sum" ]; then
  say "installing Python packages into build/venv (a minute or two)"
  [ -x build/venv/bin/python ] || "$python" -m venv build/venv
  build/venv/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r "$pins"
  build/venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
  rm -f build/.venv-*
  touch "$stamp"
fi
# The fuzzers have an environment of their own, because pytest would load their plugins. It sees the packages of build/venv,
# so that only ten are installed.
if [ "$mode" = fuzz ]; then
  stamp=build/fuzz/.venv-$(sum requirements/fuzz.txt "$pins" pyproject.toml)
  if [ ! -e "$stamp" ]; then
    say "installing Atheris and schemathesis into build/fuzz/venv"
    mkdir -p build/fuzz
    rm -rf build/fuzz/venv build/fuzz/.venv-*
    build/venv/bin/python -m venv --without-pip build/fuzz/venv
    build/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
      >"$(build/fuzz/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tests.pth"
    build/venv/bin/python -m pip --python build/fuzz/venv/bin/python install -qq --no-compile --disable-pip-version-check \
      --require-hashes -r requirements/fuzz.txt
    touch "$stamp"
  fi
fi

# Generated code and BPF objects
generated=$(sum koordlet/api/*/*.proto scripts/gen_proto.py)
if [ ! -e "build/.proto-$generated" ] || [ ! -e koordlet/api/hooks/api_pb2.py ]; then
  build/venv/bin/python scripts/gen_proto.py
  rm -f build/.proto-*
  touch "build/.proto-$generated"
fi
make --no-print-directory -s -C bpf

# A second containerd, for tests of NRI
case $mode in demo | screenshots) ;; *) scripts/nri_containerd.sh ;; esac
