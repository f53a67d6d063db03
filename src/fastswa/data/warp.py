"""Random affine maps of images, as one batched bilinear warp."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastswa.noise import Noise


def draw_maps(
    noise: Noise, images: int, *, translate: float, flip: bool, affine: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """A matrix (B, 2, 2) and an offset (B, 2) for each image, as `warped` takes them.

    The matrix is the identity plus normal numbers of deviation `affine`, its first column negated for a flip; offsets
    are uniform within `translate` pixels.
    """
    matrix = torch.eye(2, dtype=dtype, device=noise.words.device).expand(images, 2, 2)
    if affine:
        matrix = matrix + affine * noise.normal("affine", (images, 2, 2), dtype)
    if flip:
        flipped = noise.uniform("flip", (images, 1), dtype) < 0.5
        matrix = torch.stack([matrix[..., 0].where(~flipped, -matrix[..., 0]), matrix[..., 1]], dim=2)
    offset = translate * (2.0 * noise.uniform("translate", (images, 2), dtype) - 1.0)
    return matrix, offset


# What lies beyond an image's edges, and what torch calls it.
BEYOND = {"zero": "zeros", "edge": "border"}


def warped(images: Tensor, matrix: Tensor, offset: Tensor, beyond: str = "zero") -> Tensor:
    """The images (B, C, H, W) looked up elsewhere, bilinearly. Channels last in memory.

    What lies beyond an image's edges is zero, or with `beyond` "edge" the pixel there again.
    The pixel at p = (across, down), in pixels from the middle, comes from `matrix` p + `offset`.
    """
    _, _, height, width = images.shape
    x = (torch.arange(width, dtype=images.dtype, device=images.device) - (width - 1) / 2).view(1, 1, width)
    y = (torch.arange(height, dtype=images.dtype, device=images.device) - (height - 1) / 2).view(1, height, 1)
    # Written out: a matrix product would be rounded to 16 bits where the networks compute in these.
    (xx, xy), (yx, yy) = (row.unbind(1) for row in matrix[..., None, None].unbind(1))
    right, down = offset[..., None, None].unbind(1)
    across = xx * x + xy * y + right
    along = yx * x + yy * y + down
    places = torch.stack([across * (2.0 / width), along * (2.0 / height)], dim=3)
    return F.grid_sample(images, places, "bilinear", BEYOND[beyond], align_corners=False).contiguous(
        memory_format=torch.channels_last
    )
