#!/bin/sh
# Installs the packages of debian.txt for one image, those that the base has not yet, and the user that runs it.
#   image/debian.sh npu|cpu|cpu-build
set -eu
here=$(CDPATH='' cd "$(dirname "$0")" && pwd)
image=$1
log=$(mktemp)
trap 'rm -f "$log"' EXIT

missing=
for package in $(awk -v image="$image" '!/^#/ { for (i = 2; i <= NF; i++) if ($i == image) print $1 }' "$here/debian.txt"); do
    dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
        missing="$missing $package"
done

if [ -n "$missing" ]; then
    export DEBIAN_FRONTEND=noninteractive
    # The only name by which apt knows it.
    [ -z "${HTTP_PROXY-}" ] || export http_proxy="${http_proxy:-$HTTP_PROXY}"
    # shellcheck disable=SC2086 # several words
    if ! { apt-get update && apt-get install --yes --no-install-recommends $missing; } >"$log" 2>&1; then
        found=$(grep -E '^E: ' "$log" | head -n 1 || tail -n 1 "$log")
        grep -qi 'no space left' "$log" && found='no space left on device' && todo='free some for the engine'
        echo "image: debian: expected to install$missing, found ${found:-nothing said}; ${todo:-check the base image's" \
            "sources and the proxy (--build-arg http_proxy=URL)}" >&2
        exit 1
    fi
    echo "installed$missing"
fi

# Lists, caches and logs say when it was: they would make every build another one.
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/aux-cache \
    /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/log/bootstrap.log /var/lib/dpkg/*-old /root/.cache
# Numbers are what counts (USER 1000:1000); some programs want a name to them.
getent group 1000 >/dev/null || echo 'ascend:x:1000:' >>/etc/group
getent passwd 1000 >/dev/null || echo 'ascend:x:1000:1000::/opt/ascend-rl/cache:/bin/bash' >>/etc/passwd
