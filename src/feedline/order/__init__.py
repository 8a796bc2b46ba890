"""Planned order of a training run: schedule, sample order, seeds, batches and position.

Pure: the same arguments give the same order. Nothing here reads a file, a clock or a global random
state.
"""
