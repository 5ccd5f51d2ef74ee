"""The preprocessor steps of GR00T that encode camera views and prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from proctor.errors import UsageError
from proctor.policies.groot.network.qwen_sizes import COSMOS
from proctor.policies.groot.steps.chat import (
    ASSETS,
    ChatPrompt,
    EaglePrompt,
    encode_padded,
    patch_geometry,
    read_eagle_prompt,
    read_prompt,
)
from proctor.policies.groot.steps.images import ImageGeometry, PatchGeometry
from proctor.policies.groot.steps.steps import VIEW, check_range
from proctor.policies.lerobot.processors.limits import MOST_PIXELS
from proctor.policies.lerobot.processors.step import (
    OURS,
    ProcessorStep,
    PromptInputs,
    Tensors,
    saved_fields,
)
from proctor.policies.lerobot.tokenizer.tokenizer import FOLDER, MOST_TOKENS, Tokenizers

N15_ASSETS = "lerobot/eagle2hg-processor-groot-n1p5"
"""Repository of N1.5's tokenizer."""
CROP = "groot.crop"
"""Key of a training sample's crop position [B, 2], 0 to 1 from the top and from the left."""


@dataclass(frozen=True)
class VlmEncode(ProcessorStep):
    """Resize, crop and normalise views, and tokenize prompts in the backbone's chat format.

    ``LANGUAGE_TOKENS`` [B, max_length] are the tokens before the first image, the start and the end
    of an image, and the text; the network puts the views' tokens between them.
    """

    registry_name: ClassVar[str] = "groot_n1_7_vlm_encode_v1"
    adds_prompt_inputs: ClassVar[bool] = True
    model_name: str = COSMOS
    image_crop_size: list[int] | None = None
    image_target_size: list[int] | None = None
    shortest_image_edge: int | None = None
    crop_fraction: float | None = None
    use_albumentations: bool = False
    letter_box_transform: bool = False
    device: str | None = None
    max_length: int = field(default=128, metadata=OURS)
    prompt: ChatPrompt | None = field(default=None, metadata=OURS)
    patches: PatchGeometry = field(default_factory=PatchGeometry, metadata=OURS)

    @property
    def prefix_length(self) -> int:
        """Tokens before the first image."""
        assert self.prompt is not None, "with_tokenizers is called before use"
        return len(self.prompt.prefix)

    def __call__(self, tensors: Tensors) -> Tensors:
        """Resize and normalise the views; all views of a sample have the same crop."""
        geometry, position = self.geometry, tensors.get(CROP)
        views = {
            key: self.patches(value if geometry is None else geometry(value, position))
            for key, value in tensors.items()
            if key.startswith(VIEW)
        }
        return {key: value for key, value in (tensors | views).items() if key != CROP}

    @property
    def training_draws(self) -> Mapping[str, int]:
        """The position of the crop, which checkpoints with ``use_albumentations`` draw."""
        geometry = self.geometry
        random = self.use_albumentations and geometry is not None and geometry.crops
        return {CROP: 2} if random else {}

    @property
    def geometry(self) -> ImageGeometry | None:
        """Sizes of the resized and cropped image; None: images keep their size."""
        if self.image_target_size is None:
            return None
        height, width = self.image_target_size
        share = self.crop_fraction
        if share is None and self.image_crop_size is not None:
            share = self.image_crop_size[0] / float(height)
        return ImageGeometry(
            (height, width),
            share,
            self.shortest_image_edge,
            letter_box=self.letter_box_transform,
            keeps_aspect=self.use_albumentations,
        )

    def encode_prompt(self, prompt_inputs: PromptInputs) -> PromptInputs:
        """Add tokens and mask."""
        prompt = self.prompt
        assert prompt is not None, "with_tokenizers is called before use"
        return encode_padded(prompt_inputs, prompt, self.max_length)

    def config(self) -> dict[str, Any]:
        """Return the step's settings, in LeRobot's order."""
        return saved_fields(self)

    def files(self) -> dict[str, bytes]:
        """Return the files of the tokenizer and the image processor."""
        held = {} if self.prompt is None else self.prompt.tokenizer.files
        return {f"{FOLDER}/{name}": content for name, content in held.items()}

    def with_tokenizers(self, tokenizers: Tokenizers) -> VlmEncode:
        """Return the step with its tokenizer, chat format and image sizes."""
        tokenizer = tokenizers.find(self.model_name, also=ASSETS)
        step = replace(self, prompt=read_prompt(tokenizer), patches=patch_geometry(tokenizer))
        check_range("tokenizer_max_length", self.max_length, MOST_TOKENS)
        return step

    def check(self, where: str) -> None:
        """Refuse sizes out of range."""
        for name in ("image_crop_size", "image_target_size"):
            sides = getattr(self, name)
            if sides is not None and len(sides) != 2:
                raise UsageError(
                    f"{where}: {name} is {sides}, expected [height, width]",
                    code="policy.invalid-shape",
                )
            for side in sides or ():
                check_range(f"{where}: {name}", side, MOST_PIXELS)
        check_range(f"{where}: shortest_image_edge", self.shortest_image_edge or 1, MOST_PIXELS)


@dataclass(frozen=True)
class EagleEncode(ProcessorStep):
    """Tokenize prompts in Eagle's chat format.

    ``LANGUAGE_TOKENS`` [B, max_length] are the tokens around the views (``EaglePrompt``). The
    network resizes views, whose size its vision encoder determines.
    """

    registry_name: ClassVar[str] = "groot_eagle_encode_v3"
    adds_prompt_inputs: ClassVar[bool] = True
    tokenizer_assets_repo: str = N15_ASSETS
    max_length: int = field(default=192, metadata=OURS)
    prompt: EaglePrompt | None = field(default=None, metadata=OURS)

    def encode_prompt(self, prompt_inputs: PromptInputs) -> PromptInputs:
        """Add tokens and mask."""
        prompt = self.prompt
        assert prompt is not None, "with_tokenizers is called before use"
        return encode_padded(prompt_inputs, prompt, self.max_length)

    def files(self) -> dict[str, bytes]:
        """Return the tokenizer's files."""
        held = {} if self.prompt is None else self.prompt.tokenizer.files
        return {f"{FOLDER}/{name}": content for name, content in held.items()}

    def with_tokenizers(self, tokenizers: Tokenizers) -> EagleEncode:
        """Return the step with its tokenizer and chat format."""
        check_range("tokenizer_max_length", self.max_length, MOST_TOKENS)
        return replace(self, prompt=read_eagle_prompt(tokenizers.find(self.tokenizer_assets_repo)))


@dataclass(frozen=True)
class EagleCollate(ProcessorStep):
    """Does nothing: LeRobot's step joins the samples that ``EagleEncode`` has joined already."""

    registry_name: ClassVar[str] = "groot_eagle_collate_v3"
    tokenizer_assets_repo: str = N15_ASSETS
