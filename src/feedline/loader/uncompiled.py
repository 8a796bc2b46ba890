"""Functions that `torch.compile` calls instead of tracing them, as it does with torch's DataLoader.

Relies on: dynamo's mark of `torch.compiler.disable`, which breaks the graph at a call, and the
action it keeps with a function's code, which also applies to all functions called from there.
Setting them needs no import of dynamo, which takes seconds, and calls take no more time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from feedline.errors import UsageError
from feedline.private_names import find_private

_Function = TypeVar("_Function", bound=Callable[..., Any])


def uncompiled(function: _Function) -> _Function:
    """Decorator: exclude a function, and all it calls, from `torch.compile`."""
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = "feedline's workers make batches outside of the graph"
    with contextlib.suppress(UsageError):  # an older torch
        dynamo = find_private("torch._C._dynamo.eval_frame")
        skip = find_private("torch._C._dynamo.eval_frame._FrameAction").SKIP
        strategy = find_private("torch._C._dynamo.eval_frame._FrameExecStrategy")(skip, skip)
        dynamo.set_code_exec_strategy(function.__code__, strategy)
    return function
