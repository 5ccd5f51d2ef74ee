"""Recipe of a benchmark's installation, a TOML file in this folder. The file's stem is its name.

summary = "robosuite 1.5: the five tasks of robomimic"
licence = "MIT"
pythons = ["3.11", "3.10"]            # accepted versions, the preferred first
requirements = ["robosuite==1.5.2", "mujoco==3.3.0", "numpy==1.26.4"]
no_deps = []                          # installed afterwards, with --no-deps
modules = ["robosuite"]               # what `doctor` imports
download_mb = 420                     # of packages, assets and steps
disk_mb = 1300
minutes = 4
machines = []                         # `uname -m` values; empty: any
programs = []                         # programs that must be on PATH, such as git
tested = "Linux aarch64, CPython 3.11: all five tasks"    # empty: not run here
notes = []                            # what a user must know, one sentence each

[environment]                         # variables of its processes; {folder} is its folder,
SOME_ROOT = "{folder}/assets/some"    # ${NAME} the value of a variable

[[sources]]                           # code that no package index has; the commit verifies it
repository = "https://..."
commit = "..."                        # 40 digits
into = "sources/some"                 # this folder is put on the interpreter's path

[[assets]]                            # files to fetch
url = "https://..."
sha256 = "..."                        # empty: upstream publishes none; recorded at the install
megabytes = 12
unpacked_mb = 40                      # limit of the unpacked files; default: five times megabytes
into = "assets/some"                  # inside its folder; archives are unpacked there

[[steps]]                             # commands of the benchmark's own interpreter, run last
arguments = ["-m", "some.download"]
what = "kitchen assets"
answers = "y\\n"                       # standard input
"""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath

import msgspec

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_EXPANSION = 5
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Asset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file to download."""

    url: str
    into: str
    """Folder inside the installation. ``.zip`` and ``.tar.*`` archives are unpacked there."""
    megabytes: float
    sha256: str = ""
    """Hash in hexadecimal digits. Empty: unknown, so that the install records what it got."""

    unpacked_mb: float = 0.0
    """Size limit of its content; 0: five times ``megabytes``."""

    def __post_init__(self) -> None:
        _check_place(self.into)

    @property
    def unpacked_bytes(self) -> int:
        """Size limit of its content in bytes."""
        return int((self.unpacked_mb or _EXPANSION * self.megabytes) * 1e6) + 10**6

    @property
    def filename(self) -> str:
        """The last part of the URL's path."""
        return PurePosixPath(self.url.partition("?")[0]).name


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A commit of a Git repository. Its folder is put on the interpreter's path."""

    repository: str
    commit: str
    into: str

    def __post_init__(self) -> None:
        if not _COMMIT.fullmatch(self.commit):
            raise ValueError(f"commit={self.commit!r} is not the hash of a commit")
        _check_place(self.into)


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command that the benchmark's own interpreter runs at the end of an installation."""

    arguments: tuple[str, ...]
    what: str
    answers: str = ""
    """Text for its standard input; empty: it gets none."""


class BenchmarkRecipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to install a benchmark into a virtual environment of its own, and what that costs."""

    name: str = ""
    summary: str
    licence: str
    pythons: tuple[str, ...]
    requirements: tuple[str, ...]
    no_deps: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    download_mb: int
    disk_mb: int
    minutes: int
    machines: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    tested: str = ""
    notes: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    sources: tuple[Source, ...] = ()
    assets: tuple[Asset, ...] = ()
    steps: tuple[Step, ...] = ()

    def digest(self) -> str:
        """Return a hash of everything that an installation consists of."""
        parts = (
            self.pythons,
            self.requirements,
            self.no_deps,
            self.environment,
            [(source.repository, source.commit, source.into) for source in self.sources],
            [(asset.url, asset.sha256, asset.into) for asset in self.assets],
            [(step.arguments, step.answers) for step in self.steps],
        )
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def _check_place(into: str) -> None:
    place = PurePosixPath(into)
    if place.is_absolute() or ".." in place.parts:
        raise ValueError(f"into={into!r} leaves the folder")


def read_recipe(name: str, text: str) -> BenchmarkRecipe:
    """Read the recipe of benchmark ``name``.

    Raises:
        ValueError: the text is not a recipe.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a benchmark's name")
    recipe = msgspec.toml.decode(text, type=BenchmarkRecipe)
    if recipe.name:
        raise ValueError("the file's name is the recipe's name")
    return msgspec.structs.replace(recipe, name=name)
