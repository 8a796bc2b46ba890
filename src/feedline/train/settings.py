"""Settings of a training as fields of dataclasses: their options, names and values.

`cli.options.with_settings` makes the options.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields
from typing import Any, get_type_hints

import msgspec
from msgspec.inspect import BoolType, FloatType, IntType, LiteralType, StrType, UnionType, type_info

from feedline.errors import UsageError


class OptionPanel:
    """Heading of the help; makes fields of dataclasses that are options below it."""

    def __init__(self, title: str) -> None:
        self.title = title

    def __call__(
        self, default: Any, help: str, metavar: str = "", shown: str = "", *names: str
    ) -> Any:
        """Make a field. The help shows `shown`, or the default if it is not None, False or 0."""
        option = (self.title, help, metavar, shown or str(default or ""), names)
        return field(default=default, metadata={"option": option})


MODEL, OPTIMIZER, LOADING, DEVICE, RUN = map(
    OptionPanel, ("Model", "Optimizer", "Loading", "Device", "Run and checkpoints")
)
AUGMENTATION = OptionPanel("Augmentation and regularization (all but smoothing grow with the size)")

SYNONYMS = {
    "augment": "aa", "auto_augment": "aa", "batch": "batch_size", "batchsize": "batch_size",
    "bs": "batch_size", "grad_clip": "clip_grad", "max_norm": "clip_grad", "dropout": "drop",
    "epochs_count": "epochs", "max_epochs": "epochs", "num_epochs": "epochs",
    "accumulate": "grad_accum_steps", "img_size": "image_size", "imgsz": "image_size",
    "input_size": "image_size", "resolution": "image_size", "size": "image_size",
    "learning_rate": "lr", "lr_rate": "lr", "ema": "model_ema_decay",
    "model_ema": "model_ema_decay", "optim": "opt", "optimizer": "opt", "output": "out",
    "output_dir": "out", "experiment": "out", "checkpoint": "resume", "resume_from": "resume",
    "lr_scheduler": "sched", "scheduler": "sched", "label_smoothing": "smoothing",
    "num_workers": "workers", "workers_num": "workers", "torchcompile": "compile",
}  # fmt: skip
"""Names of settings in other tools, with their names here."""


def setting_names(settings: Any) -> list[str]:
    """Names of the arguments of a dataclass."""
    return [each.name for each in fields(settings) if each.init]


def allowed_values(hint: Any) -> tuple[str, list[Any]]:
    """Describe the values of an annotation, such as "a number from 0 to 1"; list its literals."""
    found = type_info(hint)
    kinds = found.types if isinstance(found, UnionType) else (found,)
    literals = [value for kind in kinds if isinstance(kind, LiteralType) for value in kind.values]
    texts = list(map(repr, literals))
    for kind in kinds:
        if isinstance(kind, IntType | FloatType):
            limits = {"from": kind.ge, "above": kind.gt, "to": kind.le, "below": kind.lt}
            given = [
                f"{word} {limit:g}" if isinstance(limit, float) else f"{word} {limit}"
                for word, limit in limits.items()
                if limit not in (None, sys.float_info.max)
            ]
            noun = "a whole number" if isinstance(kind, IntType) else "a number"
            texts.append(" ".join([noun, *given]))
        elif isinstance(kind, BoolType | StrType):
            texts.append("true or false" if isinstance(kind, BoolType) else "text")
        elif hasattr(kind, "cls"):  # Path
            texts.append(f"a {kind.cls.__name__.lower()}")
    return " or ".join(texts), literals


def check_values(settings: Any, names: Iterable[str], what: str = "") -> None:
    """Check values of a dataclass against its annotations (UsageError)."""
    hints = get_type_hints(type(settings), include_extras=True)
    for name in names:
        value, hint = getattr(settings, name), hints[name]
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError:
            expected, choices = allowed_values(hint)
            text = f"must be {expected}, got {value!r}"
            if what:
                raise UsageError(f"{what}{name} {text}") from None
            near = difflib.get_close_matches(str(value), choices, n=1)
            fix = {name: near[0]} if near else {}
            hint = "the nearest" if near else ""
            raise UsageError(text, argument=name, hint=hint, fix=fix) from None


def check_names(
    names: Iterable[str], known: Sequence[str], what: str, *, elsewhere: Mapping[str, str] = {}
) -> None:
    """Check that all names are settings of `what`; `elsewhere` has where others belong."""
    for name in set(names).difference(known):
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        close = [SYNONYMS[name]] if SYNONYMS.get(name) in known else close
        hint = f"close ones: {', '.join(close)}" if close else f"known: {', '.join(known)}"
        if name in elsewhere:
            hint = f"it belongs {elsewhere[name]}"
        raise UsageError(f"{what} has no setting {name!r}", hint=hint)
