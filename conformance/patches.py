"""Changes to the copy of the suite, with reasons.

Each patch replaces a text that must occur in the suite exactly once. If it does not, the suite has
changed and the run stops; no patch is skipped silently.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Patch", "SuiteChanged", "apply_patch", "patches"]


class SuiteChanged(Exception):
    """The suite lacks a text that a patch replaces."""


@dataclass(frozen=True)
class Patch:
    """A replacement in a file of the suite.

    Args:
        file: name of the file.
        why: purpose of the patch, as an infinitive.
        old: text that occurs exactly once.
        new: replacement.
    """

    file: str
    why: str
    old: str
    new: str


_LOADER_KILL = Patch(
    "test_dataloader.py",
    "run loader_kill with workers as well",
    'exit_methods = [None, "loader_error", "worker_error", "worker_kill"]',
    'exit_methods = [None, "loader_error", "worker_error", "worker_kill", "loader_kill"]',
)

_WORKER_KILL = Patch(
    "test_dataloader.py",
    "run worker_kill, which the suite passes over",
    """\
                if exit_method == "worker_kill":
                    # FIXME: This sometimes hangs. See #16608.
                    continue
""",
    "",
)

_MARK = Patch(
    "test_dataloader.py",
    "mark the processes of a case",
    """\
                loader_p.start()
                loader_psutil_p = psutil.Process(loader_p.pid)
""",
    """\
                import conformance_plugin

                conformance_plugin.new_case(str(exit_method))
                loader_p.start()
                loader_psutil_p = psutil.Process(loader_p.pid)
""",
)

_NONE_LEFT = Patch(
    "test_dataloader.py",
    "see that no process of a case is left, a replaced worker's successor included",
    """\
                    if exit_method is None:
                        if loader_p.exitcode != 0:
""",
    """\
                    left = conformance_plugin.left_behind(JOIN_TIMEOUT)
                    if left:
                        fail("processes were left behind: " + "; ".join(left))
                    if exit_method is None:
                        if loader_p.exitcode != 0:
""",
)

_HEALS = Patch(
    "test_dataloader.py",
    "expect exit code 0 after worker_kill, but where torch's own engine is underneath",
    """\
                    if exit_method is None:
                        if loader_p.exitcode != 0:
""",
    """\
                    healed = exit_method == "worker_kill" and not is_iterable_dataset
                    if exit_method is None or healed:
                        if loader_p.exitcode != 0:
""",
)

_KEEP = Patch(
    "test_dataloader.py",
    "keep what test_proper_exit's loader yields",
    """\
    for i, _ in enumerate(it):
        if i == 0:
            if not hold_iter_reference:
""",
    """\
    seen = []
    for i, _ in enumerate(it):
        seen.append(int(_))
        if i == 0:
            if not hold_iter_reference:
""",
)

_WHOLE = Patch(
    "test_dataloader.py",
    "expect a whole epoch, in order, after worker_kill",
    """\
    if not hold_iter_reference:
        # Tries to trigger the __del__ clean-up rather than the automatic
""",
    """\
    if exit_method == "worker_kill":
        whole = list(range(len(ds)))
        if seen != whole:
            raise RuntimeError(f"after worker_kill the epoch was {seen}")

    if not hold_iter_reference:
        # Tries to trigger the __del__ clean-up rather than the automatic
""",
)

_FROZEN = Patch(
    "test_dataloader.py",
    "accept the error of torch's WorkerInfo, since torch 2.14 a frozen dataclass",
    """\
        worker_info.id = 3999
    except RuntimeError as e:
        assert str(e) == "Cannot assign attributes to WorkerInfo objects"
    try:
        worker_info.a = 3
    except RuntimeError as e:
        assert str(e) == "Cannot assign attributes to WorkerInfo objects"
""",
    """\
        worker_info.id = 3999
    except (RuntimeError, AttributeError, TypeError):
        pass
    try:
        worker_info.a = 3
    except (RuntimeError, AttributeError, TypeError):
        pass
""",
)


def patches(heals: bool) -> list[Patch]:
    """All patches, in order.

    Args:
        heals: expect a killed worker to be replaced; otherwise expect the loader to raise.
    """
    always = [_LOADER_KILL, _WORKER_KILL, _MARK, _NONE_LEFT, _FROZEN]
    return [*always, _HEALS, _KEEP, _WHOLE] if heals else always


def apply_patch(text: str, patch: Patch) -> str:
    """Apply a patch to a text.

    Raises:
        SuiteChanged: the text does not occur exactly once.
    """
    count = text.count(patch.old)
    if count != 1:
        raise SuiteChanged(
            f"the suite changed: to {patch.why}, {patch.file} was expected to hold this text "
            f"once, and holds it {count} times:\n{patch.old}"
        )
    return text.replace(patch.old, patch.new)
