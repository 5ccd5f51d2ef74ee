"""Runs under LeRobot's own Python: reads a dataset and stores every item.

    python lerobot_robots_side.py ROOT OUT.npz

Values are stored as "POSITION/KEY", the length as "length".
"""

import sys

import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset

dataset = LeRobotDataset("local/arm", root=sys.argv[1], video_backend="pyav")
items = {
    f"{position}/{key}": value.numpy()
    for position in range(len(dataset))
    for key, value in dataset[position].items()
    if isinstance(value, torch.Tensor)
}
np.savez(sys.argv[2], length=np.array(len(dataset)), **items)
