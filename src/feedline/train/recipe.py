"""The training recipe: every setting that decides the trained weights.

Guarantees: a `Recipe` that exists is valid and complete (defaults that depend on other settings are
filled in), and `Recipe(**recipe.as_dict())` is equal to it. Device, workers and folders are no part
of it: see `run_settings`. Names are timm's where timm has the setting.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from feedline.errors import StateError, UsageError
from feedline.plan.schedule import MAX_SIZE_PX, Phase, Schedule

__all__ = ["REGULARISATION", "Recipe", "TrainPhase", "check_names", "differences"]

REGULARISATION = ("mixup", "cutmix", "reprob", "aa_strength", "drop", "drop_path")
"""Settings that grow with the image size: a network that sees fewer pixels needs less of them."""

# Peak learning rates. AdamW's does not depend on the batch size; SGD's is 0.1 at 256 images and
# grows linearly with the batch (Goyal et al., "Accurate, large minibatch SGD", 2017).
_ADAMW_LR = 0.002
_SGD_LR_PER_IMAGE = 0.1 / 256
_ADAMW_DECAY, _SGD_DECAY = 0.05, 5e-5
_WARMUP = 0.25  # of all epochs
# Settings that may change on resume: they are measured, or rescue a training that diverges.
_FREE_ON_RESUME = ("val_image_size", "patience", "lr", "clip_grad", "amp")
_MAX_COUNT = 1 << 24


@dataclass(frozen=True, slots=True)
class _Range:
    """Valid values of a number.

    Args:
        low, high: limits.
        whole: only whole numbers are valid.
        open_low, open_high: the limit itself is not valid.
    """

    low: float = 0.0
    high: float = math.inf
    whole: bool = False
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: object) -> bool:
        kind = int if self.whole else (int, float)
        if not isinstance(value, kind) or isinstance(value, bool):
            return False
        # Not as a float, which large seeds would be rounded to.
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below and math.isfinite(value)

    def __str__(self) -> str:
        low = f"above {self.low:g}" if self.open_low else f"from {self.low:g}"
        if self.high == math.inf:
            limits = low
        elif self.whole:
            limits = f"{low} to {int(self.high)}"
        else:
            limits = f"{low} to {'below ' if self.open_high else ''}{self.high:g}"
        return f"{'a whole number' if self.whole else 'a number'} {limits}"


_SHARE = _Range(high=1.0)
_BELOW_1 = _Range(high=1.0, open_high=True)
_ANY = _Range()
_ABOVE_0 = _Range(open_low=True)
_ROWS = _Range(1, _MAX_COUNT, whole=True)
_SIZE = _Range(1, MAX_SIZE_PX, whole=True)
_RANGES: dict[str, _Range] = {
    "size": _SIZE,
    "epochs": _Range(1, 1_000_000, whole=True),
    "batch_size": _ROWS,
    "val_image_size": _SIZE,
    "lr": _ABOVE_0,
    "weight_decay": _ANY,
    "warmup_epochs": _ANY,
    "smoothing": _BELOW_1,
    "mixup": _ANY,
    "cutmix": _ANY,
    "aa_strength": _SHARE,
    "reprob": _SHARE,
    "drop": _BELOW_1,
    "drop_path": _BELOW_1,
    "ramp_from": _SHARE,
    "grad_accum_steps": _Range(1, 1 << 16, whole=True),
    "clip_grad": _ANY,
    "model_ema_decay": _BELOW_1,
    "patience": _Range(0, _MAX_COUNT, whole=True),
    "seed": _Range(0, 2**63 - 1, whole=True),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "sched": ("onecycle", "cosine", "linear", "constant"),
    "aa": ("none", "rand", "trivial"),
    "amp": ("auto", "off", "bf16", "fp16"),
    "class_weights": ("none", "balanced"),
    "on_error": ("raise", "skip"),
}
_SWITCHES = ("compile",)
_TEXTS = ("model", "opt", "pretrained")


def _check(settings: Any, what: str = "", *, required: Iterable[str] = ()) -> None:
    """Check the values of a dataclass; None is valid unless the setting is required.

    Raises:
        UsageError: a value is out of range or of another type.
    """
    for name in (each.name for each in fields(settings) if each.init):
        value = getattr(settings, name)
        if value is None and name not in required:
            continue
        valid, expected = True, ""
        if name in _RANGES:
            valid, expected = value in _RANGES[name], str(_RANGES[name])
        elif name in _CHOICES:
            choices = _CHOICES[name]
            expected = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
            valid = value in choices
        elif name in _SWITCHES:
            valid, expected = isinstance(value, bool), "true or false"
        elif name in _TEXTS:
            valid, expected = isinstance(value, str), "text"
        if not valid:
            raise UsageError(f"{what}{name} must be {expected}, got {value!r}")


def check_names(
    names: Iterable[str], known: Sequence[str], what: str, *, elsewhere: Mapping[str, str] = {}
) -> None:
    """Check that all names are settings.

    Args:
        names: names to check.
        known: valid names.
        what: what has these settings, for the message.
        elsewhere: names that belong somewhere else, and where.

    Raises:
        UsageError: a name is unknown. The message suggests close ones.
    """
    for name in names:
        if name in known:
            continue
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"; close ones: {', '.join(close)}" if close else f"; known: {', '.join(known)}"
        if name in elsewhere:
            hint = f"; it belongs {elsewhere[name]}"
        raise UsageError(f"{what} has no setting {name!r}{hint}")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainPhase:
    """A stretch of training at one image size. None means the recipe's value.

    Args:
        size: side of the images, in pixels.
        epochs: number of epochs.
        batch_size: images in a batch on each rank.
        lr: factor on the learning rate of the schedule.
        mixup, cutmix: alpha of the Beta distribution of the mixed share (Zhang et al., 2018; Yun et
            al., 2019); 0 for none. If both are above 0, each batch gets one of them, with equal
            probability.
        smoothing: label smoothing, 0 to below 1.
        aa_strength: strength of the recipe's `aa` policy, 0 (none) to 1 (all of it).
        reprob: probability of random erasing (Zhong et al., 2020), 0 to 1.
        drop: dropout before the head, 0 to below 1.
        drop_path: stochastic depth at the last block (Huang et al., 2016), 0 to below 1.
        val_image_size: side of the validation images, in pixels.

    Raises:
        UsageError: a value is out of range.
    """

    size: int
    epochs: int
    batch_size: int | None = None
    lr: float = 1.0
    mixup: float | None = None
    cutmix: float | None = None
    smoothing: float | None = None
    aa_strength: float | None = None
    reprob: float | None = None
    drop: float | None = None
    drop_path: float | None = None
    val_image_size: int | None = None

    def __post_init__(self) -> None:
        _check(self, "a phase's ", required=("size", "epochs", "lr"))

    @classmethod
    def read(cls, table: object) -> TrainPhase:
        """Make a phase from plain values, such as a TOML table.

        Raises:
            UsageError: a setting is unknown or missing, or a value is out of range.
        """
        if not isinstance(table, Mapping):
            raise UsageError(f"a phase is a table with size and epochs, got {table!r}")
        check_names(table, [each.name for each in fields(cls)], "a phase")
        for name in ("size", "epochs"):
            if name not in table:
                raise UsageError(f"the phase {dict(table)!r} has no {name}")
        return cls(**table)

    def as_dict(self) -> dict[str, Any]:
        """Settings by name, without those left to the recipe."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def loader_phase(self) -> Phase:
        """The loader's view of the phase."""
        return Phase(size=self.size, epochs=self.epochs, batch_size=self.batch_size)

    def __str__(self) -> str:
        return str(self.loader_phase)


def _parse(text: str) -> tuple[TrainPhase, ...]:
    """Parse a schedule; see `plan.schedule`.

    Raises:
        ScheduleError: it does not parse.
        UsageError: a phase has no size.
    """
    parsed = Schedule.parse(text)
    if not parsed.sizes:
        raise UsageError(f"each phase of the schedule needs an image size, got {parsed}")
    return tuple(
        TrainPhase(size=phase.size, epochs=phase.epochs, batch_size=phase.batch_size)
        for phase in parsed.phases
        if phase.size is not None
    )


def _ramped(
    phases: Sequence[TrainPhase], full: Mapping[str, Any], begin: float
) -> tuple[TrainPhase, ...]:
    """Fill in every setting of every phase.

    A setting that a phase leaves out has the recipe's value. Regularisation grows evenly from a
    share of it in the first phase to all of it in the last one (Tan and Le, "EfficientNetV2", 2021,
    section 4.2); a single phase has all of it.

    Args:
        phases: in order.
        full: the recipe's values, by name.
        begin: share of the regularisation in the first phase, 0 to 1.
    """
    last = len(phases) - 1
    found = []
    for k, phase in enumerate(phases):
        share = min(1.0, begin + (1.0 - begin) * (k / last)) if last else 1.0
        filled = {
            name: value * share if name in REGULARISATION else value
            for name, value in full.items()
            if getattr(phase, name) is None
        }
        found.append(replace(phase, **filled))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Model, schedule, optimizer and regularisation of a training.

    Args:
        model: name of a timm model.
        schedule: phases as text, `SIZExEPOCHS[@BATCH]`, comma separated; or as `TrainPhase`s or
            tables of their settings.
        batch_size: images in a batch on each rank, unless a phase has its own.
        opt: "adamw", "sgd" (Nesterov momentum 0.9) or any other optimizer of timm.
        lr: peak learning rate. None means 0.002 for AdamW and 0.1 x batch_size / 256 for SGD.
        weight_decay: None means 5e-5 for SGD and 0.05 for others.
        sched: learning-rate schedule over the samples of all phases; see `train_state.lr_factor`.
        warmup_epochs: epochs in which the rate rises, below all epochs; None means a quarter.
        smoothing, mixup, cutmix, reprob, drop, drop_path: see `TrainPhase`.
        aa: augmentation policy: "none", "rand" (RandAugment) or "trivial" (TrivialAugment).
        aa_strength: strength of the policy, 0 to 1.
        ramp_from: share of mixup, cutmix, reprob, aa_strength, drop and drop_path in the first
            phase, 0 to 1; it grows to 1 in the last phase. 1 means no ramp.
        grad_accum_steps: batches whose gradients make one optimizer step.
        clip_grad: limit of the gradient norm; 0 for none.
        model_ema_decay: decay of the exponential moving average of the weights, such as 0.9999,
            which is then validated and kept instead of the weights; 0 for none.
        compile: use torch.compile.
        amp: mixed precision: "auto", "off", "bf16" or "fp16".
        pretrained: initial weights: "hub" for timm's, or a file; "" for random ones.
        freeze: parameters whose names begin with one of these are not trained.
        class_weights: "none", or "balanced" to weigh the loss by the inverse class frequency.
        patience: end after this many epochs without a better top-1; 0 for never.
        seed: of initial weights, dropout, order and augmentation; 0 to 2**63 - 1.
        val_image_size: side of the validation images in pixels; None means the last training size.
        on_error: "raise" or "skip", for images that cannot be decoded.

    Raises:
        UsageError: a value is out of range, or settings exclude each other.
        ScheduleError: the schedule does not parse.
    """

    model: str = "resnet18"
    schedule: str | Sequence[TrainPhase | Mapping[str, Any]] = "128x2,160x2,224x2"
    batch_size: int = 64
    opt: str = "adamw"
    lr: float | None = None
    weight_decay: float | None = None
    sched: str = "onecycle"
    warmup_epochs: float | None = None
    smoothing: float = 0.1
    mixup: float = 0.0
    cutmix: float = 0.0
    aa: str = "none"
    aa_strength: float = 1.0
    reprob: float = 0.0
    drop: float = 0.0
    drop_path: float = 0.0
    ramp_from: float = 0.0
    grad_accum_steps: int = 1
    clip_grad: float = 0.0
    model_ema_decay: float = 0.0
    compile: bool = False
    amp: str = "auto"
    pretrained: str = ""
    freeze: tuple[str, ...] = ()
    class_weights: str = "none"
    patience: int = 0
    seed: int = 0
    val_image_size: int | None = None
    on_error: str = "raise"
    phases: tuple[TrainPhase, ...] = field(init=False, compare=False)
    """The phases with every setting filled in."""

    def __post_init__(self) -> None:
        given = _parse(self.schedule) if isinstance(self.schedule, str) else self.schedule
        if not isinstance(given, Sequence):
            raise UsageError(
                f"schedule must be text, such as '112x10,160x5', or a list of phases, got {given!r}"
            )
        phases = tuple(
            phase if isinstance(phase, TrainPhase) else TrainPhase.read(phase) for phase in given
        )
        self._fill("schedule", _as_text(phases) or phases)
        several = isinstance(self.freeze, Sequence) and not isinstance(self.freeze, str)
        self._fill("freeze", tuple(self.freeze) if several else (self.freeze,))
        if not all(isinstance(name, str) and name for name in self.freeze):
            raise UsageError(f"freeze must be beginnings of parameter names, got {self.freeze!r}")
        optional = ("lr", "weight_decay", "warmup_epochs", "val_image_size")
        names = [each.name for each in fields(self) if each.init and each.name not in optional]
        _check(self, required=names)
        if self.val_image_size is None:
            self._fill("val_image_size", phases[-1].val_image_size or phases[-1].size)
        sgd = self.opt == "sgd"
        if self.lr is None:
            if self.opt not in ("adamw", "sgd"):
                raise UsageError(f"opt={self.opt!r} needs lr: only adamw and sgd have a default")
            self._fill("lr", _SGD_LR_PER_IMAGE * self.batch_size if sgd else _ADAMW_LR)
        if self.weight_decay is None:
            self._fill("weight_decay", _SGD_DECAY if sgd else _ADAMW_DECAY)
        full = {
            each.name: getattr(self, each.name)
            for each in fields(TrainPhase)
            if each.name not in ("size", "epochs", "lr")
        }
        full["aa_strength"] = self.aa_strength if self.aa != "none" else 0.0
        self._fill("phases", _ramped(phases, full, self.ramp_from))
        if self.warmup_epochs is None:
            self._fill("warmup_epochs", _WARMUP * self.epochs)
        if self.warmup >= 1.0:
            raise UsageError(
                f"warmup_epochs must be below the {self.epochs} epochs of the schedule, got "
                f"{self.warmup_epochs!r}"
            )

    def _fill(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def peak_lr(self) -> float:
        """`lr`, filled in."""
        assert self.lr is not None
        return self.lr

    @property
    def warmup(self) -> float:
        """Share of all samples in which the learning rate rises, 0 to below 1."""
        return (self.warmup_epochs or 0.0) / self.epochs

    @property
    def loader_schedule(self) -> Schedule:
        """The loader's view of the phases."""
        return Schedule(tuple(phase.loader_phase for phase in self.phases))

    @property
    def epochs(self) -> int:
        """Number of epochs of all phases."""
        return sum(phase.epochs for phase in self.phases)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every image size of training and validation, in pixels, ascending."""
        val = {phase.val_image_size or 0 for phase in self.phases}
        return tuple(sorted({phase.size for phase in self.phases} | val))

    @property
    def largest_batch(self) -> int:
        """Images in the largest batch of any phase."""
        return max(phase.batch_size or 0 for phase in self.phases)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(images, side in pixels) of every training batch, the largest first."""
        shapes = {(phase.batch_size or 0, phase.size) for phase in self.phases}
        return sorted(shapes, key=lambda shape: shape[0] * shape[1] ** 2, reverse=True)

    def phase_at(self, epoch: int) -> TrainPhase:
        """The phase of an epoch, filled in; beyond the end, the last one."""
        return self.phases[self.phase_number(epoch)]

    def phase_number(self, epoch: int) -> int:
        """Number of the phase of an epoch, both from 0; beyond the end, the last one."""
        for number, phase in enumerate(self.phases):
            if epoch < phase.epochs:
                return number
            epoch -= phase.epochs
        return len(self.phases) - 1

    def as_dict(self) -> dict[str, Any]:
        """Settings by name, JSON-able."""
        settings = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        if not isinstance(self.schedule, str):
            settings["schedule"] = [phase.as_dict() for phase in self.schedule]  # type: ignore[union-attr]
        return settings | {"freeze": list(self.freeze)}

    def check_resumable(self, saved: Mapping[str, Any], *, done: int | None = None) -> bool:
        """Check that a run of the recipe `saved` can continue under this one.

        Args:
            saved: settings of the other recipe.
            done: number of finished epochs, if the run stands between two: then another schedule
                that begins with these epochs may follow.

        Returns:
            True if the schedule is another one.

        Raises:
            StateError: settings differ. The message names them.
        """
        free = [*_FREE_ON_RESUME]
        extended = done is not None and self._continues(saved, done)
        if extended:
            free += ["schedule", "warmup_epochs"]
        own = {name: value for name, value in self.as_dict().items() if name not in free}
        if found := differences(saved, own):
            raise StateError(
                f"cannot resume: the checkpoint has another recipe ({found})",
                hint="leave these settings out: --resume takes them from the run. Another schedule "
                "is possible only between two epochs, and has to begin with the finished ones",
            )
        return extended

    def changed_on_resume(self, saved: Mapping[str, Any]) -> str:
        """Settings that differ from `saved` and may, as text; "" for none."""
        own = self.as_dict()
        return differences(saved, {name: own[name] for name in _FREE_ON_RESUME})

    def for_ranks(self, before: int, now: int) -> Recipe:
        """The same recipe on another number of ranks, with the same global batches.

        Raises:
            StateError: a global batch cannot be divided by the new number.
        """
        if before == now:
            return self

        def share(rows: int) -> int:
            if rows * before % now:
                raise StateError(
                    f"cannot resume on {now} processes: the global batch of {rows * before} images "
                    f"({rows} on each of {before}) cannot be divided by {now}"
                )
            return rows * before // now

        given = self.schedule
        phases = _parse(given) if isinstance(given, str) else given
        again = [
            replace(phase, batch_size=phase.batch_size and share(phase.batch_size))
            for phase in phases
            if isinstance(phase, TrainPhase)
        ]
        settings = self.as_dict() | {"schedule": again, "batch_size": share(self.batch_size)}
        return Recipe(**settings)

    def _continues(self, saved: Mapping[str, Any], done: int) -> bool:
        """Return True if the schedule is another one that begins with the finished epochs."""
        if saved.get("schedule") == self.as_dict()["schedule"]:
            return False
        names = [each.name for each in fields(Recipe) if each.init]
        before = Recipe(**{name: saved[name] for name in names if name in saved})
        same = [
            (before.phase_at(epoch).size, before.phase_at(epoch).batch_size)
            == (self.phase_at(epoch).size, self.phase_at(epoch).batch_size)
            for epoch in range(done)
        ]
        return all(same) and self.epochs > done


def _as_text(phases: Sequence[TrainPhase]) -> str:
    """A schedule as text; "" if a phase has settings that the text form lacks."""
    plain = {"size", "epochs", "batch_size", "lr"}
    simple = all(set(phase.as_dict()) <= plain and phase.lr == 1.0 for phase in phases)
    return str(Schedule(tuple(phase.loader_phase for phase in phases))) if simple else ""


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Entries of `now` that have another value in `saved`, as text; "" for none."""
    return "; ".join(
        f"{name} was {saved.get(name)!r}, is {value!r}"
        for name, value in now.items()
        if saved.get(name) != value
    )
