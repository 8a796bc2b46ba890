"""Settings found by measurement, against a training step.

rehearsal.py    a training rehearsed: steps over a loader with some crew, timed
trial.py        what one crew gave
search.py       which crew is tried next, and when that is enough
metered.py      a step that notes what it takes of the cores
rates_of.py     what was measured, for `forecast` to predict from
tuned.py        what was found, and why the search ended
tune.py         all of it
"""
