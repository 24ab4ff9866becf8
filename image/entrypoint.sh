#!/bin/bash
# Entry point of the images: CANN's environment where there is CANN, then a verb of the command line or any command.
#   docker run IMAGE doctor        docker run IMAGE train --recipe smoke        docker run -it IMAGE bash

# A function of its own: the scripts read their caller's arguments ($@), and those of this one are not theirs.
environment() {
    local script=$1
    shift
    # shellcheck disable=SC1090 # it is the base image's
    if [[ -r $script ]]; then source "$script" "$@"; fi
}
environment /usr/local/Ascend/ascend-toolkit/set_env.sh
# nnal asks torch for its C++ ABI if it is not told, which imports torch twice; the build's gate holds the two together.
environment /usr/local/Ascend/nnal/atb/set_env.sh --cxx_abi=1
# CANN writes what it compiles, and its logs, here instead of the current folder; CANN 8.0 wants it to be there.
[[ -z ${ASCEND_WORK_PATH-} ]] || mkdir -p "$ASCEND_WORK_PATH"

# Only on ARM: "less fragmentation", no gain on x86. Before everything else, since only what starts later inherits it.
jemalloc=/usr/lib/aarch64-linux-gnu/libjemalloc.so.2
if [[ $(uname -m) == aarch64 && -r $jemalloc ]]; then
    export LD_PRELOAD=$jemalloc${LD_PRELOAD:+:$LD_PRELOAD}
fi

home=/opt/ascend-rl
# A verb goes before a program of its name: `test` is both. Options without a verb are the command line's, too.
if [[ ${1-} == -* ]] || grep -qxF -- "${1-}" "$home/verbs" 2>/dev/null; then
    exec python "$home/project/cli.py" "$@"
fi
exec "$@"
