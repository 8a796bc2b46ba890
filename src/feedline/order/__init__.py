"""Planned order of a training run: pure functions of its arguments.

`sample_order` defines the order of samples and the weights, `schedule` the phases with their image
and batch sizes, `requested_size` the image size of the current sample for any dataset, `seeds` the
seeds that follow from a position, `batch_spec` one batch and its tasks, and `pixel_layout` the
channels and dtype of images. Nothing here reads a
file, a clock or a global random state.
"""
