"""Worker pools, tasks and buffer slots: make rows of batches in other processes, in order.

In the order of a batch's way: `source` what a worker calls, `layout` the layout of rows in a slot,
`memory` the shared block, `board` the heartbeat table, `messages` tasks and reports, `fill` and
`make_batch` a worker's work, `worker` its main loop, `forkserver` the process it is forked from,
`crew` the worker pool, `slots` the memory of batches, `patience` deadlines, `feed` the whole:
planned batches in, filled batches out.

Any torch Dataset as a source of whole batches: `dataset_fetch` samples fetched and collated,
`batch_layout` batches written to memory and read back, `worker_setup` the start of a worker and
generators, `worker_errors` exceptions sent to the trainer, `attribute_snapshot` changes of a
dataset.

From a slot to the training step: `device_transfer` the protocol and CPU tensors,
`accelerator_transfer` copies on a side stream, `normalise` transforms on the device, `devices` the
calls of a device.

The worker pools know no images, no models and no torch.
"""
