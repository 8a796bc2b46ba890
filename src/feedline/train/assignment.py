"""What is to be trained, from wherever it is said: arguments, a file, the run that goes on.

Guarantees: what is given stands before what a file says, that before what the run that goes on
says, and that before defaults; alike for the recipe and for where and how it is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.train.configuration import read_settings, recipe_of
from feedline.train.earlier_run import EarlierRun
from feedline.train.recipe import Recipe
from feedline.train.run_settings import RunSettings

__all__ = ["Assignment"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """A training that is asked for.

    Args:
        recipe: all that decides the weights.
        asked: where and how, as far as it is given.
        earlier: the run that is gone on from; None begins anew.
    """

    recipe: Recipe
    asked: RunSettings
    earlier: EarlierRun | None

    @classmethod
    def of(
        cls,
        given: Mapping[str, Any] | Recipe,
        asked: RunSettings,
        *,
        config: Path | None = None,
    ) -> Assignment:
        """What is asked for.

        Args:
            given: a recipe, or settings of one by name; None is one that is not given.
            asked: where and how.
            config: a TOML file of settings that count where those say nothing.

        Raises:
            UsageError: the file cannot be read, a setting is not known or out of range, or
                settings exclude one another.
            ScheduleError: the schedule does not parse.
            StateError: the run to go on from has no checkpoint that can be read.
        """
        under, said = ({}, RunSettings()) if config is None else read_settings(config)
        asked = asked.over(said)
        model = given.model if isinstance(given, Recipe) else given.get("model")
        earlier = EarlierRun.found(asked, model=model or under.get("model"))
        if isinstance(given, Recipe):
            recipe = given
        else:
            recipe = recipe_of(given, under, {} if earlier is None else earlier.recipe)
        return cls(recipe=recipe, asked=asked, earlier=earlier)
