"""Pack what a GPU host without a network lacks: packages, the renderer warp, compiled kernels.

    python scripts/offline_host.py --output=vendor [--python=3.12] [--cuda_arch=90] [--part_mb=46]

Run it on x86_64 Linux with a network and `pip install -e '.[metaworld]'`; it takes ten minutes. It
writes OUTPUT/one, OUTPUT/two, ...: each has a part of one archive, and setup.sh. Copy the folders
to the host, together or one after the other, and source each setup.sh in bash. The last one unpacks
all. From then on any of them only sets the variables. docs/guides/gpu_host.md has the commands.

The host needs x86_64 Linux, the Python of --python, an NVIDIA driver, and the packages of HOST_HAS.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from warp_fatbin import FatbinError, prune_library

ROOT = Path(__file__).resolve().parents[1]
SETUP = Path(__file__).with_name("offline_host_setup.sh")
PINS = ROOT / "constraints.txt"
RECIPE = ROOT / "src/proctor/benchmarks/recipes/warp.toml"

HOST_HAS = ("torch", "torchvision", "transformers", "numpy", "scipy", "pyarrow", "safetensors")
"""Modules that the host must have; theirs are pillow, tokenizers and huggingface_hub."""
PACKAGES = (
    *("metaworld", "mujoco", "gymnasium", "farama-notifications", "cloudpickle", "packaging"),
    *("typing_extensions", "glfw", "imageio"),  # gymnasium imports the last two
    *("msgspec", "pyyaml", "rich", "av"),  # rich without what colours code and draws Markdown
)
GL_PACKAGES = ("pyopengl",)
GL_DEBS = ("egl1", "glvnd0", "opengl0", "gl1", "glx0", "gles2", "x11-6", "xcb1")
MUJOCO_LEFT_OUT = (
    *("doc", "include", "mjx", "plugin", "testdata", "**/*_test.py"),
    *("_rollout.*.so", "_simulate.*.so"),  # of rollout.py and viewer.py
)
LEFT_OUT = {
    "host": ("bin", "metaworld/assets/scene/textures"),
    "host/mujoco": MUJOCO_LEFT_OUT,
    "renderer": ("bin", "warp/tests", "warp/examples", "mujoco_warp/test_data"),
    "renderer/mujoco": MUJOCO_LEFT_OUT,
    "renderer/mujoco_warp": ("**/*_test.py",),
    "renderer/warp/bin": ("warp-clang.so",),  # kernels for a CPU
}
"""Files that the host does not need, by folder."""
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
FILTERS: list[dict[str, Any]] = [
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 128 << 20},
]
DRAWN = {1: "mt50", 4: "reach-v3"}
"""Tasks that are drawn to find the kernels, by samples per pixel. All share their kernels."""
PART_NAMES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
SETUP_BYTES = 8_000
LAUNCH_BLOCK_DIM = 256
"""Threads per block of a launch that does not name them, on CUDA devices."""


class PackError(Exception):
    """The reason why nothing was packed, as one line."""


def run(command: Sequence[str | Path], what: str, **settings: Any) -> None:
    """Run a command.

    Raises:
        PackError: it failed; with the last line of its error output.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(  # noqa: S603  our own command
            words, capture_output=True, text=True, check=False, **settings
        )
    except OSError as error:
        raise PackError(f"{what}: {words[0]}: {error.strerror}") from None
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        errors = [line for line in lines if "error" in line.lower()]
        raise PackError(f"{what}: {(errors or lines)[-1][:400]}")


# Packages


def pinned(names: Sequence[str]) -> list[str]:
    """Return requirements, with the versions of constraints.txt."""
    lines = [line.partition("==") for line in PINS.read_text().splitlines() if "==" in line]
    pins = {_normal(name): version for name, _, version in lines}
    return [f"{name}=={pins[_normal(name)]}" if _normal(name) in pins else name for name in names]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def renderer_requirements() -> list[str]:
    """Return the recipe's packages; the library of MuJoCo 4 is a package of its own."""
    found = tomllib.loads(RECIPE.read_text())["requirements"]
    (mujoco,) = (name for name in found if name.startswith("mujoco=="))
    core = mujoco.replace("mujoco", "mujoco-core", 1)
    return [core, *(name for name in found if not name.startswith("numpy"))]


def install(requirements: Sequence[str], folder: Path, python: str | None = None) -> None:
    """Install packages into a folder: for ``python`` on x86_64, or for this interpreter."""
    words = ["--target", str(folder), "--no-deps", "--no-compile", "--only-binary=:all:"]
    if python is not None:
        words += ["--python-version", python, "--implementation", "cp"]
        words += [f"--platform={name}_x86_64" for name in PLATFORMS]
    words = [sys.executable, "-m", "pip", "install", "--quiet", *words, *requirements]
    run(words, f"packages of {folder.name}")


def add_gl_loader(folder: Path, scratch: Path) -> None:
    """Unpack the GL loader's Debian packages, and name the NVIDIA driver's EGL."""
    debs = [f"lib{name}:amd64" for name in GL_DEBS]
    scratch.mkdir()
    run(["apt-get", "download", "-qq", *debs], "GL loader", cwd=scratch)
    for deb in scratch.glob("*.deb"):
        run(["dpkg-deb", "-x", deb, folder], "GL loader")
    icd = '{"file_format_version": "1.0.0", "ICD": {"library_path": "libEGL_nvidia.so.0"}}'
    (folder / "10_nvidia.json").write_text(icd)


def leave_out(tree: Path) -> None:
    """Remove the files of LEFT_OUT, Meta-World's unused textures, and debug information."""
    for folder, patterns in LEFT_OUT.items():
        for path in (found for pattern in patterns for found in (tree / folder).glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assets = tree / "host/metaworld/assets"
    named = set(re.findall(r"[\w.-]+\.png", "".join(map(Path.read_text, assets.rglob("*.xml")))))
    for path in (assets / "textures").iterdir():
        if path.name not in named:
            path.unlink()
    if shutil.which("strip"):
        libraries = list((tree / "host").rglob("*.so*"))
        run(["strip", "--strip-debug", *libraries], "debug information")


# Kernels of the renderer


def compile_on_launch(cuda_arch: int) -> None:
    """Have each kernel that is launched on the CPU compiled for a GPU too, without one.

    This runs in the renderer's interpreter. It uses private functions of warp 1.19.0.
    """
    import warp

    launch, compiled = warp.launch, set()

    def compiling_launch(
        kernel: Any, *inputs: Any, block_dim: int | None = None, **more: Any
    ) -> Any:
        result = launch(kernel, *inputs, block_dim=block_dim, **more)
        module, threads = kernel.module, block_dim or LAUNCH_BLOCK_DIM
        variant = module.get_module_hash(threads), threads
        if variant not in compiled:
            compiled.add(variant)
            for use_ptx in (False, True):  # the host's driver decides which of them it loads
                options = module.resolved_options[threads]
                module._compile(None, None, None, cuda_arch, use_ptx=use_ptx, options=options)
        return result

    warp.launch = compiling_launch


def compile_kernels(tree: Path, scratch: Path, cuda_arch: int) -> int:
    """Draw Meta-World's tasks on the CPU and keep the GPU kernels; return their modules' number.

    The tasks' files are those that travel, so this also checks that all of them load.
    """
    for folder in ("renderer", "hook", "files"):
        (scratch / folder).mkdir()
    install(renderer_requirements(), scratch / "renderer")
    (scratch / "files/metaworld").symlink_to(tree / "host/metaworld")
    hook = f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\nimport offline_host\n"
    hook += f"offline_host.compile_on_launch({cuda_arch})\n"
    (scratch / "hook/sitecustomize.py").write_text(hook)
    python = scratch / "python"
    paths = f'PYTHONPATH="{scratch}/hook:{scratch}/renderer" WARP_CACHE_PATH="{scratch}/cache"'
    python.write_text(f'#!/bin/sh\nTMPDIR="{scratch}" {paths} exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    variables = os.environ | {"PYTHONPATH": f"{scratch}/files:{ROOT}/src"}
    for samples, tasks in DRAWN.items():
        words = drawing_command(tasks, samples, python, scratch / f"run-{samples}")
        run(words, "drawing Meta-World's tasks", env=variables)
    return keep_kernels(scratch / "cache", tree / "kernels", cuda_arch)


def drawing_command(tasks: str, samples: int, python: Path, output: Path) -> list[str]:
    """Return the command that draws one small image of each task, at its reset."""
    return [
        *(sys.executable, "-m", "proctor.cli", "eval", f"--output_dir={output}"),
        *("--policy.type=random", "--policy.inputs=observation.image", "--video.episodes=0"),
        *("--env.type=metaworld", f"--env.task={tasks}", "--env.episode_length=1"),
        *("--env.observation_height=32", "--env.observation_width=32"),
        *("--env.renderer=warp", "--env.renderer_device=cpu", f"--env.renderer_python={python}"),
        *(f"--env.samples_per_pixel={samples}", "--eval.n_episodes=1", "--eval.batch_size=1"),
        "--eval.watchdog_s=900",  # kernels are compiled during an episode
    ]


def keep_kernels(cache: Path, kernels: Path, cuda_arch: int) -> int:
    """Copy the GPU kernels from warp's cache, without sources; return the number of modules."""
    found = list(cache.rglob(f"*.sm{cuda_arch}.cubin"))
    for cubin in found:
        folder = kernels / cubin.parent.relative_to(cache)
        folder.mkdir(parents=True)
        for path in (cubin, cubin.with_suffix(".ptx"), *cubin.parent.glob("*.meta")):
            shutil.copy(path, folder)
    if not found:
        raise PackError(f"no kernel was compiled for --cuda_arch={cuda_arch}")
    return len(found)


# The archive and its parts

RENDERER_PYTHON = """#!/bin/sh
# The renderer's interpreter, for --env.renderer_python.
here=$(dirname "$(readlink -f "$0")")
export PYTHONPATH="$here/renderer" WARP_CACHE_PATH="$here/kernels"
exec python3 "$@"
"""
PROCTOR = '#!/bin/sh\nexec python3 -m proctor.cli "$@"\n'


def add_commands(tree: Path) -> None:
    """Write the commands ``proctor`` and ``renderer_python``."""
    for name, text in (("bin/proctor", PROCTOR), ("renderer_python", RENDERER_PYTHON)):
        path = tree / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)


def write_archive(tree: Path, archive: Path, filters: list[dict[str, Any]] | None = None) -> None:
    """Write one compressed tar archive, similar files next to each other."""
    files = [path for path in tree.rglob("*") if path.is_file() or path.is_symlink()]
    with (
        lzma.open(archive, "wb", check=lzma.CHECK_CRC64, filters=filters or FILTERS) as packed,
        tarfile.open(fileobj=packed, mode="w|") as tar,
    ):
        for path in sorted(files, key=lambda path: (path.suffix, path)):
            tar.add(path, path.relative_to(tree), filter=_without_owner)


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def write_parts(archive: Path, output: Path, part_mb: float, python: str) -> list[Path]:
    """Split the archive into folders of equal size, each below ``part_mb``; return them.

    Part folders of an earlier run are removed.
    """
    size, room = archive.stat().st_size, int(part_mb * 1e6) - SETUP_BYTES
    count = -(-size // room)
    if count > len(PART_NAMES):
        raise PackError(f"--part_mb={part_mb:g}: {count} parts are too many")
    for folder in (output / name for name in PART_NAMES):
        if (folder / "setup.sh").is_file():
            shutil.rmtree(folder)
    with archive.open("rb") as source:
        identity = hashlib.file_digest(source, "sha256").hexdigest()[:12]
        source.seek(0)
        folders = [output / name for name in PART_NAMES[:count]]
        for number, folder in enumerate(folders, start=1):
            folder.mkdir(parents=True)
            (folder / "part").write_bytes(source.read(-(-size // count)))
            (folder / "setup.sh").write_text(
                setup_text(folder.name, number, count, identity, python)
            )
    return folders


def setup_text(name: str, number: int, count: int, identity: str, python: str) -> str:
    """Return the script that the host sources."""
    values = {"NAME": name, "PART": f"{number:02}", "PARTS": str(count), "ID": identity}
    values |= {"PYTHON": python, "MODULES": " ".join(HOST_HAS)}
    text = SETUP.read_text()
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def pack(options: argparse.Namespace, scratch: Path) -> list[Path]:
    """Pack everything; return the folders of the parts."""
    tree, started = scratch / "tree", time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:4.0f} s  {text}", flush=True)

    say("downloading packages")
    gl = GL_PACKAGES if options.gl else ()
    install(pinned([*PACKAGES, *gl]), tree / "host", options.python)
    install(renderer_requirements(), tree / "renderer", options.python)
    if options.gl:
        add_gl_loader(tree / "gl", scratch / "debs")
    leave_out(tree)
    prune_library(tree / "renderer/warp/bin/warp.so", options.cuda_arch)
    add_commands(tree)
    say(f"compiling kernels for sm_{options.cuda_arch}")
    modules = compile_kernels(tree, scratch, options.cuda_arch)
    say(f"compressing, with {modules} compiled modules")
    write_archive(tree, scratch / "archive")
    folders = write_parts(scratch / "archive", options.output, options.part_mb, options.python)
    say(f"{len(folders)} parts")
    return folders


def report(folders: Sequence[Path]) -> None:
    """Print the size of each part and the commands for the host."""
    sizes = [sum(path.stat().st_size for path in folder.iterdir()) for folder in folders]
    for folder, size in zip(folders, sizes, strict=True):
        print(f"{folder}  {size / 1e6:.1f} MB")
    print(f"total  {sum(sizes) / 1e6:.1f} MB\n\non the host, in bash, in the clone of Proctor:")
    for folder in folders:
        print(f"  . {folder}/setup.sh")
    print("  proctor eval --env.type=metaworld --env.renderer=warp \\")
    print("      --env.renderer_python=/tmp/offline_host/renderer_python ...")


def main(words: Sequence[str] | None = None) -> int:
    """Pack and report; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the parts")
    parser.add_argument("--python", default="3.12", help="the host's Python (default 3.12)")
    parser.add_argument(
        "--cuda_arch", type=int, default=90, help="compute capability of its GPU (default 90: H200)"
    )
    parser.add_argument(
        "--part_mb", type=float, default=46, help="most megabytes of a part (default 46)"
    )
    parser.add_argument(
        "--gl", action=argparse.BooleanOptionalAction, default=False, help="with the GL loader"
    )
    options = parser.parse_args(words)
    try:
        if not re.fullmatch(r"3\.\d+", options.python):
            raise PackError(f"--python={options.python}: expected a version such as 3.12")
        if options.part_mb < 1:
            raise PackError(f"--part_mb={options.part_mb:g}: at least 1")
        if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
            raise PackError("this machine must be x86_64 Linux, as the host")
        with tempfile.TemporaryDirectory(prefix="proctor-offline-") as scratch:
            report(pack(options, Path(scratch)))
    except (PackError, FatbinError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
