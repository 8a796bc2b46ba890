"""The plan of a training: schedule, order, batches, tasks, state. Pure.

Nothing here reads a file, a clock or a random state; the same arguments give the same plan.
"""
