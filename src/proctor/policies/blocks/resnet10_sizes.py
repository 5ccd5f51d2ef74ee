"""Names and sizes of ResNet10 image encoders.

No torch here: configs are checked before anything is built.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

import msgspec

from proctor.errors import UsageError
from proctor.policies.blocks.encoder_sizes import Width
from proctor.policies.lerobot.location import read_config_json

PUBLISHED = ("lerobot/resnet10", "helper2424/resnet10")
"""Hub ids of the encoder that HIL-SERL uses; both hold the same weights."""
MODEL_TYPE = "resnet10"
GROUPS = 4
"""Groups of every group norm."""
N_STAGES = 4


@dataclass(frozen=True)
class ResNet10Sizes:
    """Channels of a ResNet10, with the field names of its config.json."""

    embedding_size: Width = 64
    hidden_sizes: Annotated[list[Width], msgspec.Meta(min_length=N_STAGES, max_length=N_STAGES)] = (
        field(default_factory=lambda: [64, 128, 256, 512])
    )

    @property
    def out_channels(self) -> int:
        """Channels of the feature map."""
        return self.hidden_sizes[-1]

    def feature_map(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the feature map of an image: five halvings, rounded up."""
        return -(-height // 32), -(-width // 32)


def resnet10_sizes(name: str) -> ResNet10Sizes:
    """Return the sizes of the encoder called ``name``: a published one, or a local folder's."""
    if name in PUBLISHED:
        return ResNet10Sizes()
    raw = read_config_json(name)
    sizes = _decoded(raw, name)
    for channels in (sizes.embedding_size, *sizes.hidden_sizes):
        if channels % GROUPS:
            raise UsageError(
                f"{name}: {channels} channels are not a multiple of {GROUPS}, the groups of its "
                "norms",
                code="checkpoint.invalid-config",
            )
    if any(before == after for before, after in pairwise(sizes.hidden_sizes)):
        raise UsageError(
            f"{name}: hidden_sizes is {sizes.hidden_sizes}, but a stage with stride 2 needs "
            "another width than the stage before",
            code="checkpoint.invalid-config",
        )
    return sizes


def _decoded(raw: dict[str, Any], name: str) -> ResNet10Sizes:
    if raw.get("model_type") != MODEL_TYPE or "hidden_sizes" not in raw:
        raise UsageError(
            f"{name} is not a {MODEL_TYPE}, the only image encoder by name (published as "
            f"{PUBLISHED[0]})",
            code="policy.unknown-choice",
        )
    try:
        return msgspec.convert(raw, ResNet10Sizes)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}/config.json: {error}", code="checkpoint.invalid-config") from None
