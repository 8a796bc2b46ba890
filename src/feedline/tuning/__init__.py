"""Settings found by measurement, against a training step; and the largest batch that fits.

tune.py           `feedline.tune`: all of it
  tunable.py        what is needed of a loader:
  own_loader.py     feedline's, whose workers live on,
  torch_loader.py   or torch's, which is built anew
  setting.py        what is tried
  arguments.py      what is checked before anything is imported
  rehearsal.py      a training rehearsed: steps over a loader, timed
  trial.py          what one setting gave
  search.py         which setting is tried next, and when that is enough
  finalists.py      what might be the answer, in turns
  tuned.py          what was found, and why the search ended
  table.py          the same as text,
  curve.py          and as a picture
  failure.py        what the step or the loader has raised meanwhile
  metered.py        a step that notes what it takes of the cores,
  rates_of.py       and what was measured, for `forecast` to predict from
folder.py         a folder of images,
  other_way.py      made in other ways
user_code.py      a function of the user's, and the loader that it gives

find_batch_size.py   `feedline.find_batch_size`: all of it
  batch_search.py      which batch is tried next
  batches_tried.py     on this machine's GPU: batch_trials.py, training_step.py, kept.py
  batches_estimated.py for another one: step_bytes.py, live_bytes.py, cuda_autocast.py
  device_memory.py     how much there is
  batch_sizes.py       what was found
"""
