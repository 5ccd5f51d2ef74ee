# Part @PART@ of @PARTS@, made by Proctor's scripts/offline_host.py. To be sourced on the host, in
# bash, in the clone of Proctor:
#
#     . @NAME@/setup.sh
#
# It copies its part to $OFFLINE_HOST (default /tmp/offline_host). With the last part it unpacks all
# of them. Once they are unpacked it only sets variables.

_offline_host() {
    local folder=$1 root=${OFFLINE_HOST:-/tmp/offline_host} count
    local tree=$root/@ID@ parts=$root/@ID@.parts
    if [ ! -d "$tree" ]; then
        mkdir -p "$parts" || return 2
        if [ ! -f "$parts/@PART@" ]; then
            cp "$folder/part" "$parts/new-@PART@" || return 2
            mv "$parts/new-@PART@" "$parts/@PART@"
        fi
        count=$(find "$parts" -name '[0-9][0-9]' | wc -l)
        if [ "$count" -lt @PARTS@ ]; then
            echo "offline host: $count of @PARTS@ parts are in $root"
            return 0
        fi
        _offline_host_check && _offline_host_unpack "$parts" "$tree" || return 2
    fi
    ln -sfn "@ID@/renderer_python" "$root/renderer_python"
    _offline_host_export "$tree"
}

_offline_host_check() {
    python3 - <<'END'
import importlib.util, sys

found = "%d.%d" % sys.version_info[:2]
if found != "@PYTHON@":
    sys.exit("offline host: python3 is %s, the parts are for @PYTHON@" % found)
for name in "@MODULES@".split():
    if importlib.util.find_spec(name) is None:
        print("offline host: this Python has no", name)
END
}

_offline_host_unpack() {
    local parts=$1 tree=$2
    local new=$tree.$$
    mkdir -p "$new" || return 2
    if ! cat "$parts"/[0-9][0-9] | (set -o pipefail; xz -dc | tar -xf - -C "$new"); then
        rm -rf "$new" "$parts"
        echo "offline host: the parts are damaged or the disk is full; copy them again" >&2
        return 2
    fi
    mv -T "$new" "$tree" 2>/dev/null || rm -rf "$new"  # another job was faster
    rm -rf "$parts"
}

_offline_host_export() {
    local tree=$1 libraries=$1/gl/usr/lib/x86_64-linux-gnu
    case ":${PYTHONPATH:-}:" in *":$tree/host:"*) return 0 ;; esac
    export PYTHONPATH="$tree/host${PYTHONPATH:+:$PYTHONPATH}" PATH="$tree/bin:$PATH"
    if [ -d "$PWD/src/proctor" ]; then PYTHONPATH="$PWD/src:$PYTHONPATH"; fi
    if [ -d "$tree/gl" ]; then
        export MUJOCO_GL=egl __EGL_VENDOR_LIBRARY_FILENAMES="$tree/gl/10_nvidia.json"
        export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    fi
}

_offline_host "$(dirname "${BASH_SOURCE[0]}")"
