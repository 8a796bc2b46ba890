"""Loader settings found by measurement, and the largest batch that fits.

tune.py              `feedline.tune`
  arguments.py         checks of its arguments before torch is imported
  search.py            which setting to try next, and repeated trials of the candidates
  trial.py             a setting, and the measurement of it
  step_benchmark.py    times a training step over a loader
  tunable.py           interface of a loader whose settings are tried:
  feedline_loader.py   feedline's, which keeps its workers,
  torch_loader.py      and torch's, which is copied for each setting
  rates.py             measured rates for `forecast`
  tuning_result.py     the result: table and snippet
  tuned_phase.py       the result for one image size
  curve.py             the result as an SVG image
folder.py            tunes for a folder of images
user_code.py         imports a function named "module:function"

find_batch_size.py   `feedline.find_batch_size`
  batch_search.py      which batch size to try next
  measured_batches.py  trials on a GPU of this machine: batch_trials.py, preserve_state.py
  training_step.py     a plain training step, and batches of noise
  device_memory.py     memory of a GPU
  batch_sizes.py       the result
"""
