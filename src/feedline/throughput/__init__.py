"""Model of throughput, pure: imports nothing of feedline above `order`.

thresholds.py   all thresholds, with their reasons
step_model.py   time of a step from its load
bottleneck.py   part that bounds a step, and the workers that it needs
windows.py      windows of steps, the error of a mean, `RateMeter`
limits.py       limits on workers and batches ahead
controller.py   changes of a running loader's settings
rates.py        measured rates of a phase, and of sizes between
what_if.py      estimates with other workers, cores, devices, and along a schedule
"""
