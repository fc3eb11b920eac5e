#!/bin/bash
# Runs the tests marked `kubernetes` in the namespaces of enter.sh, and removes what the kubelet leaves in the cgroup tree.
# Arguments go to pytest; `--module NAME` runs that Python module with them instead.
# KOORD_KUBERNETES names the minor version (v1.35); build.sh must have built it.
set -uo pipefail
cd "$(dirname "$0")/../.."
groups() { # the groups of the kubelets and of kube-proxy that exist
  find /sys/fs/cgroup -maxdepth 2 -type d '(' -name kubepods -o -name kube-proxy -o -name koord-second-node ')'
}
remove_groups() {
  local group
  for group in $(groups); do find "$group" -depth -type d -exec rmdir {} + || return; done
}
for group in $(groups); do
  [ -z "$(find "$group" -name cgroup.procs -exec cat {} +)" ] || {
    echo "run.sh: $group has processes: another kubelet uses this machine" >&2
    exit 1
  }
done
remove_groups || exit 1
folder=$(mktemp -d build/kubernetes/run-XXXXXX)
set -m # without job control, the child would ignore INT
if [ "${1:-}" = --module ]; then
  command=(-m "$2")
  shift 2
else
  command=(-m pytest ${CI:+-p tests.no_skips} -m kubernetes --basetemp="$PWD/$folder/tmp")
fi
run=(setpriv --pdeathsig KILL tests/kubernetes/enter.sh "$folder" build/venv/bin/python "${command[@]}" "$@")
if [ "${command[1]}" != pytest ] && [ -t 0 ]; then # the module may open a shell, which needs the terminal
  trap : INT # the terminal sends it to the module, too
  status=0
  "${run[@]}" || status=$?
  remove_groups || status=1
  rm -rf "$folder"
  exit $status
fi
"${run[@]}" </dev/null &
cluster=$!
trap 'kill -INT $(pgrep -P $cluster)' INT TERM # enter.sh is unshare, which ignores signals, and its child
while kill -0 $cluster 2>/dev/null; do # a signal ends `wait`
  status=0
  wait $cluster || status=$?
done
remove_groups || status=1
rm -rf "$folder"
exit $status
