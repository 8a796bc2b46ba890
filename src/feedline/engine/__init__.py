"""Workers, pieces and slots: how rows get made in other processes, in order, once.

Reads in the order of a batch's way:
`source` what a worker calls, `layout` how rows lie in a slot, `memory` the block that all processes
share, `board` what each worker is doing, `messages` tasks and reports, `fill` and `make_batch` a
worker's work, `worker` its life, `forkserver` where it comes from, `crew` the workers as a set,
`slots` the memory of batches, `patience` the limits of waiting, `feed` the whole: planned batches
in, filled batches out.

The engine knows no images and no models.
"""
