"""Tests of data loading in frameworks, and the places where feedline's class is swapped in."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SUITES", "Suite"]


@dataclass(frozen=True)
class Suite:
    """Tests of a framework, in the folder `tests` of its repository.

    Args:
        root: folder of the copy to import from.
        tests: test files to run, in which the class is swapped.
        scripts: programs to run on several processes each, in which the class is swapped.
        processes: numbers of processes.
        calls: functions that these programs must skip, because they hang with torch's class on a
            machine without CUDA, or fail for other reasons.
        modules: modules of the framework whose name `DataLoader` is bound to the class.
    """

    root: str = "."
    tests: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    processes: tuple[int, ...] = (2, 3, 4)
    calls: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


_LIGHTNING = "tests/tests_pytorch"
_FABRIC = "tests/tests_fabric"
_SCRIPTS = "src/accelerate/test_utils/scripts"
SUITES = {
    "accelerate": Suite(
        tests=(
            "tests/test_data_loader.py",
            "tests/test_accelerator.py",
            "tests/test_state_checkpointing.py",
        ),
    ),
    "accelerate-scripts": Suite(
        scripts=(
            f"{_SCRIPTS}/test_sync.py",
            f"{_SCRIPTS}/test_distributed_data_loop.py",
            f"{_SCRIPTS}/test_script.py",
        ),
        calls=(
            "test_can_join_uneven_inputs",  # hangs, because Accelerate does not join on the CPU
            "test_join_can_override_even_batches",
            "test_join_can_override_for_mixed_type_dataloaders",
            "test_join_raises_warning_for_iterable_when_overriding_even_batches",
            "test_split_between_processes_dataset",  # pickles pyarrow with dill
            "test_split_between_processes_tensor",  # fails on 3 processes
        ),
    ),
    "lightning": Suite(
        root="tests",
        tests=(
            f"{_LIGHTNING}/core/test_datamodules.py",
            f"{_LIGHTNING}/loops/test_double_iter_in_iterable_dataset.py",
            f"{_LIGHTNING}/trainer/connectors/test_data_connector.py",
            f"{_LIGHTNING}/trainer/dynamic_args/test_multiple_eval_dataloaders.py",
            f"{_LIGHTNING}/trainer/flags/test_overfit_batches.py",
            f"{_LIGHTNING}/trainer/test_dataloaders.py",
            f"{_LIGHTNING}/utilities/test_combined_loader.py",
            f"{_LIGHTNING}/utilities/test_data.py",
        ),
    ),
    "ignite": Suite(
        tests=(
            "tests/ignite/engine/test_deterministic.py",
            "tests/ignite/engine/test_engine.py",
            "tests/ignite/engine/test_engine_state_dict.py",
            "tests/ignite/handlers/test_param_scheduler.py",
        ),
    ),
    "ignite-auto": Suite(
        tests=("tests/ignite/distributed/test_auto.py",), modules=("ignite.distributed.auto",)
    ),
    "timm": Suite(
        tests=(
            "tests/test_data.py",
            "tests/test_naflex_dataset.py",
            "tests/test_scheduled_sampler.py",
        ),
        modules=("timm.data.loader",),
    ),
    "fabric": Suite(
        root="tests",
        tests=(
            f"{_FABRIC}/utilities/test_data.py",
            f"{_FABRIC}/test_fabric.py",
            f"{_FABRIC}/test_wrappers.py",
        ),
    ),
}
