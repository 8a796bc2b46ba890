"""Dropout and stochastic depth of a model, set anew for each phase.

Guarantees: a model that was built with the largest values of a schedule has those of a phase; one
of which nothing was asked keeps what it has of its own. What is set does not touch weights or
random states.
Relies on: probabilities being attributes of modules, as torch's and timm's are: `p` of a Dropout,
`drop_prob` of a DropPath, `drop_rate` of a model that calls dropout itself.
"""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["Regularisation"]


class Regularisation:
    """The dropout and stochastic depth of a model.

    Args:
        model: as it was built.
        dropout, drop_path: with which it was built: the largest of all phases; 0 for its own.
    """

    def __init__(self, model: nn.Module, dropout: float, drop_path: float) -> None:
        self._dropout, self._drop_path = dropout, drop_path
        # Attributes of a Module are typed as Tensors or Modules; these are numbers.
        modules: list[Any] = list(model.modules())
        self._drops = [(module, module.p) for module in modules if isinstance(module, nn.Dropout)]
        self._paths = [
            (module, float(module.drop_prob or 0.0))
            for module in modules
            if hasattr(module, "drop_prob")
        ]
        self._owns = [
            (module, float(module.drop_rate or 0.0))
            for module in modules
            if hasattr(module, "drop_rate")
        ]

    def set(self, dropout: float, drop_path: float) -> None:
        """Have a phase's values, which are at most the largest."""
        share = dropout / self._dropout if self._dropout else 1.0
        for module, most in self._drops:
            module.p = most * share
        for own, most in self._owns:
            own.drop_rate = most * share
        share = drop_path / self._drop_path if self._drop_path else 1.0
        for path, most in self._paths:
            path.drop_prob = most * share
