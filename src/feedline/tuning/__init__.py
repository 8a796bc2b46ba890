"""Loader settings found by measurement, and the largest batch that fits.

tune.py            `feedline.tune`: a search for each image size, progress, time limit
search.py          settings and trials; which setting to try next
loaders.py         feedline's and torch's loaders, whose settings are tried
result.py          the result: table, snippet, predictions, SVG image

batch_size.py      `feedline.find_batch_size`: which batch size to try next, the result
training_step.py   a plain training step, undoing of its changes, trials of batch sizes on a GPU
"""
