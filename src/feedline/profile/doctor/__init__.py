"""Checks of this machine for problems that slow training down.

`examine` runs all checks, `check` defines the result of one. Facts come from files of the kernel
and of installed packages; torch is imported only to measure a GPU.
"""
