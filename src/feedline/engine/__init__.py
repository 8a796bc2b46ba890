"""Worker pools, tasks and buffer slots: make rows of batches in other processes, in order.

In the order of a batch's way: `source` what a worker calls, `layout` the layout of rows in a slot,
`memory` the shared block, `board` the heartbeat table, `messages` tasks and reports, `fill` and
`make_batch` a worker's work, `worker` its main loop, `forkserver` the process it is forked from,
`crew` the worker pool, `slots` the memory of batches, `patience` deadlines, `feed` the whole:
planned batches in, filled batches out.

The engine knows no images and no models.
"""
