"""Caches: resized copies of all images, built once.

build.py            `feedline.build_cache`; adds a resolution; `feedline.repair_cache`
  source.py           original images of a sample store or a Dataset
  spec.py             specification: resolutions and shards; estimate from a sample
  job.py              steps of all jobs: worker processes, missing shards, index and manifest
  ray_workers.py      tasks of a Ray cluster in place of worker processes
  shard.py            one shard of each resolution, and its record
  level_encoder.py    resizes and encodes an image
  destination.py      where the cache is stored: a folder or a URL
damage.py           checks all copies, and image files
fill.py             the process that builds a cache during a training
plan.py             `feedline.plan_cache`: recommends a cache for a schedule
rates.py            images/s from originals and copies; contents of a cache with its rates
"""
