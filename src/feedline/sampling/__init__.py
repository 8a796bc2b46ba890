"""Epochs drawn from torch's samplers, in torch's order, and resumed exactly.

`draws` is one pass over a sampler, `epoch` opens a pass again as a state says, `sampled_cursor`
goes from epoch to epoch, `samplers` says what a sampler is, `random_states` notes what it draws
from.
"""
