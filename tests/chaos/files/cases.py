"""Commands whose file operations fail: their inputs, how to complete them, what must be equal."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from proctor.runs.journal import JOURNAL_FILE, read_journal
from tests.chaos.command_cases import CLAIMS, PROCTOR
from tests.loopback_hub import LoopbackHub

_GOLDEN = Path(__file__).parents[2] / "golden/data/datasets"
_UNSTABLE = ("report.html", "README.md", ".lock", ".claim")
"""Files with times in them, and locks."""


def _nothing(home: Path) -> Any:
    return None


def _no_rows(home: Path) -> set[Any]:
    return set()


@dataclass(frozen=True)
class FileCase:
    """A command; paths are relative to its folder, ``home``."""

    words: list[str]
    inputs: tuple[str, ...] = ()
    resume: list[str] | None = None
    """How it is continued; None: by the same words."""
    result: Callable[[Path], Any] = _nothing
    """What must be equal to an undisturbed run."""
    finished: Callable[[Path], set[Any]] = _no_rows
    """What has been finished so far; it must survive."""
    replaced: str | None = None
    """A dataset that is edited in place: the old one or the new one at any time."""
    spare: tuple[str, ...] = ()
    """Names of files that may stay, by design."""
    on_hub: bool = False
    """Whether the result is on the Hub."""


def content_of(folder: Path) -> dict[str, str]:
    """Return a hash of every file that is the same in two undisturbed runs."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name not in _UNSTABLE
    }


def _content(*folders: str) -> Callable[[Path], Any]:
    return lambda home: [content_of(home / folder) for folder in folders]


def _dataset(*folders: str) -> Callable[[Path], Any]:
    """Of datasets: all files, and whether each has its card."""

    def result(home: Path) -> Any:
        return [
            (content_of(home / folder), (home / folder / "README.md").exists())
            for folder in folders
        ]

    return result


def _rows(home: Path) -> set[Any]:
    return {
        (str(row.key), row.outcome.value, row.digest)
        for row in read_journal(home / "out").rows
        if (home / "out" / JOURNAL_FILE).exists()
    }


def _finished_rows(home: Path) -> set[Any]:
    return _rows(home) if (home / "out" / JOURNAL_FILE).exists() else set()


def _evaluated(home: Path) -> Any:
    info = json.loads((home / "out/eval_info.json").read_text())
    overall = {key: info["overall"][key] for key in ("pc_success", "n_episodes")}
    return sorted(_rows(home)), overall, (home / "out/report.html").stat().st_size > 0


def _checkpoints(home: Path) -> set[Any]:
    folder = home / "out/checkpoints"
    weights = folder.glob("[0-9]*/pretrained_model/model.safetensors")
    return {(path.parts[-3], hashlib.sha256(path.read_bytes()).hexdigest()) for path in weights}


def _trained(home: Path) -> Any:
    rows = [json.loads(line) for line in (home / "out/log.jsonl").read_text().splitlines()]
    losses = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    last = (home / "out/checkpoints/last").readlink().name
    return sorted(_checkpoints(home)), losses, last, (home / "out/report.html").exists()


def _learned(home: Path) -> Any:
    return (home / "out/checkpoints/last/pretrained_model/model.safetensors").stat().st_size > 0


def _recorded(home: Path) -> Any:
    from tests.recordings import columns

    # Row groups of meta/episodes differ by when the session was interrupted.
    content = content_of(home / "out")
    values = {name: np.asarray(value).tolist() for name, value in columns(home / "out").items()}
    tables = {name: digest for name, digest in content.items() if "episodes" not in name}
    return values, tables, (home / "out.recording").exists()


def _n_recorded(home: Path) -> set[Any]:
    info = home / "out/meta/info.json"
    return set(range(json.loads(info.read_text())["total_episodes"])) if info.exists() else set()


def _exist(*names: str) -> Callable[[Path], Any]:
    return lambda home: [name for name in names if (home / name).stat().st_size > 0]


def _installed(home: Path) -> Any:
    folder = home / "user/.cache/proctor/benchmarks/small"
    program = "import small_world; print(small_world.VALUE)"
    said = subprocess.check_output([folder / "python", "-c", program])
    return said, (folder / "install.json").exists()


_FAKE = ["--policy.type=random", "--env.type=fake", "--env.episode_length=8"]
_EVAL = ["eval", *_FAKE, "--eval.n_episodes=4", "--output_dir=out"]
_RECORD = [
    "record", "--policy.type=expert", "--env.type=fake", "--env.endless=true",
    "--env.episode_length=6", "--record.keep=all", "--record.n_episodes=3",
    "--eval.batch_size=1", "--dataset.root=out",
]  # fmt: skip
_TRAIN = [
    "train", "--policy.type=act", "--policy.chunk_size=4", "--policy.n_action_steps=4",
    "--policy.dim_model=16", "--policy.n_heads=2", "--policy.dim_feedforward=24",
    "--policy.n_encoder_layers=1", "--policy.n_vae_encoder_layers=1", "--policy.latent_dim=4",
    "--policy.device=cpu", "--policy.push_to_hub=false", "--steps=6", "--batch_size=4",
    "--save_freq=2", "--log_freq=1", "--num_workers=0", "--dataset.root=numbers",
    "--output_dir=out",
]  # fmt: skip
_CACHED = [*(word.replace("=numbers", "=data") for word in _TRAIN), "--dataset.cache=disk"]
_ONLINE = [
    "train-online", "--env.type=fake", "--policy.type=gaussian_actor", "--policy.device=cpu",
    "--policy.online_steps=60", "--save_freq=20", "--output_dir=out",
]  # fmt: skip
_CLAIM = [
    "reproduce", "solved", "--claims=claims.yaml", "--output_dir=out",
    "--eval.use_async_envs=false",
]  # fmt: skip


def _edit(verb: str, *words: str, inputs: Iterable[str] = ("data",), out: str = "out") -> FileCase:
    names = tuple(inputs)
    return FileCase(
        ["data", verb, *names, *words, f"--output={out}"], names, result=_dataset("out", *names)
    )


def _in_place(verb: str, *words: str, also: tuple[str, ...] = ()) -> FileCase:
    words = ("data", verb, "data", *words, "--in_place")
    return FileCase([*words], ("data",), result=_dataset("data", *also), replaced="data")


CASES = {
    "eval": FileCase(
        [*_EVAL, "--eval.batch_size=2"],
        resume=["eval", "--resume", "--output_dir=out"],
        finished=_finished_rows,
        result=_evaluated,
        spare=("workers.log",),
    ),
    "eval with video": FileCase(
        [*_EVAL, "--eval.use_async_envs=false", "--video.episodes=1"],
        resume=["eval", "--resume", "--output_dir=out"],
        finished=_finished_rows,
        result=lambda home: (_evaluated(home), len([*(home / "out").rglob("*.mp4")])),
    ),
    "train": FileCase(
        _TRAIN, ("numbers",), ["train", "--resume", "--output_dir=out"], _trained, _checkpoints,
        spare=("log.jsonl.old1",),
    ),
    "train with cache": FileCase(
        _CACHED, ("data",), ["train", "--resume", "--output_dir=out"], _trained, _checkpoints,
        spare=("log.jsonl.old1",),
    ),
    "train-online": FileCase(
        _ONLINE, (), ["train-online", "--resume", "--output_dir=out"], _learned,
        spare=("log.jsonl.old1",),
    ),
    "record": FileCase(
        [*_RECORD, "--record.images=false"],
        resume=["record", "--resume", "--dataset.root=out"],
        result=_recorded,
        finished=_n_recorded,
    ),
    "record with video": FileCase(
        _RECORD,
        resume=["record", "--resume", "--dataset.root=out"],
        result=_recorded,
        finished=_n_recorded,
    ),
    "report": FileCase(
        ["report", "run", "--output=p.html", "--csv=c.csv", "--markdown=m.md", "--card=card"],
        ("run",),
        result=_exist("p.html", "c.csv", "m.md", "card.md", "card.json"),
    ),
    "compare": FileCase(
        ["compare", "run", "run2", "--json=c.json", "--html=c.html"],
        ("run", "run2"),
        result=_exist("c.json", "c.html"),
    ),
    "reproduce": FileCase(
        _CLAIM,
        ("claims.yaml",),
        [*_CLAIM, "--resume"],
        result=lambda home: (_evaluated(home), (home / "out/claim.json").stat().st_size > 0),
        finished=_finished_rows,
    ),
    "benchmarks install": FileCase(
        ["benchmarks", "install", "small", "--yes"], result=_installed, spare=("small.log",)
    ),
    "data info": FileCase(["data", "info", "data"], ("data",)),
    "data check": FileCase(["data", "check", "data"], ("data",)),
    "data view": FileCase(
        ["data", "view", "data", "--html=p.html"], ("data",), result=_exist("p.html")
    ),
    "data cache": FileCase(["data", "cache", "--clear"], ("frames",)),
    "data delete": _edit("delete", "--episodes=1"),
    "data split": replace(
        _edit("split", "--splits={a: 0.5, b: 0.5}"), result=_dataset("out/a", "out/b", "data")
    ),
    "data merge": _edit("merge", inputs=("data", "data2")),
    "data rename-feature": _in_place("rename-feature", "next.reward", "reward", also=("data_old",)),
    "data remove-feature": _edit("remove-feature", "next.reward"),
    "data set-task": _in_place("set-task", "--task=other", "--backup=false"),
    "data to-video": _edit("to-video", inputs=("images",)),
    "data reencode": _edit("reencode", "--codec=h264"),
    "data stats": _in_place("stats", "--backup=false"),
    "data convert": _edit("convert", inputs=("old",)),
    "data edit": FileCase(
        [
            "data", "edit", "--operation.type=delete_episodes", "--operation.episode_indices=[1]",
            "--root=data", "--new_root=out", "--repo_id=me/it", "--new_repo_id=me/new",
        ],
        ("data",),
        result=_dataset("out", "data"),
    ),
    "data push": FileCase(["data", "push", "data", "me/it"], ("data",), on_hub=True),
    "data pull": FileCase(
        ["data", "pull", "me/it", "--root=out"], result=_content("out"), on_hub=True
    ),
}  # fmt: skip


class Inputs:
    """What the commands read, made once in ``base``."""

    def __init__(self, base: Path, wanted: Iterable[str]) -> None:
        self._base = base
        base.mkdir()
        for name in wanted:
            self._make(name, base / name)

    def put(self, name: str, home: Path) -> None:
        """Copy an input into the folder of a command."""
        source, to = self._base / name, home / name
        if name == "frames":
            to = home / "user/.cache/proctor/frames"
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, to)

    def _make(self, name: str, to: Path) -> None:
        from tests.unit.datasets.making import turn_old
        from tests.unit.training.builders import write_numbers

        match name:
            case "numbers":
                write_numbers(to)
            case "run" | "run2":
                policy = "--policy.type=random" if name == "run" else "--policy.type=zero"
                _call("eval", *_FAKE[1:], policy, "--eval.n_episodes=4", f"--output_dir={to}")
            case "claims.yaml":
                to.write_text(CLAIMS)
            case "images":
                shutil.copytree(_GOLDEN / "image1ep", to)
            case "frames":
                data = shutil.copytree(_GOLDEN / "video3ep", to.parent / "filmed")
                words = [word for word in _CACHED if not word.startswith(("--dataset", "--out"))]
                words += [f"--dataset.root={data}", f"--output_dir={to.parent / 'trained'}"]
                _call(*words, "--dataset.cache=disk", f"--dataset.cache_dir={to}")
            case _:
                shutil.copytree(_GOLDEN / "video3ep", to)
        if name == "old":
            turn_old(to)


def _call(*words: str) -> None:
    done = subprocess.run([*PROCTOR, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr[-2000:]}"


def full_hub() -> LoopbackHub:
    """Return a Hub with a dataset."""
    hub = LoopbackHub()
    hub.hold(_GOLDEN / "video3ep")
    return hub


def make_recipe(base: Path) -> dict[str, str]:
    """Write a recipe, its package and a ``uv`` that needs no network; return the variables."""
    from tests.chaos.files.server import RECIPES
    from tests.unit.commands.test_benchmarks_command import make_wheel, write_fake_uv, write_recipe

    recipes = base / "recipes"
    recipes.mkdir(parents=True)
    write_recipe(recipes, make_wheel(base))
    programs = write_fake_uv(base)
    return {RECIPES: str(recipes), "PATH": f"{programs}:/usr/bin:/bin"}
