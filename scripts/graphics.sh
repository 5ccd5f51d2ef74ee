#!/bin/sh
# Make sure that something here can render: the software GL of Debian and Ubuntu, when root; and
# that OpenCV loads where it is installed (PushT), which wants libGL and GLib.
python=$1
"$python" -c 'import importlib.util, sys
from proctor.system.graphics.gl import find_gl_backend as find
try:
    importlib.util.find_spec("cv2") and importlib.import_module("cv2")
except ImportError:
    sys.exit(1)
sys.exit(find() is None)' && exit 0
packages="libegl1 libgl1 libgl1-mesa-dri libosmesa6 libglib2.0-0"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "no working OpenGL found; installing $packages"
  # Another program may hold apt's locks, and a mirror may fail once.
  for pause_s in 10 30 60 0; do
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $packages >/dev/null && exit 0
    sleep $pause_s
  done
  exit 1
elif command -v apt-get >/dev/null; then
  echo "no working OpenGL found: images cannot be rendered. Run: sudo apt-get install $packages"
else
  echo "no working OpenGL found: images cannot be rendered (state-based policies work)"
fi
