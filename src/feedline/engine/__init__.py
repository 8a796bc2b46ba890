"""Workers, tasks and batch buffers: load batches in other processes, in order.

feed.py                assign tasks to workers, return finished batches in order
tasks.py               batches in flight and their tasks
defaults.py            default settings, and settings that can change while workers run
buffers.py             memory of batches, in slots
messages.py            tasks, reports and the heartbeat table
start_pool.py          start of a worker pool
pool.py                base class of worker pools, and the pool without workers
pool_linux.py          worker pool forked by a fork server
pool_portable.py       worker pool of spawned processes, for every platform
fork_server.py         code of the fork server and its workers
process.py             set up a worker process
load_samples.py        load the rows or the batch of a task, in a worker
payload.py             pickle a dataset for the workers
shared_memory.py       memory that processes share
hang_detection.py      replace hung workers, warn if storage stalls

dataset_fetch.py       fetch and collate batches of any torch Dataset
tensor_dataset.py      batches of a TensorDataset by indexing, without workers
batch_layout.py        write a batch of any structure to a slot, read it back
worker_errors.py       exceptions of user code, sent to the training process
generators.py          find and seed the generators of a dataset
attribute_snapshot.py  detect changes of a dataset
attribute_changes.py   send changed attributes to running workers
attribute_walk.py      find the parts of a dataset, and memory shared with workers

device_transfer.py     transfer a batch from its slot to the training step
normalise.py           transforms of a batch on the device
devices.py             names and calls of devices, pinned (page-locked) memory

Worker pools do not depend on images, models or torch.
"""
