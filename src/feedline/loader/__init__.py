"""The loader: DataLoader and everything between it and the engine.

In the order of an argument's way: `dataloader` is the class, `options` checks its arguments,
`engine_choice` chooses the engine, `position` names the next batch, `batch_stream` joins the two,
`start_engine` builds one of the `engines`, `epoch_iterator` returns the batches, `state`
defines what is saved and when it is refused, and `explain` describes it all as text.
"""

from feedline.loader.dataloader import DataLoader

__all__ = ["DataLoader"]
