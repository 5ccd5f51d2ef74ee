"""Pictures of tables are the same by however many threads, whatever lies beside them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from proctor.datasets.frames.images import decode_images
from proctor.datasets.writing.frame import PngEncoder
from proctor.errors import DatasetError
from proctor.features import Array
from tests.refusals import refuses

pytest.importorskip("av", reason="PyAV is not installed (proctor[dataset])")

SIZE = (6, 20)
"""Rows of PyAV's pictures are longer than these."""


def pictures(n: int = 20) -> Array:
    return np.random.default_rng(0).integers(0, 255, (n, *SIZE, 3)).astype(np.uint8)


def files_of(wanted: Array) -> list[bytes]:
    encoder = PngEncoder(*wanted.shape[1:])
    return [encoder.encode(picture) for picture in wanted]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_pictures_come_in_their_order_by_any_number_of_threads(threads: int) -> None:
    wanted = pictures()
    np.testing.assert_array_equal(
        decode_images("here", files_of(wanted), (*SIZE, 3), None, threads), wanted
    )


def test_a_scaled_picture_does_not_depend_on_those_beside_it() -> None:
    files = files_of(pictures())
    together = decode_images("here", files, (*SIZE, 3), (3, 7), 4)
    alone = [decode_images("here", [file], (*SIZE, 3), (3, 7))[0] for file in files]
    np.testing.assert_array_equal(together, alone)


def test_pngs_with_a_palette_and_jpegs_lie_beside_others() -> None:
    image: Any = pytest.importorskip("PIL.Image")
    wanted = pictures(9)
    files = files_of(wanted)
    for place, (mode, kind) in {2: ("P", "PNG"), 3: ("L", "PNG"), 5: ("RGB", "JPEG")}.items():
        saved = io.BytesIO()
        image.fromarray(wanted[place]).convert(mode).save(saved, kind)
        files[place] = saved.getvalue()
    found = decode_images("here", files, (*SIZE, 3), None, 3)
    for place, file in enumerate(files):
        np.testing.assert_array_equal(
            found[place], decode_images("here", [file], (*SIZE, 3))[0], err_msg=str(place)
        )
    np.testing.assert_array_equal(found[[0, 1, 4, 6, 7, 8]], wanted[[0, 1, 4, 6, 7, 8]])


@pytest.mark.parametrize("place", [0, 7, 19])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_damaged_one_among_many_is_refused(place: int, threads: int) -> None:
    files = files_of(pictures())
    files[place] = files[place][:60]
    with pytest.raises(DatasetError) as refused:
        decode_images("here", files, (*SIZE, 3), None, threads)
    assert refused.value.code in ("dataset.damaged-image", "dataset.wrong-image-size")
    assert "here" in str(refused.value)


def test_one_of_another_size_among_many_is_refused() -> None:
    files = files_of(pictures())
    files[3] = files_of(pictures()[:1, :4])[0]
    with refuses(DatasetError, "dataset.wrong-image-size") as refused:
        decode_images("here", files, (*SIZE, 3), None, 3)
    assert "20x4" in str(refused.value)
