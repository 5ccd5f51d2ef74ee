#!/bin/sh
# Install Proctor as its containers have it: container_setup.sh cpu|cuda SOURCE PREFIX EXTRAS
# cpu: Mesa's software OpenGL. cuda: EGL of the NVIDIA driver, which the container runtime mounts.
# SKIP_APT=1 installs no system packages (for tests outside a container). LOCKED=1 refuses packages without hashes.
set -eu
kind=$1 source=$2 prefix=$3 extras=$4

case $kind in
  cpu) packages="libegl1 libgl1 libgl1-mesa-dri libosmesa6 libglib2.0-0" ;;
  cuda) packages="libegl1 libgl1 libglvnd0 libopengl0 libglib2.0-0 python3 python3-venv" ;;
  *) echo "container_setup.sh: unknown kind $kind (choose cpu or cuda)" >&2; exit 2 ;;
esac
[ -f "$source/pyproject.toml" ] || { echo "container_setup.sh: no source in $source" >&2; exit 2; }

if [ -z "${SKIP_APT:-}" ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages
  rm -rf /var/lib/apt/lists/*
fi

# GLVND finds the driver's EGL by this file; images of CUDA do not have it.
if [ "$kind" = cuda ]; then
  vendors=${EGL_VENDORS:-/usr/share/glvnd/egl_vendor.d}
  mkdir -p "$vendors"
  printf '%s\n' '{"file_format_version": "1.0.0", "ICD": {"library_path": "libEGL_nvidia.so.0"}}' \
    > "$vendors/10_nvidia.json"
fi

"${PYTHON:-python3}" -m venv "$prefix"
lock=$source/locks/$kind.txt
pip() { "$prefix/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check "$@"; }
if [ -f "$lock" ]; then
  pip --require-hashes --no-deps -r "$lock"
  pip --no-deps --no-build-isolation "$source"
elif [ -n "${LOCKED:-}" ]; then
  echo "container_setup.sh: no $lock; write it: python scripts/lock.py $extras locks/$kind.txt" >&2; exit 2
else
  echo "note: no locks/$kind.txt (scripts/lock.py writes it): packages are installed without hashes" >&2
  pip -c "$source/constraints.txt" "$source[$extras]"
fi
"$prefix/bin/proctor" --version
