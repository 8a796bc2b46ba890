"""Searches of `feedline tune`: over a folder of images, or the loader that a function named
"module:function" returns, which is the user's own code.

Guarantees: by default random images of a folder are read before the measurement, so that they come
from the page cache. Workers end with a search. Ctrl-C returns the results so far.
"""

from __future__ import annotations

import importlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn import functional
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

import feedline
from feedline.cli.output import echo_text, use_folder
from feedline.cli.progress import ProgressBar
from feedline.engine.defaults import DEFAULT_PREFETCH, slots_for, worker_count
from feedline.engine.devices import synchronize
from feedline.errors import UsageError
from feedline.images.crops import TrainCrop
from feedline.images.folder import ENOUGH_IMAGES, ImageFolder, sample_folder
from feedline.loader import DataLoader
from feedline.loader.dataset_kind import is_row_source
from feedline.order.schedule import Schedule
from feedline.sources.manifest import is_cache
from feedline.system import available_memory_bytes
from feedline.train.data import find_splits
from feedline.train.model import create_model
from feedline.train.recipe import Recipe
from feedline.train.runtime import choose_device, choose_precision, prepare_process
from feedline.train.train_state import TrainState, create_optimizer, train_step
from feedline.tuning.batch_size import BatchSizes, find_batch_size
from feedline.tuning.training_step import BatchTrial, Step

_MAX_PREFETCH = 8
_MEMORY_SHARE = 0.1  # of the available memory, for prefetched batches
_MIN_BATCHES = 4  # of the images that are drawn
_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneSearch:
    """A search, prepared; the last fields have their defaults for a function."""

    loader: TorchDataLoader[Any]
    step: Step | None
    files: str = ""  # that are read, in words
    warmup_batches: int = 0
    images: ImageFolder | None = None
    schedule: str | None = None  # with batch sizes
    batch_sizes: BatchSizes | None = None  # of `--batch-size auto`


def folder_search(
    folder: Path,
    *,
    schedule: str,
    batch_size: int | Literal["auto"],
    model: str | None,
    device: str | None,
    cache: Path | None,
    decode: Literal["exact", "scaled"],
    all_files: bool,
) -> TuneSearch:
    """Prepare a search over the images of a folder; arguments are the options of the command."""
    root = folder if is_cache(str(folder)) else find_splits(folder).train
    use_folder(folder, root)
    own_step = model is not None and is_function_name(model)
    timm_model = None if own_step else model
    if device is not None and timm_model is None:
        raise UsageError(f"--device {device} needs --model with a timm model")
    images = ImageFolder(root, transform=TrainCrop())
    found = None
    if batch_size == "auto":
        found = _largest_batches(timm_model, schedule, images, device)
        echo_text(f"{found}\n")
        schedule = str(found.schedule)
    rows = batch_size if found is None else found.largest
    assert rows != "auto", "it was found"
    step: Step | None = None
    where = None
    if own_step:
        step = import_function(str(model))
    elif timm_model is not None:
        recipe = Recipe(model=timm_model, schedule=schedule, batch_size=rows)
        step, where = _make_step(recipe, len(images.classes), choose_device(device or "auto"))
    if cache is not None and not is_cache(str(cache)):
        raise UsageError(
            f"{str(cache)!r} is not a finished cache", hint="build one with feedline cache build"
        )
    phases = [
        (phase.image_size or 0, phase.batch_size or rows)
        for phase in Schedule.parse(schedule).phases
    ]
    some = ImageFolder(root, transform=TrainCrop(), decode=decode)
    files, warmup_batches = "from disk or the page cache", 0
    if not (all_files or is_cache(str(root))):
        some, warmup_batches = sample_images(some, [batch for _, batch in phases])
        files = f"{len(some)} of {len(images)} images, from the page cache"
    # The largest number of prefetched batches that fits into memory.
    slot_bytes = max(3 * size**2 * batch for size, batch in phases)
    fitting = int(_MEMORY_SHARE * available_memory_bytes()) // max(1, slot_bytes) - slots_for(0)

    loader: DataLoader[Any] = DataLoader(
        some,
        rows,
        schedule=schedule,
        num_workers="auto",
        prefetch=max(DEFAULT_PREFETCH, min(_MAX_PREFETCH, fitting)),
        drop_last=True,
        cache=cache,
        device=where,
    )
    return TuneSearch(
        loader=loader,
        step=step,
        files=files,
        warmup_batches=warmup_batches,
        images=images,
        schedule=schedule,
        batch_sizes=found,
    )


def sample_images(images: ImageFolder, batch_sizes: list[int]) -> tuple[ImageFolder, int]:
    """Sample images of a folder. Return them and the number of batches that reads them all."""
    most = max(ENOUGH_IMAGES, _MIN_BATCHES * max(batch_sizes))
    some = sample_folder(images, seed=0, most=most)
    return some, -(-len(some) // min(batch_sizes))


def _make_step(
    recipe: Recipe, classes: int, device: torch.device
) -> tuple[Callable[[Any], None], str]:
    """Make a training step of a model with random weights; return the device's type, too."""
    prepare_process(seed=0, device=device)
    model = create_model(recipe.model, classes=classes, sizes=recipe.sizes)
    state = TrainState(model, recipe, device=device, precision=choose_precision(device))
    state.model.train()

    def step(batch: Any) -> None:
        train_step(state, *batch)
        synchronize(device)

    return step, device.type


def _largest_batches(
    model: str | None, schedule: str, images: ImageFolder, device: str | None
) -> BatchSizes:
    """Find the largest batch for each phase, with the recipe's optimizer, loss and precision."""
    if model is None:
        raise UsageError(
            "--batch-size auto needs --model with a timm model",
            hint="for your own model, call feedline.find_batch_size",
        )
    where = choose_device(device or "auto")
    if where.type == "cpu":
        raise UsageError(
            f"--batch-size auto tries batches on a GPU, got the CPU (--device {device or 'auto'})",
            hint="the reference page on tuning lists estimates for common models and GPUs",
        )
    recipe = Recipe(model=model, schedule=schedule)
    prepare_process(seed=0, device=where)
    made = create_model(recipe.model, classes=len(images.classes), sizes=recipe.sizes)
    made.to(device=where)
    with ProgressBar("batch size", clock="elapsed") as bar:

        def on_trial(size: int, trial: BatchTrial) -> None:
            fits = "fits" if trial.fits else "does not fit"
            bar.update(what=f"{size} px: a batch of {trial.batch_size} {fits}")

        return find_batch_size(
            made,
            schedule,
            optimizer=create_optimizer(made, recipe),
            loss=partial(functional.cross_entropy, label_smoothing=recipe.smoothing),
            precision=choose_precision(where),
            max_batch_size=len(images),
            on_trial=on_trial,
        )


def function_search(
    source: str, *, schedule: str | None, batch_size: int | None, model: str | None
) -> TuneSearch:
    """Prepare a search over the loader, or the dataset, that a function returns."""
    step = None
    if model is not None:
        if not is_function_name(model):
            raise UsageError(
                f"--model {model!r} is a timm model, and {source!r} is not a folder of images",
                hint="name a training step as MODULE:FUNCTION, or --step-ms",
            )
        step = import_function(model)
    loader = build_loader(source, schedule=schedule, batch_size=batch_size)
    return TuneSearch(loader=loader, step=step)


def is_function_name(text: str) -> bool:
    """Return True if a text has the form "package.module:function"."""
    return _NAME.fullmatch(text) is not None


def import_function(text: str) -> Callable[..., Any]:
    """Import a function. The current folder is searched first, as with `python -m`.

    A UsageError if the module does not exist or raises, or the name is not a function.
    """
    name, _, inner = text.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _code_error(f"importing {name!r}", error) from error  # of a module that it needs
        raise UsageError(
            f"{text!r}: module {name!r} not found",
            hint="run the command in its folder, or install it",
        ) from None
    except Exception as error:
        raise _code_error(f"importing {name!r}", error) from error
    for part in inner.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UsageError(
            f"{text!r} is not a function: the module {name!r} "
            f"({getattr(sys.modules[name], '__file__', 'built in')}) has no function {inner!r}"
        )
    called: Callable[..., Any] = found
    return called


def build_loader(
    text: str, *, schedule: str | None = None, batch_size: int | None = None
) -> TorchDataLoader[Any]:
    """Return the loader that a function returns, or one over the dataset that it returns, which
    shuffles: by default without a schedule, 64 samples in a batch.

    A UsageError if the function does not exist, raises, or returns another type or less than one
    batch, or if a loader is combined with `schedule` or `batch_size`.
    """
    function = import_function(text)
    try:
        returned: Any = function()
    except Exception as error:
        raise _code_error(f"{text!r}, called without arguments,", error) from error
    if isinstance(returned, TorchDataLoader):
        named = {"--schedule": schedule, "--batch-size": batch_size}
        if useless := [name for name, value in named.items() if value is not None]:
            raise UsageError(
                f"{', '.join(useless)} has no effect: {text!r} returns a loader with its own",
                hint="remove the option, or return the dataset",
            )
        return returned
    rows = 64 if batch_size is None else batch_size
    if isinstance(returned, IterableDataset):
        return TorchDataLoader(returned, rows, num_workers=worker_count("auto"))
    indexed = hasattr(returned, "__len__") and hasattr(returned, "__getitem__")
    if not (indexed or is_row_source(returned)):
        raise UsageError(
            f"{text!r} must return a DataLoader or a Dataset, got {type(returned).__name__}"
        )
    if schedule is None and len(returned) < rows:  # a schedule may set batch sizes
        raise UsageError(
            f"{text!r} returns a dataset of {len(returned)} samples, fewer than one batch of "
            f"{rows}",
            hint="use a smaller --batch-size",
        )
    return DataLoader(
        returned, rows, shuffle=True, schedule=schedule, num_workers="auto", drop_last=True
    )


def _code_error(action: str, error: Exception) -> UsageError:
    """Build the error for an exception in user code, with its source lines."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if _is_user_code(frame.filename)
    ]
    where = "".join(f"\n  {frame.filename}, line {frame.lineno}: {frame.line}" for frame in own)
    message = "".join(traceback.format_exception_only(error)).strip()
    return UsageError(f"{action} raised {message}{where}")


def _is_user_code(file: str) -> bool:
    """Return True if a file is not part of feedline, Python or an installed package."""
    paths = sysconfig.get_paths()
    libraries = (paths[name] for name in ("stdlib", "purelib", "platlib"))
    return not file.startswith(("<frozen ", str(Path(feedline.__file__).parent), *libraries))
