#!/bin/bash
# Runs the tests of this folder in the namespaces of enter.sh, and removes what the kubelet leaves in the cgroup tree.
set -uo pipefail
cd "$(dirname "$0")/../.."
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
  [ ! -d "$hierarchy/kubepods" ] || { echo "run.sh: $hierarchy/kubepods exists: another kubelet uses this machine" >&2; exit 1; }
done
folder=$(mktemp -d build/kubernetes/run-XXXXXX)
status=0
tests/kubernetes/enter.sh "$folder" build/venv/bin/python -m pytest ${CI:+-p tests.no_skips} -m kubernetes --basetemp="$PWD/$folder/tmp" \
  tests/kubernetes/test_{installation,main_job,suites,faults}.py tests/kubernetes/oracle "$@" || status=$?
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
  for name in kubepods kube-proxy; do
    [ ! -d "$hierarchy/$name" ] || find "$hierarchy/$name" -depth -type d -exec rmdir {} +
  done
done
rm -rf "$folder"
exit $status
