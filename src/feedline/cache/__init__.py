"""Caches: resized copies of all images, built once.

build.py            `feedline.build_cache`
  open_source.py      opens a source, by kind: folder_source.py, remote_folder_source.py,
                      webdataset_source.py, parquet_source.py, dataset_source.py
  build_plan.py       resolutions, and samples of each shard
  build_shards.py     builds the missing shards
  build_workers.py    in worker processes, or on a Ray cluster (ray_workers.py, ray_task.py)
  shard.py            builds one shard of each resolution
  level_encoder.py    resizes and encodes an image
  writers.py          file formats
  destination.py      where the cache is stored: a folder or a URL (remote_destination.py)
  delivery.py         transfers the files of a shard there
  records.py          records of finished shards
  finish.py           index and manifest
add_size.py         adds a resolution
repair.py           `feedline.repair_cache`: rebuilds damaged copies
verify.py           checks all copies
info.py             contents and reading rates
fill.py             the process that builds a cache during a training
choice.py           estimates of possible resolutions for a schedule
advice.py           recommendation of one of them
"""
