"""The loader: DataLoader and everything between it and the engine.

In the order an argument travels: `dataloader` is the class, `checks` and `settings` resolve its
arguments, `planning` the order, `decide` chooses the engine, `position` the next batch, `session`
joins the two, `backends` do the work, `iteration` returns the batches, `identity` is the dataset's
entry in a state, `explain` describes it all as text.
"""

from feedline.loader.dataloader import DataLoader

__all__ = ["DataLoader"]
