"""Arithmetic of throughput: rates and their errors. Imports nothing of feedline."""
