"""The loader: DataLoader and everything between it and the engine.

In the order in which a call passes through them:
    dataloader        class DataLoader
    options           checks of the arguments, and their defaults
    saved_settings    arguments from a file written by `feedline tune`
    epoch_iterator    iterators, the runtime that begins them, and settings changed while it runs
    batch_stream      position and engine of an iteration, and the loader's state
    engine_choice     choice of the engine for a dataset
    start_engine      start of one of the `engines`, or of the `iterable_engine`
    position          next batches: of a planned order, or of one `sampled_epoch` at a time
    torch_samplers    properties and random states of torch samplers, and a loader's public samplers
    state             entries of a state, and the checks when it is loaded
    ranks             comparison of the ranks that share the samples
    adaptation        changes of settings from the measured steps
    cache_filling     cache that is filled while training
    recording         record of the steps
    explain           description of a loader as text
    dataset_kind      kinds of datasets
    access            functions for packages above that need more than the public attributes
"""

from feedline.loader.dataloader import DataLoader

__all__ = ["DataLoader"]
