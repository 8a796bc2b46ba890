"""Hooks of `feedline run` in a process of the program: at its start, after the import of torch, at
its end.

Guarantees: torch is not imported before the program imports it; feedline's loader is imported when
that import ends. An error is printed and leaves torch's loaders.
Relies on: imports that take no time; this module is imported before the program.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

import feedline  # noqa: F401  # notes Python's random state before the program seeds it
from feedline.running.launch import PatchSettings, read_settings


def start_in_process() -> None:
    """Prepare this process, in which a program under `feedline run` starts."""
    settings = read_settings()
    if settings.root == os.getpid():
        atexit.register(_print_summary, settings)  # registered first, so called last

    def patch() -> None:
        from feedline.running.patch import Patch

        Patch(settings).start()

    call_after_import("torch", patch)


def _print_summary(settings: PatchSettings) -> None:
    if os.getpid() != settings.root:  # a fork
        return
    try:
        from feedline.system import launched_rank

        if not launched_rank():
            from feedline.running.summary import print_summary

            print_summary(settings)
    except Exception as error:
        print(f"feedline run: no summary: {type(error).__name__}: {error}", file=sys.stderr)
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        # Python ends by SIGINT after this exception, unless code in a string ran after it, as in
        # the definition of a dataclass. So such code repeats it.
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def call_after_import(name: str, function: Callable[[], None]) -> None:
    """Call a function once a module is imported; now, if it is. Its errors are printed."""

    def call() -> None:
        try:
            function()
        except Exception as error:
            print(
                f"feedline run: torch's DataLoader is not replaced: "
                f"{type(error).__name__}: {error}",
                file=sys.stderr,
            )

    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _ImportHook(name, call))


class _ImportHook:
    """Finder that lets the other finders find a module and calls a function after its import."""

    def __init__(self, name: str, function: Callable[[], None]) -> None:
        self._name = name
        self._function = function
        self._is_searching = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of the module, found by the other finders."""
        if name != self._name or self._is_searching:
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_searching = False
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            vars(loader).pop("exec_module", None)  # another hook may have removed it
            with contextlib.suppress(ValueError):  # the program has removed it
                sys.meta_path.remove(self)
            self._function()

        loader.exec_module = exec_module
        return spec
