"""All kinds of cases, with their shares per thousand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz import (
    arguments,
    checkpoints,
    datasets,
    families,
    frames,
    online_frames,
    patterns,
    protocols,
    runs,
    unauthenticated,
)
from tests.fuzz.hostile import Draw
from tests.fuzz.sandbox import Sandbox


@dataclass(frozen=True)
class Kind:
    """One kind of hostile input: ``attack`` draws a case and checks it in the sandbox."""

    name: str
    share: int
    attack: Callable[[Draw, Sandbox], None]


KINDS = [
    Kind("flags of eval", 300, arguments.eval_flags),
    Kind("flags of networks", 3, arguments.network_flags),
    Kind("words of other commands", 120, arguments.other_words),
    Kind("config files", 90, arguments.config_files),
    Kind("run folders: report", 110, runs.report),
    Kind("run folders: compare", 60, runs.compare),
    Kind("run folders: resume", 40, runs.resume),
    Kind("run folders: against", 25, runs.against),
    Kind("run folders: audit", 40, runs.audit),
    Kind("run folders: no locks", 20, runs.claims),
    Kind("checkpoint folders", 120, checkpoints.folders),
    Kind("tokenizers", 30, checkpoints.listeners),
    Kind("regular expressions", 30, patterns.regular_expressions),
    Kind("adapters", 30, families.adapters),
    Kind("sharded weights", 30, families.shards),
    Kind("pipelines of families", 30, families.pipelines),
    Kind("the Hub", 30, checkpoints.hub),
    Kind("requests to view", 180, protocols.requests),
    Kind("lists of view", 22, protocols.lists),
    Kind("words of data", 50, arguments.data_words),
    Kind("datasets: info.json", 50, datasets.infos),
    Kind("datasets: tables", 50, datasets.tables),
    Kind("datasets: videos", 50, datasets.videos),
    Kind("frames: openpi", 5, frames.openpi_frames),
    Kind("frames: vla-eval", 5, frames.vla_eval_frames),
    Kind("frames: groot", 5, frames.groot_frames),
    Kind("frames: lerobot", 5, frames.lerobot_frames),
    Kind("frames: actors and learner", 5, online_frames.online_frames),
    Kind("without key: openpi", 16, unauthenticated.openpi_bytes),
    Kind("without key: vla-eval", 16, unauthenticated.vla_eval_bytes),
    Kind("without key: groot", 16, unauthenticated.groot_bytes),
    Kind("without key: lerobot", 16, unauthenticated.lerobot_bytes),
]
