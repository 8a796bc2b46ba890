"""Order of a training: schedule, samples of each batch, seeds, tasks, position. Pure.

Nothing here reads a file, a clock or a random state; the same arguments give the same order.
"""
