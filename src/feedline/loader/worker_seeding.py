"""Libraries' `worker_init_fn` that only seed random states.

feedline seeds these states again for each batch or row, so such a function cannot change a sample.

Guarantees: never raises and runs no user code. Functions are recognised by identity, so one that
was replaced in its library is not recognised.
"""

from __future__ import annotations

import sys
from functools import partial
from types import FunctionType

__all__ = ["only_seeds"]

_FUNCTIONS = {
    ("timm.data.loader", "_worker_init"),
    ("lightning.fabric.utilities.seed", "pl_worker_init_function"),
    ("lightning_fabric.utilities.seed", "pl_worker_init_function"),
    ("transformers.trainer_utils", "seed_worker"),
    ("mmengine.dataset.utils", "worker_init_fn"),
}


def only_seeds(function: object) -> bool:
    """Return True for a `worker_init_fn` of timm, Lightning, transformers or mmengine that only
    seeds random states, also in a `functools.partial` without functions of the user.
    """
    if type(function) is partial:
        if any(callable(each) for each in (*function.args, *function.keywords.values())):
            return False  # timm calls it
        function = function.func
    if type(function) is not FunctionType:
        return False
    module, name = function.__module__, function.__name__
    if (module, name) not in _FUNCTIONS:
        return False
    return vars(sys.modules.get(module, object)).get(name) is function
