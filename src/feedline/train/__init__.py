"""The recipe: model, optimizer, rate, step, loop, validation and checkpoints of a run."""
