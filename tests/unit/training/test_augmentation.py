"""Image augmentation: torchvision's formulas, LeRobot's sampling, no hidden state."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'proctor[torch]'")

from safetensors.torch import load_file  # noqa: E402

from proctor.config.sections.image_transforms import ImageTransformSettings, Transform  # noqa: E402
from proctor.errors import UsageError  # noqa: E402
from proctor.training.data.augmentation import affine, apply, augment, plan_augmentation  # noqa: E402

MADE = load_file(Path(__file__).parents[2] / "golden/data/image_transforms.safetensors")
"""Results of torchvision 0.25 for two images of 12x16."""


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("brightness", 1.15),
        ("contrast", 0.85),
        ("saturation", 1.4),
        ("hue", 0.04),
        ("hue_less", -0.05),
        ("sharpness", 1.4),
    ],
)
def test_a_transform_is_torchvisions(name, factor):
    transform = Transform(name.partition("_")[0], 1.0, factor, factor)
    found = apply(transform, MADE["images"], torch.rand(2, 3))
    torch.testing.assert_close(found, MADE[name], rtol=0, atol=2e-6)


def test_turning_and_moving_is_torchvisions():
    shift = torch.tensor([[1 / 16, -1 / 12]] * 2)
    found = affine(MADE["images"], torch.full((2,), 5.0), shift)
    assert torch.equal(found, MADE["affine"])


def test_all_observed_steps_of_a_sample_are_changed_alike():
    settings = ImageTransformSettings(enable=True)
    what = plan_augmentation(settings, 5, torch.Generator().manual_seed(0))
    image = torch.rand(5, 1, 3, 8, 8).expand(5, 2, 3, 8, 8)
    found = augment(image, settings.transforms(), what)
    assert torch.equal(found[:, 0], found[:, 1])
    assert not torch.equal(found, image)
    assert 0 <= found.min() <= found.max() <= 1
    assert torch.equal(image[0, 0], image[0, 1])


def test_three_of_six_are_chosen_each_as_often_and_in_the_order_listed():
    settings = ImageTransformSettings(enable=True)
    what = plan_augmentation(settings, 6000, torch.Generator().manual_seed(0))
    counts = Counter(kind for kind, rows, _ in what.rounds for _ in rows)
    assert sum(counts.values()) == 3 * 6000
    assert all(abs(n - 3000) < 200 for n in counts.values())
    last = {}
    for kind, rows, numbers in what.rounds:
        assert numbers.shape == (len(rows), 3)
        for row in rows.tolist():
            assert last.get(row, -1) < kind
            last[row] = kind


def test_a_plan_is_the_generators_alone():
    settings = ImageTransformSettings(enable=True, random_order=True)
    plans = [
        plan_augmentation(settings, 4, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    ]
    told = [[(kind, rows.tolist()) for kind, rows, _ in one.rounds] for one in plans]
    assert told[0] == told[1] != told[2]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"max_num_transforms": 7}, "max_num_transforms is 7 (choose 1-6"),
        ({"tfs": {"blur": {"type": "GaussianBlur"}}}, "blur"),
        ({"tfs": {"a": {"type": "ColorJitter"}}}, "takes one of brightness"),
        ({"tfs": {"a": {"type": "ColorJitter", "kwargs": {"hue": [-1, 1]}}}}, "between -0.5"),
        ({"tfs": {"a": {"type": "SharpnessJitter", "kwargs": {"sharpness": 2}}}}, "two numbers"),
        ({"tfs": {"a": {"type": "ColorJitter", "kwargs": {}, "weight": 0}}}, "above 0"),
    ],
)
def test_what_is_no_transform_is_refused(changes, told):
    with pytest.raises(UsageError) as refused:
        ImageTransformSettings(**{"enable": True, **changes}).validate()
    assert told in str(refused.value)
