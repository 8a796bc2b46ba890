"""feedline keeps the GPU fed while you train vision models with PyTorch.

Importing this package only reads Python's random state: each public name is loaded when it is
first used.
"""

from __future__ import annotations

import importlib
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feedline.cache.build import build_cache, repair_cache
    from feedline.cache.plan import plan_cache
    from feedline.errors import FeedlineError
    from feedline.images.array import ImageArray
    from feedline.images.compile.pair import pair
    from feedline.images.compile.views import compile, views
    from feedline.images.crops import EvalCrop, TrainCrop
    from feedline.images.folder import ImageFolder
    from feedline.images.image_list import ImageList
    from feedline.images.lazy_images import lazy_images
    from feedline.loader import DataLoader
    from feedline.order.requested_size import augmentation_strength, image_size, per_size
    from feedline.order.schedule import Phase, Schedule
    from feedline.profile.watch import watch
    from feedline.running.patch import patch
    from feedline.train.history import TrainReport
    from feedline.train.recipe import Recipe, RunSettings, TrainPhase
    from feedline.train.run import train_model
    from feedline.tuning.batch_size import find_batch_size
    from feedline.tuning.tune import tune

__all__ = [
    "DataLoader",
    "EvalCrop",
    "FeedlineError",
    "ImageArray",
    "ImageFolder",
    "ImageList",
    "Phase",
    "Recipe",
    "RunSettings",
    "Schedule",
    "TrainCrop",
    "TrainPhase",
    "TrainReport",
    "__version__",
    "augmentation_strength",
    "build_cache",
    "compile",
    "find_batch_size",
    "image_size",
    "lazy_images",
    "pair",
    "patch",
    "per_size",
    "plan_cache",
    "repair_cache",
    "train_model",
    "tune",
    "views",
    "watch",
]

__version__ = "0.1.0"

_python_random_state = random.getstate()[1]  # from which `feedline.randomness` detects later seeds

_HOMES = {
    "DataLoader": "feedline.loader",
    "EvalCrop": "feedline.images.crops",
    "FeedlineError": "feedline.errors",
    "ImageArray": "feedline.images.array",
    "ImageFolder": "feedline.images.folder",
    "ImageList": "feedline.images.image_list",
    "Phase": "feedline.order.schedule",
    "Recipe": "feedline.train.recipe",
    "RunSettings": "feedline.train.recipe",
    "Schedule": "feedline.order.schedule",
    "TrainCrop": "feedline.images.crops",
    "TrainPhase": "feedline.train.recipe",
    "TrainReport": "feedline.train.history",
    "augmentation_strength": "feedline.order.requested_size",
    "build_cache": "feedline.cache.build",
    "compile": "feedline.images.compile.views",
    "find_batch_size": "feedline.tuning.batch_size",
    "image_size": "feedline.order.requested_size",
    "lazy_images": "feedline.images.lazy_images",
    "pair": "feedline.images.compile.pair",
    "patch": "feedline.running.patch",
    "per_size": "feedline.order.requested_size",
    "plan_cache": "feedline.cache.plan",
    "repair_cache": "feedline.cache.build",
    "train_model": "feedline.train.run",
    "tune": "feedline.tuning.tune",
    "views": "feedline.images.compile.views",
    "watch": "feedline.profile.watch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'feedline' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
