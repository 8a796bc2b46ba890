"""Worker pools, tasks and batch buffers: make rows of batches in other processes, in order.

In the order of a batch's way: `feed` planned batches in, made batches out; `tasks` what is in
flight; `buffers` the memory of batches; `messages` tasks, reports and the heartbeat table; `pool`
the worker pools and `pool_linux`, `pool_portable` those of processes; `fork_server` the processes
of the first; `worker` a worker's work on a source; `payload` the way of a source to the workers;
`hang_detection` liveness; `start_pool` the choice of a pool; `settings` the default settings, and
those that can change while workers run.

Any torch Dataset as a source of whole batches: `dataset_fetch` samples fetched and collated,
`batch_layout` batches written to memory and read back, `generators` a dataset's own generators,
`worker_errors` exceptions sent to the trainer, `attribute_snapshot` changes of a dataset.

From a slot to the training step: `device_transfer` CPU tensors and copies on a side stream,
`normalise` transforms on the device, `devices` the calls of a device.

The worker pools know no images, no models and no torch.
"""
