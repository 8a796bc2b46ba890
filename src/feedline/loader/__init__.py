"""The loader: what a user holds, and all that stands between it and the engine.

In the order in which an argument travels: `dataloader` is the class, `checks` and `settings`
resolve its arguments, `planning` the order, `decide` says whose code makes the batches, `cursor`
where the loader stands, `session` joins the two, `backends` do the work, `iteration` hands the
batches out, `identity` is what a state says of them, `explain` says it all in words.
"""

from feedline.loader.dataloader import DataLoader

__all__ = ["DataLoader"]
