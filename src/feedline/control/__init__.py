"""How many workers, batches ahead and pieces, found while a training runs. Pure.

window.py       what was seen of a loader for a while
limits.py       how far it may go
decision.py     what is changed, and why
trial.py        a change that is to be judged
controller.py   windows in, decisions out
"""
