"""Any torch Dataset, unchanged, as a source of whole batches.

In workers: `fetcher` fetches samples, collates them and packs the batch; `collate` stacks directly
into the batch's memory, `pack` writes a batch of any structure to memory and reads it back,
`worker_init` initialises a worker like torch's, `samples` checks a batch against the requested
size, `generators` seeds the dataset's own generators, `notes` adds the failing sample to an
exception, `worker_exception` sends it to the trainer. In the trainer: `outline` takes attribute
snapshots of a dataset, `whole_batch_carrier` returns batches.
"""
