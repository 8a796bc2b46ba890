"""How many workers, batches ahead and pieces, found while a training runs. Pure.

window.py       what was seen of a loader for a while
limits.py       how far it may go
room.py         memory for workers and for what they make ahead
decision.py     what is changed, and why
trial.py        a change that is to be judged
controller.py   windows in, decisions out
"""
