"""The images that a model sees, and the patches into which it divides them."""

from __future__ import annotations

from typing import NamedTuple

from gemmill.library.errors import ProblemError
from gemmill.library.models.fields import Fields

PATCHES = "patch_embed"
"""The name of the layer that each vision tower begins with."""


class Images(NamedTuple):
    """The images that a model sees at once."""

    number: int
    height: int
    """Height of each in pixels."""
    width: int


def images_of(fields: Fields, given: Images | None) -> Images | None:
    """The images that the caller gives, or one of the size in the config; None if neither has a size."""
    if given is not None:
        return given
    if not fields.has("image_size") and "image_size" not in fields.defaults:
        fields.notes.leave_out("the vision tower, since the config has no image_size; pass --images")
        return None
    size = fields.whole("image_size")
    fields.notes.assume(f"one image of {size} x {size} pixels; --images passes others")
    return Images(1, size, size)


def patches_of(fields: Fields, images: Images, merge: int = 1) -> int:
    """Whole patches of an image.

    Raises:
        ProblemError: the image is smaller than a patch, or has no whole groups of ``merge`` x ``merge`` patches.
    """
    size = fields.whole("patch_size")
    rows, columns = images.height // size, images.width // size
    if not rows or not columns or rows % merge or columns % merge:
        raise ProblemError(
            f"an image has {images.height} x {images.width} pixels, which is {rows} x {columns} patches; "
            f"both must be a multiple of {merge}, so pass sizes that are multiples of {merge * size}"
        )
    return rows * columns
