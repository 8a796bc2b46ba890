"""Recording of a loop over any iterable of batches: data wait, compute time and bottleneck."""
