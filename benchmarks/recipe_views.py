"""Crops with colours, grey, blur and solarisation in DALI and albumentations.

Guarantees: crops, flips and probabilities follow the recipe's distributions; an image is decoded
once for all of its views. Colours, blur and filters are the library's own of the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recipe_list import MEAN, STD

__all__ = ["DINO", "SIMCLR", "View", "albumentations_view", "dali_view"]


@dataclass(frozen=True)
class View:
    """A view of an image.

    Args:
        size: side, in pixels.
        scale: smallest and largest share of the image's area.
        jitter: brightness, contrast, saturation and hue of torchvision's ColorJitter.
        blur: probability of blur.
        solarize: probability of solarisation from 128.
        cubic: bicubic interpolation; otherwise bilinear.
    """

    size: int
    scale: tuple[float, float]
    jitter: tuple[float, float, float, float]
    blur: float
    solarize: float = 0.0
    cubic: bool = False


_GENTLE = (0.4, 0.4, 0.2, 0.1)
SIMCLR = View(224, (0.08, 1.0), (0.8, 0.8, 0.8, 0.2), 0.5)
DINO = (
    View(224, (0.4, 1.0), _GENTLE, 1.0, cubic=True),
    View(224, (0.4, 1.0), _GENTLE, 0.1, 0.2, cubic=True),
    *8 * (View(96, (0.05, 0.4), _GENTLE, 0.5, cubic=True),),
)


def dali_view(images: Any, view: View) -> Any:
    """Build a view in a DALI pipeline of decoded images, uint8 HWC; returns floats, CHW.

    Steps with a probability are applied to all images, with neutral values for the others: CPU
    pipelines have no branches without `enable_conditionals`.
    """
    from nvidia.dali import fn, types

    def with_probability(probability: float) -> Any:
        return fn.random.coin_flip(probability=probability)

    def random_factor(one: float, spread: float, on: Any) -> Any:
        drawn = fn.random.uniform(range=[max(0.0, one - spread) - one, spread])
        return one + on * drawn

    images = fn.random_resized_crop(
        images,
        size=[view.size, view.size],
        random_area=list(view.scale),
        interp_type=types.INTERP_CUBIC if view.cubic else types.INTERP_TRIANGULAR,
    )
    jittered, grey = with_probability(0.8), with_probability(0.2)
    brightness, contrast, saturation, hue = view.jitter
    images = fn.color_twist(
        images,
        brightness=random_factor(1.0, brightness, jittered),
        contrast=random_factor(1.0, contrast, jittered),
        saturation=random_factor(1.0, saturation, jittered) * (1 - grey),
        hue=jittered * fn.random.uniform(range=[-360 * hue, 360 * hue]),
    )
    # A blur with this sigma changes no pixel.
    sigma = 0.01 + with_probability(view.blur) * fn.random.uniform(range=[0.09, 1.99])
    images = fn.gaussian_blur(images, sigma=sigma, window_size=23)
    if view.solarize:
        bright = with_probability(view.solarize) * (images >= 128)
        images = fn.cast(bright * (255 - images) + (1 - bright) * images, dtype=types.UINT8)
    return fn.crop_mirror_normalize(
        images,
        mirror=fn.random.coin_flip(),
        dtype=types.FLOAT,
        mean=[255 * mean for mean in MEAN],
        std=[255 * std for std in STD],
    )


def albumentations_view(view: View) -> Any:
    """Build a view for `image=` uint8 HWC; returns a dict with floats, CHW."""
    import albumentations as library
    import cv2
    from albumentations.pytorch import ToTensorV2

    brightness, contrast, saturation, hue = view.jitter
    return library.Compose(
        [
            library.RandomResizedCrop(
                (view.size, view.size),
                scale=view.scale,
                interpolation=cv2.INTER_CUBIC if view.cubic else cv2.INTER_LINEAR,
            ),
            library.HorizontalFlip(),
            library.ColorJitter(
                (1 - brightness, 1 + brightness),
                (1 - contrast, 1 + contrast),
                (1 - saturation, 1 + saturation),
                (-hue, hue),
                p=0.8,
            ),
            library.ToGray(p=0.2),
            library.GaussianBlur((23, 23), (0.1, 2.0), p=view.blur),
            *([library.Solarize((0.5, 0.5), p=view.solarize)] if view.solarize else []),
            library.Normalize(MEAN, STD),
            ToTensorV2(),
        ]
    )
