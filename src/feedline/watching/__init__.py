"""Around any iterable of batches: where the time of a training loop goes, and why."""
