"""How many workers, found while a training runs. Pure: figures in, decisions out.

window.py       what was seen of a loader for a while
limits.py       how far the crew may grow
decision.py     what is changed, and why
controller.py   windows in, decisions out
"""
