"""Online control of the number of workers, batches ahead and task size during a training. Pure.

window.py       measurements of a loader over some steps
limits.py       limits on workers and batches ahead
room.py         memory budget for workers and prefetched batches
decision.py     a change and its reason
trial.py        a change under evaluation
controller.py   windows in, decisions out
"""
