"""From a slot to the training step: tensors, copy, normalisation, layout.

`carrier` is what the loader asks for, `host` and `cuda` are the two ways, `normalise` the
arithmetic they share, `pinning` makes the ring's own memory a source for asynchronous copies.
"""
