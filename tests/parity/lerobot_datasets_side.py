"""Runs under LeRobot's own Python: reads, writes and edits datasets, and says what it saw.

    python lerobot_datasets_side.py write ROOT
    python lerobot_datasets_side.py items JOBS.json
    python lerobot_datasets_side.py edit ROOT FOLDER

``write`` makes a dataset of every kind of feature. ``items`` reads datasets, a job each ({"root":
..., "out": ..., "options": {"episodes": ..., "delta_timestamps": ...}}), and stores every item as
"POSITION/KEY", texts as JSON. ``edit`` deletes an episode, splits and merges.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import torch

if not hasattr(av, "option"):  # gone from newer PyAVs; LeRobot names it in a type, and no more
    av.option = SimpleNamespace(Option=object)

from lerobot.datasets.dataset_tools import delete_episodes, merge_datasets, split_dataset
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot_frames import FEATURES, LENGTHS, TASKS, frame


def opened(root: Path, **options) -> LeRobotDataset:
    return LeRobotDataset("local/dataset", root=root, video_backend="pyav", **options)


def items(root: str, out: str, options: dict) -> None:
    dataset = opened(Path(root), **options)
    arrays, texts = {}, {}
    for position in range(len(dataset)):
        for key, value in dataset[position].items():
            name = f"{position}/{key}"
            if isinstance(value, torch.Tensor):
                arrays[name] = value.numpy()
            else:
                texts[name] = value
    arrays["length"] = np.array(len(dataset))
    arrays["texts"] = np.array(json.dumps(texts))
    np.savez(out, **arrays)


def write(root: Path) -> None:
    dataset = LeRobotDataset.create(
        "local/dataset", 10, FEATURES, root=root, robot_type="toy", video_backend="pyav"
    )
    for episode, length in enumerate(LENGTHS):
        for step in range(length):
            dataset.add_frame({**frame(episode, step), "task": TASKS[episode % 2]})
        dataset.save_episode()
    dataset.finalize()


def edit(root: Path, folder: Path) -> None:
    source = opened(root)
    delete_episodes(source, [1], output_dir=folder / "deleted", repo_id="local/deleted")
    halves = split_dataset(source, {"a": [0, 1], "b": [2, 3]}, output_dir=folder)
    merge_datasets(list(halves.values()), "local/merged", output_dir=folder / "merged")


if __name__ == "__main__":
    torch.set_num_threads(1)
    verb, path, *rest = sys.argv[1:]
    if verb == "items":
        for job in json.loads(Path(path).read_text()):
            items(**job)
    elif verb == "write":
        write(Path(path))
    else:
        edit(Path(path), Path(rest[0]))
