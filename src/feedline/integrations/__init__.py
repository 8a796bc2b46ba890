"""Adapters for training frameworks; none of them is imported before it is used."""
