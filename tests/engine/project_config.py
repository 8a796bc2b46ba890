"""A user's module of settings."""

SIZE = 1
EVEN = True


class Limits:
    most = 100
