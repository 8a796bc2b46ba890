"""What will be made, decided ahead and purely: schedule, order, batches, pieces, state.

Nothing here reads a file, a clock or a random state; the same arguments give the same plan.
"""
