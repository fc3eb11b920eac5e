#!/bin/sh
# Installs koord-runtime-proxy between a node's kubelet and its runtime, and removes it.
#
#   node.sh install [--backend containerd|docker] [--binary PATH] [--kubelet-version 1.N] [--kubelet-flags FILE]
#                   [--kubelet-config FILE] [--root DIR]
#   node.sh rollback [--root DIR]
#   node.sh status   [--root DIR]
#
# install: installs the unit in this folder, starts the proxy, changes the kubelet's endpoint and restarts the kubelet.
# Nothing is changed before everything needed is present; later failures are rolled back. A second run changes only
# differences. rollback: restores the kubelet's endpoint, restarts it, removes the proxy. Running containers stay.
#
# --root: a node's file system mounted at DIR; nothing is started there unless $SYSTEMCTL names a program for that.
# docs/runtime-proxy.md lists the kubelet's flags per Kubernetes version.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
unit=koord-runtime-proxy.service
socket=/run/koord-runtimeproxy/runtimeproxy.sock
endpoint=unix:///var/run/koord-runtimeproxy/runtimeproxy.sock
place=/usr/local/bin/koord-runtime-proxy
start_seconds=${START_SECONDS:-60}   # for the proxy to listen
settle_seconds=${SETTLE_SECONDS:-10} # a kubelet that cannot connect to its runtime ends within this time

root='' backend=containerd binary='' version='' flags_files='' config=/var/lib/kubelet/config.yaml

say() { printf 'node.sh: %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }

# One flag in a file of environment variables

flag_of() { # FILE FLAG: prints its value, nothing when it is absent; the last one counts
  sed -nE "s/^[^#]*--$2(=| +)([^ \"']+).*/\2/p" "$1" | tail -n 1
}
put() { # FILE, content on stdin: atomic, also during a power cut
  cat >"$1.koord-new" && sync "$1.koord-new" && mv "$1.koord-new" "$1"
}
replace() { # FILE, new content on stdin: keeps owner and mode
  cp -p "$1" "$1.koord-new" && put "$1"
}
set_flag() { # FILE FLAG VALUE
  if [ -n "$(flag_of "$1" "$2")" ]; then
    edit="s#--$2(=| +)[^ \"']+#--$2=$3#g"
  else
    line=$(grep -nE '^[^#]*ARGS=' "$1" | head -n 1 | cut -d: -f1)
    edit="${line}s#^([^\"']*\"?[A-Z_]*ARGS=)([\"']?) *#\1\2--$2=$3 #; ${line}s# +([\"']?)\$#\1#"
  fi
  text=$(sed -E "$edit" "$1")
  printf '%s\n' "$text" | replace "$1"
}
drop_flag() { # FILE FLAG
  text=$(sed -E "s# *--$2(=| +)[^ \"']+##g" "$1")
  printf '%s\n' "$text" | replace "$1"
}

# One key of the kubelet's configuration

key_of() { sed -nE "s/^containerRuntimeEndpoint: *[\"']?([^ \"'#]*).*/\1/p" "$1" | tail -n 1; }
set_key() { # FILE VALUE
  text=$(sed -E '/^containerRuntimeEndpoint:/d' "$1")
  printf '%s\ncontainerRuntimeEndpoint: %s\n' "$text" "$2" | replace "$1"
}
drop_key() {
  text=$(sed -E '/^containerRuntimeEndpoint:/d' "$1")
  printf '%s\n' "$text" | replace "$1"
}

# systemd

ctl() {
  if [ -n "${SYSTEMCTL:-}" ]; then "$SYSTEMCTL" "$@"
  elif [ -z "$root" ]; then systemctl "$@"
  else say "not run for $root: systemctl $*"; fi
}
live() { [ -z "$root" ] || [ -n "${SYSTEMCTL:-}" ]; }

wait_for_socket() {
  live || return 0
  waited=0
  until [ -S "$root$socket" ]; do
    [ "$waited" -lt "$start_seconds" ] || { say "the proxy does not listen after $start_seconds s" >&2; return 1; }
    sleep 1
    waited=$((waited + 1))
  done
}
restart_kubelet() { # and check that it stays up; with $1 also that it uses the proxy's endpoint
  ctl daemon-reload || return 1 # its flags may be in a drop-in
  ctl restart kubelet.service || { say "kubelet did not restart" >&2; return 1; }
  live || return 0
  pid=$(ctl show --property=MainPID --value kubelet.service)
  sleep "$settle_seconds"
  if ! ctl is-active --quiet kubelet.service || [ "$(ctl show --property=MainPID --value kubelet.service)" != "$pid" ]; then
    say "kubelet does not stay up" >&2
    return 1
  fi
  [ -n "${1:-}" ] || return 0
  given=$(tr '\0' ' ' <"/proc/$pid/cmdline" | sed -nE "s/.*--$flag(=| )([^ ]+).*/\2/p")
  [ -z "$given" ] || [ "$given" = "$endpoint" ] || {
    say "kubelet still runs with --$flag=$given: name the file that sets it with --kubelet-flags" >&2; return 1; }
}

# install

kubelet_minor() {
  if [ -z "$version" ]; then
    kubelet=$(PATH=$root/usr/bin:$root/usr/local/bin:$root/opt/bin command -v kubelet || true)
    [ -n "$kubelet" ] || kubelet=$([ -n "$root" ] || command -v kubelet || true)
    [ -n "$kubelet" ] || die "no kubelet found; give --kubelet-version 1.N"
    version=$("$kubelet" --version)
  fi
  minor=$(printf '%s\n' "$version" | sed -nE 's/^(Kubernetes )?v?1\.([0-9]+).*/\2/p')
  [ -n "$minor" ] || die "cannot parse the kubelet's version '$version'; give --kubelet-version 1.N"
}

find_flags() { # which files with the kubelet's flags exist
  found=''
  for file in ${flags_files:-/var/lib/kubelet/kubeadm-flags.env /etc/default/kubelet /etc/sysconfig/kubelet}; do
    [ ! -f "$root$file" ] || found="$found $file"
  done
}

any_flag() { # FLAG: prints its value in the last file that has it
  value=''
  for file in $found; do
    seen=$(flag_of "$root$file" "$1")
    [ -z "$seen" ] || value=$seen
  done
  printf '%s' "$value"
}

decide() { # sets $flag, $files and $in_config: which flag or key to change, and in which files
  find_flags
  in_config='' files=''
  runtime=$(any_flag container-runtime)
  if [ "$backend" = docker ]; then
    [ "$minor" -lt 24 ] || die "kubelet 1.$minor has no dockershim: give cri-dockerd --docker-endpoint=$endpoint instead"
    [ "$runtime" != remote ] || die "kubelet runs with --container-runtime=remote, not with Docker: install with --backend containerd"
    flag=docker-endpoint
  else
    [ "$minor" -ge 24 ] || [ "$runtime" = remote ] ||
      die "kubelet 1.$minor runs with dockershim (no --container-runtime=remote in:${found:- no file}): install with --backend docker, or move the node to containerd first"
    flag=container-runtime-endpoint
  fi
  for file in $found; do
    [ -z "$(flag_of "$root$file" "$flag")" ] || files="$files $file"
  done
  if [ -z "$files" ] && [ "$backend" = containerd ] && [ "$minor" -ge 27 ] && [ -f "$root$config" ]; then
    in_config=1 files=$config
    ! grep -q '^ *{' "$root$config" || die "$config is JSON: set containerRuntimeEndpoint in it by hand"
  fi
  if [ -z "$files" ]; then
    [ -n "$found" ] || die "no file with kubelet's flags (${flags_files:-/var/lib/kubelet/kubeadm-flags.env, /etc/default/kubelet, /etc/sysconfig/kubelet}): give it with --kubelet-flags"
    for file in $found; do
      [ -n "$files" ] || ! grep -qE '^[^#]*ARGS=' "$root$file" || files=$file
    done
    [ -n "$files" ] || die "no line with ...ARGS= in$found: add KUBELET_EXTRA_ARGS= where kubelet's unit reads it"
  fi
}

check() {
  case $backend in
    containerd) backend_socket=/run/containerd/containerd.sock ;;
    docker) backend_socket=/run/docker.sock ;;
    *) die "--backend is containerd or docker, not '$backend'" ;;
  esac
  [ -S "$root$backend_socket" ] || die "no socket $backend_socket: is $backend running?"
  [ -f "$here/$backend/$unit" ] || die "no $backend/$unit beside this script"
  if [ -z "$binary" ]; then
    [ ! -x "$root$place" ] || binary=$place
    [ -n "$binary" ] || [ -n "$root" ] || binary=$(command -v koord-runtime-proxy || true)
    [ -n "$binary" ] || die "no koord-runtime-proxy found: give it with --binary"
  fi
  case $binary in
    /home/* | /root/* | /tmp/* | /run/user/*) die "$binary: the unit does not see /home, /root and /tmp; install it elsewhere" ;;
    /*) [ -x "$root$binary" ] || die "$binary is not executable" ;;
    *) die "--binary must be an absolute path, not '$binary'" ;;
  esac
  kubelet_minor
  decide
  [ ! -e "$state/flag" ] || [ "$(cat "$state/flag")" = "$flag" ] || die "installed for another backend: run rollback first"
}

change() { # FILE: set the proxy's endpoint; keep the original file
  if [ -n "$in_config" ]; then now=$(key_of "$root$1"); else now=$(flag_of "$root$1" "$flag"); fi
  [ "$now" != "$endpoint" ] || return 0
  mkdir -p "$state/before$(dirname "$1")" "$state/after$(dirname "$1")"
  cp -p "$root$1" "$state/before$1"
  sync "$state/before$1"
  if [ -n "$in_config" ]; then set_key "$root$1" "$endpoint"; else set_flag "$root$1" "$flag" "$endpoint"; fi
  cp -p "$root$1" "$state/after$1"
  say "$1: ${now:-nothing} -> $endpoint"
  changed=1
}

install_all() {
  check
  trap 'say "failed; rolling back" >&2; trap - EXIT; uninstall || say "roll-back failed too: see $state/before" >&2; exit 1' EXIT
  mkdir -p "$state" "$root/etc/systemd/system" "$root$(dirname "$place")"
  printf '%s\n' "$flag" | put "$state/flag"
  renewed=''
  if [ "$binary" != "$place" ] && [ "$(readlink "$root$place" || true)" != "$binary" ]; then
    [ -L "$root$place" ] || [ ! -e "$root$place" ] || { say "$place exists and is no link" >&2; exit 1; }
    touch "$state/link"
    ln -sfn "$binary" "$root$place"
    renewed=1
  fi
  if ! cmp -s "$here/$backend/$unit" "$root/etc/systemd/system/$unit"; then
    put "$root/etc/systemd/system/$unit" <"$here/$backend/$unit"
    chmod 644 "$root/etc/systemd/system/$unit"
    renewed=1
  fi
  [ -z "$renewed" ] || ctl daemon-reload
  ctl enable "$unit"
  if [ -n "$renewed" ] || ! live || ! ctl is-active --quiet "$unit"; then ctl restart "$unit"; fi
  wait_for_socket
  changed=''
  for file in $files; do change "$file"; done
  [ -z "$changed" ] || restart_kubelet ours
  trap - EXIT
  say "the kubelet uses the proxy ($endpoint)"
}

# --- roll-back ---------------------------------------------------------------------------------

restore() { # FILE: restore it; if it was changed since, only the endpoint
  if [ ! -f "$root$1" ]; then
    say "$1 does not exist any more; nothing to restore"
    return 0
  fi
  if cmp -s "$root$1" "$state/after$1"; then
    replace "$root$1" <"$state/before$1"
  elif [ "$(flag_of "$root$1" "$flag")" = "$endpoint" ]; then
    was=$(flag_of "$state/before$1" "$flag")
    if [ -n "$was" ]; then set_flag "$root$1" "$flag" "$was"; else drop_flag "$root$1" "$flag"; fi
  elif [ "$(key_of "$root$1")" = "$endpoint" ]; then
    was=$(key_of "$state/before$1")
    if [ -n "$was" ]; then set_key "$root$1" "$was"; else drop_key "$root$1"; fi
  fi
  ! grep -qF -e "$endpoint" "$root$1" || { say "$1 still names $endpoint" >&2; return 1; }
  say "$1: restored"
}

uninstall() {
  flag=$(cat "$state/flag" 2>/dev/null || echo container-runtime-endpoint)
  restored=''
  for file in $(cd "$state/before" 2>/dev/null && find . -type f | sed 's/^\.//'); do
    restore "$file" || return 1
    rm -f "$root$file.koord-new"
    restored=1
  done
  [ -z "$restored" ] || restart_kubelet || return 1
  if [ -e "$root/etc/systemd/system/$unit" ]; then
    ctl disable --now "$unit" || return 1
    rm -f "$root/etc/systemd/system/$unit"
    ctl daemon-reload || return 1
  fi
  [ ! -e "$state/link" ] || rm -f "$root$place"
  rm -f "$root/etc/systemd/system/$unit.koord-new"
  rm -rf "$state"
}

rollback_all() {
  if [ ! -d "$state" ] && [ ! -e "$root/etc/systemd/system/$unit" ]; then
    say "not installed"
    return 0
  fi
  uninstall || die "roll-back stopped: the kubelet's original files are in $state/before; run it again"
  say "the kubelet uses its runtime directly"
}

# status

show() {
  [ -e "$root/etc/systemd/system/$unit" ] || { say "not installed"; return 3; }
  [ -S "$root$socket" ] && say "listens at $socket" || say "does not listen at $socket"
  for file in $(cd "$state/before" 2>/dev/null && find . -type f | sed 's/^\.//'); do
    grep -q "$endpoint" "$root$file" && say "the kubelet uses it: $file" ||
      say "$file does not name it any more (kubeadm rewrites it at upgrades): install again"
  done
}

# the command line

command=${1:-}
[ $# -eq 0 ] || shift
while [ $# -gt 0 ]; do
  case $1 in --backend | --binary | --kubelet-version | --kubelet-flags | --kubelet-config | --root) ;; *) die "unknown option $1" ;; esac
  [ $# -ge 2 ] || die "$1 needs a value"
  case $1 in
    --backend) backend=$2 ;;
    --binary) binary=$2 ;;
    --kubelet-version) version=$2 ;;
    --kubelet-flags) flags_files=$2 ;;
    --kubelet-config) config=$2 ;;
    --root) root=${2%/} ;;
  esac
  shift 2
done
state=$root/var/lib/koord-runtimeproxy
[ -n "$root" ] || [ "$(id -u)" = 0 ] || die "must run as root"
case $command in
  install) install_all ;;
  rollback) rollback_all ;;
  status) show ;;
  *) sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
