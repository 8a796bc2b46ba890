"""Stands in for torchdata, so that its tests can be imported without it."""
