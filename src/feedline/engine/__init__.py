"""Worker pools, tasks and batch buffers: make rows of batches in other processes, in order.

In the order of a batch's way: `feed` planned batches in, made batches out; `tasks` what is in
flight; `buffers` the memory of batches; `messages` tasks and reports; `pool` the worker pools and
`pool_linux`, `pool_portable` those of processes; `fork_server` and `worker_linux` the processes of
the first; `worker` a worker's work on a `source`; `payload` and `pickling` the way of a source to
the workers; `heartbeat` and `hang_detection` liveness; `start_method` the choice of a pool.

Any torch Dataset as a source of whole batches: `dataset_fetch` samples fetched and collated,
`batch_layout` batches written to memory and read back, `worker_setup` the start of a worker and
generators, `worker_errors` exceptions sent to the trainer, `attribute_snapshot` changes of a
dataset.

From a slot to the training step: `device_transfer` the protocol and CPU tensors,
`accelerator_transfer` copies on a side stream, `normalise` transforms on the device, `devices` the
calls of a device.

The worker pools know no images, no models and no torch.
"""
