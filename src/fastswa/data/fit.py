"""Images of one size and colour brought to another's, by the rules that image files are read by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fastswa.data.decode import read_array
from fastswa.data.images import Dataset, ImageSet
from fastswa.data.plan import Options, Shape
from fastswa.errors import RequestError


def fit_images(pixels: np.ndarray, shape: Shape) -> np.ndarray:
    """(N, C, H, W) uint8 of grey or RGB images as (N, *shape), the same array where nothing changes."""
    if pixels.shape[1:] == shape:
        return pixels
    channels, height, width = shape
    fitted = np.empty((len(pixels), *shape), np.uint8)
    for place, image in enumerate(pixels):
        fitted[place] = read_array(image.transpose(1, 2, 0), channels=channels, size=(height, width))
    return fitted


def fit_set(images: ImageSet, shape: Shape) -> ImageSet:
    """The images in another shape; RequestError where there is no way from one kind of image to the other."""
    if images.shape == shape:
        return images
    for what, channels in (("they have", images.shape[0]), ("those they are to match have", shape[0])):
        if channels not in (1, 3):
            raise RequestError(
                f"{images.name}: only grey and RGB images can be brought to another size or colour, "
                f"and {what} {channels} channels."
            )
    return replace(images, pixels=fit_images(images.pixels, shape))


def fit_dataset(dataset: Dataset, options: Options | None) -> Dataset:
    """Images from arrays in the size and colour that the options name, if they name any."""
    if options is None:
        return dataset
    channels, *own = dataset.train.shape
    height, width = options.size or own
    shape = (options.channels or channels, height, width)
    if shape == dataset.train.shape:
        return dataset
    test = None if dataset.test is None else fit_set(dataset.test, shape)
    normalisation = dataset.normalisation if shape[0] == channels else None
    return replace(dataset, train=fit_set(dataset.train, shape), test=test, normalisation=normalisation)


def shape_text(shape: Shape) -> str:
    """A shape as people say it."""
    channels, height, width = shape
    return f"{height}x{width} {({1: 'grey', 3: 'RGB'}).get(channels, f'with {channels} channels')}"
