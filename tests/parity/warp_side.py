"""Draw saved requests in batches of several sizes and orders; print how many pictures differ.

python warp_side.py REQUESTS.npz DEVICE    (needs proctor_worker, warp-lang and mujoco-warp)
"""

import json
import sys

import numpy as np
import warp

from proctor_worker.drawing import asset_pool
from proctor_worker.drawing.scene import DrawRequest, Quality, SceneLayout
from proctor_worker.drawing.warp_drawer import WarpDrawer

warp.config.quiet = True
saved = np.load(sys.argv[1])
fixed = (saved["geoms"].tobytes(), saved["lights"].tobytes(), float(saved["fovy"]))
layout = SceneLayout("key", Quality(32, 32, 1, True), *fixed)
requests = [DrawRequest(layout, numbers.tobytes()) for numbers in saved["numbers"]]
assets = {name[6:]: saved[name] for name in saved.files if name.startswith("asset ")}


def new_drawer() -> WarpDrawer:
    drawer = WarpDrawer(sys.argv[2])
    drawer.add_assets("key", assets)
    return drawer


drawer = new_drawer()
alone = np.stack([drawer.draw([request])[0] for request in requests])


def differing(order, batch, drawer=drawer, other=None) -> int:
    """Return how many pictures are not those that were drawn alone.

    ``other`` is a layout that is added before each batch.
    """
    drawn = []
    for begin in range(0, len(order), batch):
        if other is not None:
            drawer.add_layout(other._replace(fovy=30.0 + begin))
        drawn += drawer.draw([requests[number] for number in order[begin : begin + batch]])
    return sum(
        not np.array_equal(image, alone[number]) for number, image in zip(order, drawn, strict=True)
    )


in_order = np.arange(len(requests))
mixed = np.random.default_rng(0).permutation(len(requests))
found = {
    "7": differing(in_order, 7),
    "64": differing(in_order, 64),
    "permuted": differing(mixed, 64),
    "other context": differing(in_order[::-1], 64, new_drawer()),  # made from the last world
    "different": len({image.tobytes() for image in alone}),
}
turned = DrawRequest(layout._replace(rotated=True), requests[0].numbers)
found["rotated"] = int(not np.array_equal(drawer.draw([turned])[0], alone[0][::-1, ::-1]))
asset_pool._MOST_BYTES = 0  # a new layout frees the assets of all others
found["without room"] = differing(in_order, 16, new_drawer(), layout)
print(json.dumps(found))
