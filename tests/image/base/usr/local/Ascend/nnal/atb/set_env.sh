# Stand-in for nnal's own, which finds itself by the shell that reads it and asks torch for its C++ ABI.
if [[ -n $ZSH_VERSION ]]; then
    here=$0
else
    here=${BASH_SOURCE[0]}
fi
export ATB_HOME_PATH=$(cd "$(dirname "$here")" && pwd)/latest/atb/cxx_abi_1
export LD_LIBRARY_PATH=$ATB_HOME_PATH/lib:$LD_LIBRARY_PATH
