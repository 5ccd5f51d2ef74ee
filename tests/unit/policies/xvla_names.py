"""X-VLA's weights under the names of Florence-2's first code, which published files have."""

from __future__ import annotations

import re

import torch

OLD_NAMES = (
    (r"(convs\.\d+)\.conv\.", r"\1.proj."),
    (r"\.conv([12])\.(weight|bias)$", r".conv\1.fn.dw.\2"),
    (r"spatial_block\.norm1\.", "spatial_block.window_attn.norm."),
    (r"channel_block\.norm1\.", "channel_block.channel_attn.norm."),
    (r"_attn\.(qkv|proj)\.", r"_attn.fn.\1."),
    (r"_block\.norm2\.", "_block.ffn.norm."),
    (r"\.ffn\.(fc[12])\.", r".ffn.fn.net.\1."),
    (r"image_position_embed", "image_pos_embed"),
    (r"vlm\.multi_modal_projector\.(?!image_projection)", "vlm."),
    (r"vlm\.language_model\.", "vlm.language_model.model."),
)


def under_first_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return weights as the first published X-VLAs have them."""
    old = {}
    for name, value in state.items():
        first = name
        for new, was in OLD_NAMES:
            first = re.sub(new, was, first)
        old[first] = value
    projection = "vlm.multi_modal_projector.image_projection.weight"
    old["vlm.image_projection"] = old.pop(projection).t().contiguous()
    old["vlm.language_model.final_logits_bias"] = torch.zeros(1, 260)
    words = old["vlm.language_model.model.shared.weight"]
    return old | {"vlm.language_model.model.encoder.embed_tokens.weight": words.clone()}
