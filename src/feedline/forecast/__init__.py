"""Estimates of a training after a change, or over a schedule, from measured rates; pure.

changes.py   a change, and its text form
rates.py     measured rates of a phase, and rates of sizes that were not measured
what_if.py   each phase after a change
schedule.py  each phase of a schedule, and the total against a single size
text.py      tables
"""
