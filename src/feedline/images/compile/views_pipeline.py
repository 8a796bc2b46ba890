"""A dataset whose transform returns several views of an image, as a source of samples.

Guarantees: those of `rows`; each view is the output of its pipeline for one of its random draws; an
image is read and decoded once for all of them.

Relies on: `view_crops` for the parts; `pipeline` for the files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

from feedline.images.compile.pipeline import STEPS, SamplePipeline
from feedline.images.compile.reading import Reading
from feedline.images.compile.recognised_transform import RecognisedTransform
from feedline.images.compile.view_crops import PlacedViews, crops_of
from feedline.images.crops import Transform
from feedline.order.batch_spec import Item
from feedline.order.requested_size import SampleRequest
from feedline.order.seeds import extend
from feedline.sources.store import SampleStore

__all__ = ["ViewsPipeline"]


class ViewsPipeline(SamplePipeline):
    """Several views of each image of a compiled dataset, created by `recognise`.

    Args:
        store: the samples' images and labels.
        recognised: compiled transform of each view.
        reading: how images are read.
        target_transform: as in `SamplePipeline`.
    """

    why_samples: ClassVar[str] = "A sample has several views, but a row has one image."

    def __init__(
        self,
        store: SampleStore,
        recognised: tuple[RecognisedTransform, ...],
        reading: Reading,
        target_transform: Callable[[int], Any] | None = None,
    ) -> None:
        self.recognised = recognised
        self._crops = crops_of(recognised)
        # What it places is read as one part, and never resized as one.
        super().__init__(store, cast(Transform, self._crops), reading, target_transform)

    @property
    def image_size(self) -> int:
        """Side of the largest view, in pixels, for an item without a size."""
        return self._crops.largest

    def sample(self, item: Item) -> tuple[Any, Any]:
        """As in `SamplePipeline`: a list of the output of each view's last step.

        The item's size is that of the largest view, the others keep their proportion to it.
        """
        asked, item = item.image_size, self._counted(item)
        image, placed = self._part(item)
        sides = self._crops.sides_at(item.required_image_size)
        # All of them before any step of a user's runs, which may have another image decoded.
        resized = [
            view.resized(part, placement, side)
            for view, side, (part, placement) in zip(
                self.recognised, sides, cast(PlacedViews, placed).cut(image), strict=True
            )
        ]
        made = []
        for number, view in enumerate(self.recognised):
            seed = extend(extend(item.seed, number), STEPS)
            with SampleRequest(None if asked is None else sides[number], item.strength):
                made.append(view.tail.run(resized[number], seed))
        label = self._target(self.store.label(item.sample), item._replace(image_size=asked))
        return made, label

    def transform_identity(self) -> str:
        """Description and digests of everything that determines the pixels: equal in every
        process.
        """
        views = "; ".join(view.identity() for view in self.recognised)
        return f"views: {views}{self._form()}"

    def __repr__(self) -> str:
        views = "; ".join(map(str, self.recognised))
        return f"ViewsPipeline({self._where()}, {views}): {len(self)} images"
