"""Messages of Python functions in the words of the command that called them.

`batch_size=64` is `--batch-size 64` where the command has this option; an argument without an
option is marked as one of Python.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

__all__ = ["in_options", "options_of"]

_ALIASES = {"num_workers": "workers", "image_size": "size"}
_ARGUMENTS = (
    *("batch_size", "cache", "device", "enlarge", "exif", "extensions", "freeze", "gpu_memory"),
    *("image_size", "in_order", "max_image_size", "num_workers", "on_error", "persistent_workers"),
    *("prefetch", "prefetch_factor", "quality", "ray", "raw", "schedule", "seed", "settings"),
    *("source", "start_method", "storage_options", "workers"),
)
_VALUE = r"\"[^\"]*\"|'[^']*'|\([^()]*\)|\[[^\[\]]*\]|[\w-]+|\.\.\."
_NAMED = re.compile(rf"(?<![\w`./(\[-])({'|'.join(_ARGUMENTS)})=({_VALUE})?")


def options_of(command: Any, arguments: Sequence[str]) -> set[str]:
    """The long options of the command that some arguments name, in groups of commands.

    Args:
        command: of click; a group looks for the first argument that is one of its commands.
        arguments: those of the command line after the group's own options.
    """
    inner = getattr(command, "commands", None)
    if inner is not None:
        for place, argument in enumerate(arguments):
            if argument in inner:
                return options_of(inner[argument], arguments[place + 1 :])
        return set()
    return {option for each in command.params for option in each.opts if option.startswith("--")}


def in_options(message: str, options: Collection[str]) -> str:
    """Name arguments of Python functions in a message as the command's options.

    The keys of --what-if are written like arguments, and stay.
    """
    if "what-if" in message:
        return message

    def named(found: re.Match[str]) -> str:
        name, value = found[1], found[2] or ""
        candidates = (f"--{each.replace('_', '-')}" for each in (name, _ALIASES.get(name, name)))
        option = next((each for each in candidates if each in options), None)
        if option is None or value == "False":
            return f"{found[0]} (in Python)"
        text = "" if value == "True" else value.strip("\"'")
        return f"{option} {text}".rstrip()

    return _NAMED.sub(named, message)
