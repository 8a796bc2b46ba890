"""What this machine gives a training, and what is in the way: one file for each thing looked at.

`examine` runs all checks, `check` says what one is. Facts come from files of the kernel and of
installed packages; torch is imported only where something is measured on a GPU.
"""
