# Stand-in for nnal's own, which finds itself by the shell that reads it, and asks torch for its C++ ABI if not told.
if [[ -n $ZSH_VERSION ]]; then
    here=$0
else
    here=${BASH_SOURCE[0]}
fi
abi=0
for word in "$@"; do
    [[ $word != --cxx_abi=* ]] || abi=${word#*=}
done
export ATB_HOME_PATH=$(cd "$(dirname "$here")" && pwd)/latest/atb/cxx_abi_$abi
export LD_LIBRARY_PATH=$ATB_HOME_PATH/lib:$LD_LIBRARY_PATH
