"""From a buffer slot to the training step: tensors, copies, normalisation, layout.

`carrier` is the protocol, implemented by `host` and `accelerator_carrier`; `normalise` is the
arithmetic they share, `accelerator` the calls of a device, and `pinning` registers the slots'
memory for asynchronous copies.
"""
