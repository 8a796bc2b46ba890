"""The recipe: model, optimizer, rate, step, epochs, validation and checkpoints of a run."""
