"""A recording of an SO-101 has the features of LeRobot 0.6.1's record loop, and the extras.

``recorded_so101_info.json`` is meta/info.json of a dataset that LeRobot's own loop wrote on an
emulated bus: two episodes, ten frames per second, one camera of 32 x 24.
"""

from __future__ import annotations

import json
from pathlib import Path

from proctor.cli import main
from proctor.datasets.format.info_file import read_info
from proctor.datasets.reader import open as open_dataset

GOLDEN = json.loads((Path(__file__).parent / "data/robots/recorded_so101_info.json").read_text())
EXTRAS = {"extra.wished_action", "extra.time_s", "extra.repeated.front"}
WORDS = (
    *("record", "--robot.type=so101_follower", "--robot.port=sim:virtual"),
    *("--teleop.type=so101_leader", "--teleop.port=sim:virtual"),
    "--robot.cameras={front: {type: sim, width: 32, height: 24, fps: 10}}",
    *("--dataset.single_task=pick", "--dataset.fps=10", "--dataset.num_episodes=2"),
    "--dataset.episode_time_s=0.6",
)


def test_features_equal_lerobots_besides_the_extras(tmp_path: Path) -> None:
    root = tmp_path / "data"
    assert main([*WORDS, f"--dataset.root={root}"]) == 0
    info = read_info(root)
    assert info.robot_type == GOLDEN["robot_type"]
    assert info.fps == GOLDEN["fps"]
    ours, theirs = info.features, GOLDEN["features"]
    assert set(ours) == set(theirs) | EXTRAS
    assert [key for key in ours if key not in EXTRAS] == list(theirs)
    for key, entry in theirs.items():
        for field in ("dtype", "shape", "names"):
            assert ours[key][field] == entry[field], (key, field)
    assert ours["observation.images.front"]["info"] == theirs["observation.images.front"]["info"]
    assert ours["action"]["info"] == {"units": ["degrees"] * 5 + ["percent"]}
    assert (info.total_episodes, info.total_frames) == (2, 12)
    offered = open_dataset(root).interface.features
    assert set(offered) == {"observation.state", "observation.images.front"}
