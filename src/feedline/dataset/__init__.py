"""Any torch Dataset, unchanged, as a source of whole batches.

`source` is a worker's side: it fetches samples, collates them and packs the batch. `collate` stacks
into the batch's memory at once, `codec` lays a batch of any structure into memory and reads it
back, `beginning` begins a worker as torch's begin, `size` tells transforms the image size, `raised`
brings an exception home. The trainer's side: `epochs` draws batches from torch's samplers, one
`epoch` after another, and resumes them, `renewal` notices that a dataset has changed, `code` what
its code runs with, `carrier` hands batches out, `gather` serves rows in memory without workers,
where `lookup` finds that a dataset does nothing but to look them up.
"""
