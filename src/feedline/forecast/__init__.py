"""What a training would be with something changed, from what was measured of it; pure.

changes.py         what is changed, as a user writes it
rates.py           what was measured of a phase
rates_at.py        what is known of a size that was not measured
what_if.py         each phase with a change
loads_then.py      what its steps need then
schedule.py        each phase of a schedule, and the whole of it against a fixed size
phase_forecast.py  such a phase, and what it needs
break_even.py      which steps are kept up with, where nothing is known of them
text.py            tables
"""
