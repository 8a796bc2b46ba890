"""From a slot to the training step: tensors, copy, normalisation, layout.

`carrier` is what the loader asks for, `host` and `accelerator_carrier` are the two ways,
`normalise` the arithmetic they share, `accelerator` the calls of a device, `pinning` makes the
slots' own memory a source for asynchronous copies.
"""
