"""Caches: resized copies of all images, built once.

build.py            `feedline.build_cache`
  source.py           original images of a sample store or a Dataset
  spec.py             specification: resolutions and shards; estimate from a sample
  build_shards.py     builds the missing shards in worker processes, or on Ray (ray_workers.py)
  shard.py            one shard of each resolution, and its record
  level_encoder.py    resizes and encodes an image
  destination.py      where the cache is stored: a folder or a URL
  finish.py           index and manifest
add_size.py         adds a resolution
verify.py           checks all copies
repair.py           `feedline.repair_cache`: rebuilds damaged copies
fill.py             the process that builds a cache during a training
info.py             contents and reading rates
plan.py             `feedline.plan_cache`: recommends a cache for a schedule
rates.py            images/s from originals and copies
"""
