"""Epochs drawn from torch's samplers, in torch's order, with exact resume.

`draws` is one pass over a sampler, `epoch` reopens a pass from a state, `sampled_position` moves
from epoch to epoch, `samplers` inspects samplers, `random_states` records what they draw from.
"""
