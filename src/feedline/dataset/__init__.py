"""Any torch Dataset, unchanged, as a source of whole batches.

A worker's side: `fetcher` fetches samples, collates them and packs the batch; `collate` stacks into
the batch's memory at once, `pack` lays a batch of any structure into memory and reads it back,
`worker_init` begins a worker as torch's begin, `samples` holds a batch to the requested size,
`generators` seeds the generators that a dataset keeps for itself, `notes` says which sample an
exception is about, `worker_exception` brings it home. The trainer's side: `outline` tells what was
set on a dataset, `whole_batch_carrier` hands batches out.
"""
