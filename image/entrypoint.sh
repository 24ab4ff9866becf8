#!/bin/bash
# Entry point of the images: CANN's environment where there is CANN, then a verb of the command line or any command.
#   docker run IMAGE doctor        docker run IMAGE train --recipe smoke        docker run -it IMAGE bash

# A function without arguments: the scripts read their caller's ($@), and these are not theirs.
cann() {
    local script
    for script in /usr/local/Ascend/ascend-toolkit/set_env.sh /usr/local/Ascend/nnal/atb/set_env.sh; do
        # shellcheck disable=SC1090 # they are the base image's
        if [[ -r $script ]]; then source "$script"; fi
    done
}
cann

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
