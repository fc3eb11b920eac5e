#!/bin/sh
# Unpacks a containerd with NRI into build/nri-containerd: that of Debian 13 (1.7), since Debian 12's (1.6) has none.
# Nothing is installed. Fetched by package name from the mirror that apt is configured with, through lists and a cache of
# its own, signatures checked; its programs need no newer C library than Debian 12's. Called by scripts/setup.sh test.
set -eu
cd "$(dirname "$0")/.."
suite=trixie
keys=/usr/share/keyrings/debian-archive-keyring.gpg
place=build/nri-containerd
say() { printf 'nri_containerd: %s\n' "$*"; }
[ ! -e $place/ready ] || exit 0

. /etc/os-release
mirror() { # what serves main of the running release
  apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    awk -v release="$VERSION_CODENAME" '$1 == release && $2 == "main" { print $3; exit }'
}
uri=$(mirror)
if [ -z "$uri" ]; then # apt says so only of lists that it has
  apt-get -qq update
  uri=$(mirror)
fi
[ -n "$uri" ] || { say "apt has no mirror of $VERSION_CODENAME" >&2; exit 1; }

say "fetching containerd of $suite"
rm -rf $place
apt=$PWD/$place/apt
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
: >"$apt/status"
printf 'deb [signed-by=%s] %s %s main\n' "$keys" "$uri" "$suite" >"$apt/sources.list"
fetch() {
  apt-get -qq -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
    -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::Preferences=/dev/null \
    -o Dir::Etc::PreferencesParts=/dev/null -o Acquire::Languages=none -o Acquire::Retries=3 -o APT::Sandbox::User=root \
    "$@"
}
fetch update || { sleep 10; fetch update; } # a mirror that is being renewed contradicts itself for seconds
(cd "$apt" && fetch download containerd)
dpkg -x "$apt"/containerd_*.deb $place
rm -rf "$apt"
$place/usr/bin/containerd --version >/dev/null
touch $place/ready
