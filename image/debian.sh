#!/bin/sh
# Installs the packages of debian.txt for one image, those that the base has not yet, and the user that runs it.
#   [APT_SNAPSHOT=20251031T000000Z] image/debian.sh npu|cpu|cpu-build
set -eu
here=$(CDPATH='' cd "$(dirname "$0")" && pwd)
image=$1
scratch=$(mktemp -d)
log=$scratch/log
trap 'rm -rf "$scratch"' EXIT
sources=/etc/apt options=''
todo="check the base image's sources and the proxy (--build-arg http_proxy=URL)"

stop() { # MESSAGE…
    echo "image: debian: $*" >&2
    exit 1
}

# Has apt read the archive as it was at a time. The base image's own list stays as it is.
snapshot() {
    echo "$APT_SNAPSHOT" | grep -Eqx '[0-9]{8}T[0-9]{6}Z' ||
        stop "expected APT_SNAPSHOT as 20251031T000000Z, found $APT_SNAPSHOT; correct --build-arg APT_SNAPSHOT"
    mkdir "$scratch/sources.list.d"
    touch "$scratch/sources.list"
    for list in "$sources/sources.list" "$sources"/sources.list.d/*.list "$sources"/sources.list.d/*.sources; do
        [ -f "$list" ] || continue
        # http for Debian's: its slim images have no certificates, and apt checks signatures.
        sed -E "/^#/d; s#https?://deb\.debian\.org/(debian|debian-security)/?( |\$)#http://snapshot.debian.org/archive/\1/$APT_SNAPSHOT/\2#g
            s#https?://(archive|security|ports)\.ubuntu\.com/ubuntu(-ports)?/?( |\$)#https://snapshot.ubuntu.com/ubuntu/$APT_SNAPSHOT/\3#g" \
            "$list" >"$scratch${list#"$sources"}"
    done
    floating=$(grep -rhoE '[a-z+]+://[^ ]+' "$scratch" | grep -v "/$APT_SNAPSHOT/" | head -n 1 || true)
    [ -z "$floating" ] || stop "expected Debian's or Ubuntu's own archive, of which APT_SNAPSHOT is one, in the base image's" \
        "/etc/apt, found $floating; build without --build-arg APT_SNAPSHOT, or on another base"
    options="-o Dir::Etc::SourceList=$scratch/sources.list -o Dir::Etc::SourceParts=$scratch/sources.list.d"
    options="$options -o Acquire::Check-Valid-Until=false"
    todo='choose an APT_SNAPSHOT that is not older than the base image, or build without'
}

missing=
for package in $(awk -v image="$image" '!/^#/ { for (i = 2; i <= NF; i++) if ($i == image) print $1 }' "$here/debian.txt"); do
    dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
        missing="$missing $package"
done

if [ -n "$missing" ]; then
    export DEBIAN_FRONTEND=noninteractive
    # The only name by which apt knows it.
    [ -z "${HTTP_PROXY-}" ] || export http_proxy="${http_proxy:-$HTTP_PROXY}"
    [ -z "${APT_SNAPSHOT:-}" ] || snapshot
    # shellcheck disable=SC2086 # several words
    if ! { apt-get $options update && apt-get $options install --yes --no-install-recommends $missing; } >"$log" 2>&1; then
        # That an archive does not answer is a warning to apt, which then knows no package.
        found=$({ grep -E '^(E: |W: Failed to fetch )' "$log" || tail -n 1 "$log"; } | head -n 1)
        grep -qi 'no space left' "$log" && found='no space left on device' && todo='free some for the engine'
        stop "expected to install$missing, found ${found:-nothing said}; $todo"
    fi
    echo "installed$missing"
fi

# Lists, caches and logs say when it was: they would make every build another one.
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/aux-cache \
    /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/log/bootstrap.log /var/lib/dpkg/*-old /root/.cache
# Numbers are what counts (USER 1000:1000); some programs want a name to them.
getent group 1000 >/dev/null || echo 'ascend:x:1000:' >>/etc/group
getent passwd 1000 >/dev/null || echo 'ascend:x:1000:1000::/opt/ascend-rl/cache:/bin/bash' >>/etc/passwd
