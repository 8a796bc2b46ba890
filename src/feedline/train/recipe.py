"""The settings of a training: the recipe, which decides the trained weights, with its phases; and
those of a run, which do not: folders, device, workers, checkpoints.

Guarantees: a `Recipe` that exists is valid and complete (defaults that depend on other settings are
filled in), and `Recipe(**recipe.as_dict())` is equal to it. Names are timm's where timm has the
setting. Values are checked against their annotations; each field has the help text of its option.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from feedline.errors import UsageError
from feedline.order.schedule import MAX_IMAGE_SIZE, Phase, Schedule
from feedline.train.settings import (
    AUGMENTATION,
    DEVICE,
    LOADING,
    MODEL,
    OPTIMIZER,
    RUN,
    check_names,
    check_values,
    setting_names,
)

PLACES = {"data": "DIR", "val_dir": "--val-dir", "cache": "--cache", "settings": "--settings"}
"""Settings that are files or folders a run reads, with their names on the command line."""

_NONE = Path("none")

REGULARISATION = ("mixup", "cutmix", "reprob", "aa_strength", "drop", "drop_path")
"""Settings that grow with the image size: a network that sees fewer pixels needs less of them."""

Share = Annotated[float, Meta(ge=0, le=1)]
ShareBelow1 = Annotated[float, Meta(ge=0, lt=1)]
Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
NotNegative = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
Count = Annotated[int, Meta(ge=0, le=1 << 24)]
Rows = Annotated[int, Meta(ge=1, le=1 << 24)]
Pixels = Annotated[int, Meta(ge=1, le=MAX_IMAGE_SIZE)]

# Peak learning rates. AdamW's does not depend on the batch size; SGD's is 0.1 at 256 images and
# grows linearly with the batch (Goyal et al., "Accurate, large minibatch SGD", 2017).
_ADAMW_LR = 0.002
_SGD_LR_PER_IMAGE = 0.1 / 256
_ADAMW_DECAY, _SGD_DECAY = 0.05, 5e-5
_WARMUP = 0.25  # of all epochs
_TIMM_SCHEDULES = ("step", "multistep", "plateau", "poly", "tanh")


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
        aa_strength: strength of the recipe's `aa` policy, 0 to 1: factor on the magnitude of
            RandAugment, share of the images that TrivialAugment changes.
        reprob: probability of random erasing (Zhong et al., 2020), 0 to 1.
        drop: dropout before the head, 0 to below 1.
        drop_path: stochastic depth at the last block (Huang et al., 2016), 0 to below 1.
        val_image_size: side of the validation images, in pixels.

    Raises:
        UsageError: a value is out of range.
    """

    size: Pixels
    epochs: Annotated[int, Meta(ge=1, le=1_000_000)]
    batch_size: Rows | None = None
    lr: Positive = 1.0
    mixup: NotNegative | None = None
    cutmix: NotNegative | None = None
    smoothing: ShareBelow1 | None = None
    aa_strength: Share | None = None
    reprob: Share | None = None
    drop: ShareBelow1 | None = None
    drop_path: ShareBelow1 | None = None
    val_image_size: Pixels | None = None

    def __post_init__(self) -> None:
        check_values(self, setting_names(self), "a phase's ")

    @classmethod
    def read(cls, table: object) -> TrainPhase:
        """Make a phase from plain values, such as a TOML table."""
        if not isinstance(table, Mapping):
            raise UsageError(f"a phase is a table with size and epochs, got {table!r}")
        check_names(table, setting_names(cls), "a phase")
        for name in ("size", "epochs"):
            if name not in table:
                raise UsageError(f"the phase {dict(table)!r} has no {name}")
        return cls(**table)

    def as_dict(self) -> dict[str, Any]:
        """Settings by name, without those left to the recipe."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Model, schedule, optimizer and regularisation of a training.

    Args:
        model: name of a timm model.
        schedule: phases as text, `SIZExEPOCHS[@BATCH]`, comma separated; or as `TrainPhase`s or
            tables of their settings.
        batch_size: images in a batch on each rank, unless a phase has its own.
        opt: "adamw", "sgd" (Nesterov momentum 0.9) or any other timm optimizer.
        lr: peak learning rate. None means 0.002 for AdamW and 0.1 x batch_size / 256 for SGD.
        weight_decay: None means 5e-5 for SGD and 0.05 for others.
        sched: learning-rate schedule over the samples of all phases: "onecycle" (up and down along
            half cosines), "cosine" (linear warm-up), "linear" or "constant" (after the warm-up).
        warmup_epochs: epochs in which the rate rises, below all epochs; None means a quarter.
        smoothing, mixup, cutmix, reprob, drop, drop_path: see `TrainPhase`.
        aa: augmentation policy: "none", "rand" (RandAugment) or "trivial" (TrivialAugment).
        aa_strength: strength of the policy, 0 to 1; see `TrainPhase`.
        ramp_from: share of mixup, cutmix, reprob, aa_strength, drop and drop_path in the first
            phase, 0 to 1; it grows to 1 in the last phase. 1 means no ramp.
        grad_accum_steps: batches whose gradients make one optimizer step.
        clip_grad: limit of the gradient norm; 0 for none.
        model_ema_decay: decay of the exponential moving average of the weights, such as 0.9999,
            which is then validated and kept instead of the weights; 0 for none.
        compile: use torch.compile.
        amp: use mixed precision; None means on a GPU, or if `amp_dtype` is given.
        amp_dtype: "bfloat16" or "float16"; None means bfloat16, on a GPU without it float16.
        pretrained: start from timm's pretrained weights.
        initial_checkpoint: start from the weights in this file; "" for none.
        seed: of initial weights, dropout, order and augmentation; 0 to 2**63 - 1.
        val_image_size: side of the validation images in pixels; None means the last training size.
        on_error: "raise" or "skip", for images that cannot be decoded.

    Raises:
        UsageError: a value is out of range, or settings exclude each other.
        ScheduleError: the schedule does not parse.
    """

    model: str = MODEL("resnet18", "timm model.", "NAME")
    schedule: str | Sequence[TrainPhase | Mapping[str, Any]] = MODEL(
        "128x2,160x2,224x2", "Image sizes and epochs; @N: batch size.", "SIZExEPOCHS[@N],..."
    )
    pretrained: bool = MODEL(False, "Start from timm's pretrained weights.")
    initial_checkpoint: str = MODEL("", "Start from these weights.", "FILE")
    opt: str = OPTIMIZER("adamw", "timm optimizer.", "NAME")
    lr: Positive | None = OPTIMIZER(
        None, "Peak learning rate.", "LR", "0.002 for adamw, 0.1 x batch / 256 for sgd"
    )
    sched: Literal["onecycle", "cosine", "linear", "constant"] = OPTIMIZER(
        "onecycle", "Learning-rate schedule.", "onecycle|cosine|linear|constant"
    )
    warmup_epochs: NotNegative | None = OPTIMIZER(None, "Warm-up epochs.", "N", "1/4 of all")
    weight_decay: NotNegative | None = OPTIMIZER(
        None, "Weight decay.", "X", "0.05, for sgd 0.00005"
    )
    grad_accum_steps: Annotated[int, Meta(ge=1, le=1 << 16)] = OPTIMIZER(
        1, "Batches for a step.", "N"
    )
    clip_grad: NotNegative = OPTIMIZER(0.0, "Clip the gradient norm.", "NORM")
    model_ema_decay: ShareBelow1 = OPTIMIZER(
        0.0, "Average the weights; validate and save the average.", "DECAY"
    )
    mixup: NotNegative = AUGMENTATION(0.0, "MixUp alpha.", "ALPHA")
    cutmix: NotNegative = AUGMENTATION(0.0, "CutMix alpha.", "ALPHA")
    aa: Literal["none", "rand", "trivial"] = AUGMENTATION(
        "none", "RandAugment or TrivialAugment.", "rand|trivial|none"
    )
    aa_strength: Share = AUGMENTATION(1.0, "Strength of --aa.", "0..1", "1")
    reprob: Share = AUGMENTATION(0.0, "Random-erasing probability.", "P")
    drop: ShareBelow1 = AUGMENTATION(0.0, "Dropout rate of the head.", "P")
    drop_path: ShareBelow1 = AUGMENTATION(0.0, "Drop-path rate.", "P")
    smoothing: ShareBelow1 = AUGMENTATION(0.1, "Label smoothing.", "X")
    ramp_from: Share = AUGMENTATION(
        0.0, "Share of these in the first phase; 1: no ramp.", "0..1", "0"
    )
    batch_size: Rows = LOADING(64, "Images in a batch.", "N", "", "--batch-size", "-b")
    compile: bool = DEVICE(False, "Use torch.compile.")
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = RUN(0, "Random seed.", "N", "0")
    val_image_size: Pixels | None = RUN(
        None, "Validation image size.", "PX", "the last training size"
    )
    # Options that other commands have, too.
    amp: bool | None = None
    amp_dtype: Literal["bfloat16", "float16"] | None = None
    on_error: Literal["raise", "skip"] = "raise"
    phases: tuple[TrainPhase, ...] = field(init=False, compare=False)
    """The phases with every setting filled in."""

    def __post_init__(self) -> None:
        phases = self.own_phases()
        self._fill("schedule", _as_text(phases) or phases)
        if str(self.aa).startswith("rand-"):
            raise UsageError(
                f"must be 'rand' without timm's options, got {self.aa!r}",
                argument="aa",
                hint="this is torchvision's RandAugment: 2 operations of magnitude 9 of 30 on "
                "each image; timm's m9 is 9 of 10, on half of the images. --aa-strength 0..1 "
                "lowers it",
                fix={"aa": "rand"},
            )
        if self.sched in _TIMM_SCHEDULES:
            raise UsageError(
                f"must be 'onecycle', 'cosine', 'linear' or 'constant', got {self.sched!r}",
                argument="sched",
                hint="the rate falls smoothly over the samples of all phases",
                fix={"sched": "cosine"},
            )
        check_values(self, set(setting_names(self)) - {"schedule"})
        if self.pretrained and self.initial_checkpoint:
            text = "cannot be combined with timm's pretrained weights"
            raise UsageError(text, argument="initial_checkpoint", fix={"pretrained": False})
        if self.val_image_size is None:
            self._fill("val_image_size", phases[-1].val_image_size or phases[-1].size)
        sgd = self.opt == "sgd"
        if self.lr is None:
            if self.opt not in ("adamw", "sgd"):
                near = difflib.get_close_matches(self.opt, ("adamw", "sgd"), n=1)
                raise UsageError(
                    f"must be given with opt {self.opt!r}: only adamw ({_ADAMW_LR}) and sgd (0.1 x "
                    "batch_size / 256) have a default",
                    argument="lr",
                    fix={"opt": near[0]} if near else {},
                )
            self._fill("lr", _SGD_LR_PER_IMAGE * self.batch_size if sgd else _ADAMW_LR)
        if self.weight_decay is None:
            self._fill("weight_decay", _SGD_DECAY if sgd else _ADAMW_DECAY)
        self._fill("phases", self._ramped(phases))
        if self.warmup_epochs is None:
            self._fill("warmup_epochs", _WARMUP * self.epochs)
        if self.warmup >= 1.0:
            raise UsageError(
                f"must be below the {self.epochs} epochs of the schedule, got "
                f"{self.warmup_epochs!r}",
                argument="warmup_epochs",
            )

    def _fill(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def own_phases(self) -> tuple[TrainPhase, ...]:
        """The phases with the settings of the schedule alone."""
        if isinstance(self.schedule, str):
            parsed = Schedule.parse(self.schedule)
            if not parsed.image_sizes:
                raise UsageError(f"each phase of the schedule needs an image size, got {parsed}")
            return tuple(
                TrainPhase(size=size, epochs=phase.epochs, batch_size=phase.batch_size)
                for size, phase in zip(parsed.image_sizes, parsed.phases, strict=True)
            )
        if not isinstance(self.schedule, Sequence):
            raise UsageError(
                f"must be text, such as '112x10,160x5', or a list of phases, got {self.schedule!r}",
                argument="schedule",
            )
        return tuple(
            each if isinstance(each, TrainPhase) else TrainPhase.read(each)
            for each in self.schedule
        )

    def _ramped(self, phases: Sequence[TrainPhase]) -> tuple[TrainPhase, ...]:
        """Fill in every setting of every phase.

        Regularisation grows evenly from a share of it in the first phase to all of it in the last
        one (Tan and Le, "EfficientNetV2", 2021, section 4.2); a single phase has all of it.
        """
        last, begin = len(phases) - 1, self.ramp_from
        found = []
        for k, phase in enumerate(phases):
            share = min(1.0, begin + (1.0 - begin) * (k / last)) if last else 1.0
            filled: dict[str, Any] = {}
            for name in setting_names(phase):
                if getattr(phase, name) is None:
                    factor = share if name in REGULARISATION else 1
                    off = name == "aa_strength" and self.aa == "none"
                    filled[name] = 0.0 if off else getattr(self, name) * factor
            found.append(replace(phase, **filled))
        return tuple(found)

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
        return _as_schedule(self.phases)

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
        settings = {name: getattr(self, name) for name in setting_names(self)}
        if not isinstance(self.schedule, str):
            settings["schedule"] = [phase.as_dict() for phase in self.own_phases()]
        return settings


def _as_text(phases: Sequence[TrainPhase]) -> str:
    """A schedule as text; "" if a phase has settings that the text form lacks."""
    plain = {"size", "epochs", "batch_size", "lr"}
    if any(set(phase.as_dict()) - plain or phase.lr != 1.0 for phase in phases):
        return ""
    return str(_as_schedule(phases))


def _as_schedule(phases: Sequence[TrainPhase]) -> Schedule:
    return Schedule(
        tuple(Phase(image_size=p.size, epochs=p.epochs, batch_size=p.batch_size) for p in phases)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """Folders, device, workers and checkpoints of a run.

    None means the value of the configuration file, then of the resumed run, then the default. Paths
    may be text; "none" means no path, also if the resumed run had one.

    Args:
        data: a folder with train/ and val/, or a folder of class folders.
        val_dir: validation images, if they are not under `data`.
        cache: cache of resized copies of the training images; see `DataLoader`.
        device: "auto" (default) for CUDA if available, otherwise the CPU; or a device of torch,
            such as "cpu", "cuda", "mps" or "xpu".
        workers: number of worker processes or "auto"; default: as in `settings`, else "auto".
        settings: a file written by `feedline tune --save`; see `DataLoader`.
        out: folder of the run; default `runs/MODEL-N`.
        resume: a checkpoint, the folder of a run, or "auto".
        checkpoint_every: steps between checkpoints within an epoch; default 0: after epochs only.
        keep_checkpoints: number of checkpoints of finished epochs to keep besides the last one;
            default 0.
        warmup_shapes: run each image size before training; default: on a GPU or with torch.compile.
        tensorboard: write metrics for TensorBoard to the folder of the run; default False.

    Raises:
        UsageError: a value is out of range or of another type.
    """

    data: Path | None = None
    settings: Path | None = LOADING(None, "Settings from feedline tune --save.", "FILE")
    warmup_shapes: bool | None = DEVICE(
        None, "Run each image size before training.", "", "on a GPU"
    )
    out: Path | None = RUN(None, "Folder of the run.", "DIR", "runs/MODEL-N")
    resume: str | None = RUN(None, "Resume a run; auto: the newest one, if any.", "RUN|auto")
    val_dir: Path | None = RUN(None, "Validation images.", "DIR", "DIR/val")
    checkpoint_every: Count | None = RUN(
        None, "Save a checkpoint every N steps.", "N", "each epoch"
    )
    keep_checkpoints: Count | None = RUN(None, "Checkpoints of epochs to keep.", "N", "the last")
    tensorboard: bool | None = RUN(None, "Write metrics for TensorBoard.")
    # Options that other commands have, too.
    cache: Path | None = None
    device: str | None = None
    workers: Count | Literal["auto"] | None = None

    def __post_init__(self) -> None:
        for name in (*PLACES, "out"):
            if isinstance(place := getattr(self, name), str):
                object.__setattr__(self, name, Path(place))
        if isinstance(self.resume, Path):
            object.__setattr__(self, "resume", str(self.resume))
        check_values(self, setting_names(self))

    def over(self, under: RunSettings) -> RunSettings:
        """Complete these settings with those of `under`."""
        more = {name: value for name, value in under._given().items() if name not in self._given()}
        if self.settings not in (None, _NONE):  # the file has the number of workers
            more.pop("workers", None)
        return replace(self, **more)

    def resolved(self) -> RunSettings:
        """The same settings, with None instead of "none"."""
        return replace(self, **{name: None for name in PLACES if getattr(self, name) == _NONE})

    def as_dict(self) -> dict[str, Any]:
        """Settings for the next start of the run, JSON-able, with absolute paths."""
        given = self._given()
        places = {name: str(given[name].absolute()) for name in PLACES if name in given}
        return {name: given[name] for name in given if name not in ("out", "resume")} | places

    def _given(self) -> dict[str, Any]:
        named = ((name, getattr(self, name)) for name in setting_names(self))
        return {name: value for name, value in named if value is not None}

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> RunSettings:
        """Make settings from plain values, such as a TOML table."""
        recipe = dict.fromkeys(setting_names(Recipe), "above [run], to the recipe")
        check_names(table, setting_names(cls), "[run]", elsewhere=recipe)
        return cls(**table)
