"""The recipe: every setting that decides what the trained weights become.

Guarantees: a recipe that exists is valid and complete (defaults that depend on other settings are
filled in), and reads back equal from `as_dict`. Device, workers and folders are not part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from feedline.errors import StateError, UsageError
from feedline.plan.schedule import Schedule
from feedline.train.check_settings import check_settings
from feedline.train.optimizer_names import OWN_OPTIMIZERS, refuse_unknown_optimizer
from feedline.train.phase import TrainPhase, grown, of_schedule, schedule_of

__all__ = ["Recipe", "differences"]

# Peak rates of the curve. AdamW's does not follow the batch size; SGD's does, linearly, from
# 0.1 at 256 rows (Goyal et al., "Accurate, large minibatch SGD", 2017).
_ADAMW_LR = 0.002
_SGD_LR_PER_ROW = 0.1 / 256
_ADAMW_DECAY, _SGD_DECAY = 0.05, 5e-5
# Settings that may differ when a run goes on, which is told: what is measured and when it ends, and
# what can save a training that fails.
_FREE_ON_RESUME = ("val_size", "patience", "lr", "clip", "amp")
# Settings that came later, with what a checkpoint means that does not have them.
_LATER = {"ramp_from": 0.0}
_OF_PHASES = (
    *("batch_size", "mixup", "cutmix", "label_smoothing", "augment", "erasing"),
    *("dropout", "drop_path", "val_size"),
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained, and how.

    Args:
        model: a timm model's name.
        schedule: phases as text, `SIZExEPOCHS[@BATCH]`, comma separated; or as `TrainPhase`s or
            tables of their settings, where they have some of their own.
        batch_size: rows of a batch where a phase names none, on each process.
        optimizer: "adamw", "sgd" (with Nesterov momentum 0.9), or any other that timm has by name.
        lr: the highest learning rate of the one curve; None takes 0.002 for AdamW and
            0.1 x batch_size / 256 for SGD.
        weight_decay: None takes 0.05 for AdamW and others, 5e-5 for SGD.
        curve: of the learning rate, over the samples of all phases; see `rate.rate_at`.
        warmup: the share of all samples in which the rate rises, 0 to below 1.
        label_smoothing, mixup, cutmix, erasing, dropout, drop_path: see `phase.TrainPhase`.
        policy: augmentation of each image: "none", "rand" or "trivial".
        augment: how strong the policy is, 0 to 1.
        ramp: mixup, cutmix, erasing, the policy, dropout and drop_path grow from a share in the
            first phase to all in the last one, where a phase says nothing else.
        ramp_from: that share, 0 to 1.
        accumulate: batches whose gradients make one step of the optimizer.
        clip: the gradients' norm is cut to this; 0 for no limit.
        ema: decay of the mean of all weights so far, as 0.9999, which is validated and kept in the
            place of the weights themselves; 0 for none.
        compile: let torch.compile make the model's kernels.
        amp: mixed precision: "auto", "off", "bf16" or "fp16".
        pretrained: weights to begin with: "hub" for timm's, or a file; "" for random ones.
        freeze: parameters whose names begin with one of these stay as they are.
        class_weights: "none", or "balanced" to weigh a class's loss by the inverse of its share.
        patience: end after so many epochs without a better top-1; 0 goes on to the end.
        seed: of initial weights, dropout, order and augmentation; 0 to 2**63 - 1.
        val_size: side of validation images in pixels; None takes the schedule's last size.
        on_error: "raise" or "skip", for images that cannot be decoded.

    Raises:
        UsageError: a value is out of range, or settings exclude one another.
        ScheduleError: the schedule does not parse.
    """

    model: str = "resnet18"
    schedule: str | Sequence[TrainPhase | Mapping[str, Any]] = "112x2,160x2,224x2"
    batch_size: int = 64
    optimizer: str = "adamw"
    lr: float | None = None
    weight_decay: float | None = None
    curve: str = "onecycle"
    warmup: float = 0.25
    label_smoothing: float = 0.1
    mixup: float = 0.0
    cutmix: float = 0.0
    policy: str = "none"
    augment: float = 1.0
    erasing: float = 0.0
    dropout: float = 0.0
    drop_path: float = 0.0
    ramp: bool = True
    ramp_from: float = 0.0
    accumulate: int = 1
    clip: float = 0.0
    ema: float = 0.0
    compile: bool = False
    amp: str = "auto"
    pretrained: str = ""
    freeze: tuple[str, ...] = ()
    class_weights: str = "none"
    patience: int = 0
    seed: int = 0
    val_size: int | None = None
    on_error: str = "raise"
    phases: tuple[TrainPhase, ...] = field(init=False, compare=False)
    """The phases, which say everything: see `phase.grown`."""

    def __post_init__(self) -> None:
        given = of_schedule(self.schedule) if isinstance(self.schedule, str) else self.schedule
        if not isinstance(given, Sequence):
            raise UsageError(
                f"schedule must be text, as '112x10,160x5', or a list of phases, got {given!r}"
            )
        phases = tuple(
            phase if isinstance(phase, TrainPhase) else TrainPhase.read(phase) for phase in given
        )
        self._fill("schedule", _as_text(phases) or phases)
        several = isinstance(self.freeze, Sequence) and not isinstance(self.freeze, str)
        self._fill("freeze", tuple(self.freeze) if several else (self.freeze,))
        check_settings(self)
        sgd = self.optimizer == "sgd"
        if self.val_size is None:
            self._fill("val_size", phases[-1].val_size or phases[-1].size)
        if self.lr is None:
            if self.optimizer not in OWN_OPTIMIZERS:
                refuse_unknown_optimizer(self.optimizer)
                raise UsageError(
                    f"lr must be given for {self.optimizer!r}: only for adamw and sgd is there one "
                    "that suits most trainings"
                )
            self._fill("lr", _SGD_LR_PER_ROW * self.batch_size if sgd else _ADAMW_LR)
        if self.weight_decay is None:
            self._fill("weight_decay", _SGD_DECAY if sgd else _ADAMW_DECAY)
        full = {name: getattr(self, name) for name in _OF_PHASES}
        full["augment"] = self.augment if self.policy != "none" else 0.0
        self._fill("phases", tuple(grown(phases, full, begin=self.ramp_from if self.ramp else 1.0)))

    def _fill(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def peak_lr(self) -> float:
        """`lr`, filled in."""
        assert self.lr is not None
        return self.lr

    @property
    def decay(self) -> float:
        """`weight_decay`, filled in."""
        assert self.weight_decay is not None
        return self.weight_decay

    @property
    def val_px(self) -> int:
        """`val_size`, filled in, in pixels."""
        assert self.val_size is not None
        return self.val_size

    @property
    def loads(self) -> Schedule:
        """What the loader has to know of the phases."""
        return schedule_of(self.phases)

    @property
    def epochs(self) -> int:
        """Of all phases together."""
        return sum(phase.epochs for phase in self.phases)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every image size that the model will see, in pixels, ascending."""
        val = {self.val_size_of(phase) for phase in self.phases}
        return tuple(sorted({phase.size for phase in self.phases} | val))

    def val_size_of(self, phase: TrainPhase) -> int:
        """Side of the validation images of a phase, in pixels."""
        return phase.val_size or self.val_px

    def phase_at(self, epoch: int) -> TrainPhase:
        """The phase of an epoch, which says everything; beyond the end, the last."""
        return self.phases[self.phase_number(epoch)]

    def phase_number(self, epoch: int) -> int:
        """Which phase an epoch is in, both from 0; beyond the end, the last."""
        for number, phase in enumerate(self.phases):
            if epoch < phase.epochs:
                return number
            epoch -= phase.epochs
        return len(self.phases) - 1

    @property
    def largest_batch(self) -> int:
        """Rows of the largest batch of any phase."""
        return max(phase.batch_size or self.batch_size for phase in self.phases)

    def as_dict(self) -> dict[str, Any]:
        """The settings by name, JSON-able."""
        said = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
        if not isinstance(self.schedule, str):
            said["schedule"] = [phase.as_dict() for phase in self.schedule]  # type: ignore[union-attr]
        return said | {"freeze": list(self.freeze)}

    def check_resumable(self, saved: Mapping[str, Any], *, done: int | None = None) -> bool:
        """Make sure that a run of the recipe `saved` may go on under this one.

        Args:
            saved: the other one's settings.
            done: its finished epochs, where it stands between two: then another schedule may
                follow them.

        Returns:
            whether the schedule is another one.

        Raises:
            StateError: they differ; names every setting that does.
        """
        own = self.as_dict()
        saved = {**_LATER, **saved}
        mine = {name: value for name, value in own.items() if name not in _FREE_ON_RESUME}
        extended = done is not None and self._follows(saved, done)
        if extended:
            del mine["schedule"]
        found = differences(saved, mine, "was", "is")
        if found:
            longer = ""
            if saved.get("schedule") != own["schedule"] and not extended:
                longer = (
                    ". Another schedule may follow only where the run stands between two epochs, "
                    "and begins with those that are done"
                )
            raise StateError(
                f"cannot resume: the checkpoint is of another recipe ({found}). Leave these "
                f"settings out, as --resume takes them from the run, or start anew without it"
                f"{longer}"
            )
        return extended

    def changed(self, saved: Mapping[str, Any]) -> str:
        """What is otherwise for a run of the recipe `saved` that goes on, as text; "" for nothing.

        The rate, the limit of gradients and the precision may change on the way: what is trained
        stays, and a training whose loss is lost can be saved. So may the size of validation and
        the patience, which change no weights.
        """
        own = self.as_dict()
        return differences(saved, {name: own[name] for name in _FREE_ON_RESUME}, "was", "is")

    def for_ranks(self, before: int, now: int) -> Recipe:
        """The same recipe on another number of processes: batches over all of them stay.

        Raises:
            StateError: they cannot be divided so.
        """
        if before == now:
            return self

        def share(rows: int) -> int:
            if rows * before % now:
                raise StateError(
                    f"cannot resume on {now} processes: the run had batches of {rows} on each of "
                    f"{before}, and {rows * before} cannot be divided by {now}"
                )
            return rows * before // now

        given = self.schedule
        phases = of_schedule(given) if isinstance(given, str) else given
        again = [
            replace(phase, batch_size=phase.batch_size and share(phase.batch_size))
            for phase in phases
            if isinstance(phase, TrainPhase)
        ]
        said = self.as_dict() | {"schedule": again, "batch_size": share(self.batch_size)}
        return Recipe(**said)

    def _follows(self, saved: Mapping[str, Any], done: int) -> bool:
        """Whether the schedule is another one, and its first epochs are those that are done."""
        if saved.get("schedule") == self.as_dict()["schedule"]:
            return False
        names = (field.name for field in fields(Recipe) if field.init)
        before = Recipe(**{name: saved[name] for name in names if name in saved})
        same = [
            (before.phase_at(epoch).size, before.phase_at(epoch).batch_size)
            == (self.phase_at(epoch).size, self.phase_at(epoch).batch_size)
            for epoch in range(done)
        ]
        return all(same) and self.epochs > done


def _as_text(phases: Sequence[TrainPhase]) -> str:
    """A schedule as text; "" where phases have settings that text cannot say."""
    plain = {"size", "epochs", "batch_size", "lr"}
    said = all(set(phase.as_dict()) <= plain and phase.lr == 1.0 for phase in phases)
    return str(schedule_of(phases)) if said else ""


def differences(saved: Mapping[str, Any], now: Mapping[str, Any], was: str, is_: str) -> str:
    """Which entries of `now` were saved with another value, as text; "" where none was."""
    return "; ".join(
        f"{name} {was} {saved.get(name)!r}, {is_} {value!r}"
        for name, value in now.items()
        if saved.get(name) != value
    )
