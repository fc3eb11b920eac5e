#!/usr/bin/env bash
# Lint, the documentation site, every test in five groups selected by pytest markers (pyproject.toml), and short fuzzing. Arguments go to pytest.
#   guest    boots a virtual machine; it keeps little more than one CPU busy, so all but kubernetes run beside it
#   pure     needs neither root nor a kernel feature; tests/control runs beside the rest and tools
#   fuzz     scripts/fuzz.sh short, beside pure; only without arguments
#   tools    runs containerd, dockerd, Prometheus, kubectl
#   machine  drives this machine's kernel or a whole cluster, the cluster first: many later tests measure time, and the guest
#            has ended by then, unless it had to be booted again
#   kubernetes  installs everything on a real Kubernetes, which is built beside all others, only while a CPU is idle
# A test marked `timing` that fails runs again (tests/conftest.py); every other failure counts at once.
# Exit status 1: something failed; 5: the arguments select no test at all.
set -uo pipefail
cd "$(dirname "$0")/.."
LIMIT_S=${KOORD_TEST_LIMIT_S:-3420} # everything ends after this time, whatever hangs
NO_TESTS=5                          # pytest's exit status when nothing was selected
HEAVY="kernel or e2e or guest or kubernetes"
logs=build/tests
KUBERNETES=v1.35
# To stay below an hour on a slow machine too, these of tests/kubernetes run only if the group begins before a time in seconds.
BEGINS_BEFORE="chart:1450 kustomize:1600 embedded_suites:1800 unified_node:1850 api_server:2200 nodes:2200 faults:2200"
TIMEFORMAT="run_tests: %R s, of which a CPU worked %U s and its kernel %S s"
failed=0 selected=0 niceness=0 guest="" control="" build="" fuzz=""

progress() { echo "run_tests: $*, after $SECONDS s"; }
# timeout sends INT so that fixtures remove what they created; it would take 0 for no limit.
limited() {
  time timeout --foreground -s INT -k 30 $((SECONDS < LIMIT_S ? LIMIT_S - SECONDS : 1)) nice -n $niceness "$@"
}
tests() { # GROUP EXPRESSION [ARGUMENT ...]
  limited build/venv/bin/python -m pytest ${CI:+-p tests.no_skips} -o cache_dir="$logs/cache-$1" --durations=8 --durations-min=5 -m "$2" "${@:3}"
}
ended() { # GROUP STATUS
  progress "$1 ended with status $2"
  [ "$2" = $NO_TESTS ] || selected=1
  [ "$2" = 0 ] || [ "$2" = $NO_TESTS ] || failed=1
}
build_kubernetes() { # unless the arguments select none of its tests
  limited build/venv/bin/python -m pytest --collect-only -q -o cache_dir="$logs/cache-build" -m kubernetes "${@:-tests/kubernetes}" &&
    KOORD_KUBERNETES_UNOPTIMIZED=1 limited chrt --idle 0 tests/kubernetes/build.sh $KUBERNETES
}
logged() { # GROUP PROCESS: waits for a group in the background and shows its output
  progress "waiting for $1"
  wait "$2"
  local status=$?
  cat "$logs/$1.log"
  ended "$1" $status
}
stop_background() {
  for group in $guest $control $build $fuzz; do { kill -TERM -- "-$group" && wait "$group"; } 2>/dev/null; done
}
trap stop_background EXIT
trap 'exit 130' INT TERM

mkdir -p $logs
set -m # what runs in the background gets process groups, which are ended as a whole
niceness=5
tests guest guest -s --part=guest "$@" </dev/null >$logs/guest.log 2>&1 &
guest=$!
niceness=19
build_kubernetes "$@" </dev/null >$logs/kubernetes-build.log 2>&1 &
build=$!
set +m
niceness=10
progress "the guest boots and writes $logs/guest.log; lint, docs"
limited make --no-print-directory lint || exit 1
limited make --no-print-directory docs || failed=1
set -m
tests control "not ($HEAVY or runtime or kubectl)" --part=control "$@" </dev/null >$logs/control.log 2>&1 &
control=$!
if [ $# = 0 ]; then
  limited scripts/fuzz.sh short </dev/null >$logs/fuzz.log 2>&1 &
  fuzz=$!
fi
set +m
tests pure "not ($HEAVY or runtime or kubectl)" --part=rest "$@"
ended pure $?
tests tools "(runtime or kubectl) and not ($HEAVY)" "$@"
ended tools $?
logged control "$control"
control=""
[ -z "$fuzz" ] || logged fuzz "$fuzz"
fuzz=""
niceness=0
tests machine "(kernel or e2e) and not (guest or kubernetes)" "$@"
ended machine $?
logged guest "$guest"
guest=""
progress "waiting for the build of Kubernetes, which writes $logs/kubernetes-build.log"
wait "$build"
built=$? build=""
progress "the build of Kubernetes ended with status $built"
if [ $built = 0 ]; then
  left_out=""
  for file in $BEGINS_BEFORE; do
    [ $SECONDS -lt "${file#*:}" ] || left_out="$left_out --ignore=tests/kubernetes/test_${file%:*}.py"
  done
  progress "left out of tests/kubernetes:${left_out:- nothing}"
  KOORD_KUBERNETES=$KUBERNETES limited tests/kubernetes/run.sh $left_out "${@:-tests/kubernetes}"
  built=$?
else
  tail -n 30 $logs/kubernetes-build.log
fi
ended kubernetes $built
[ $selected = 1 ] || exit $NO_TESTS
exit $failed
