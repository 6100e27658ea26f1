"""Raises what is no Exception, as a panic of an extension module does."""

from __future__ import annotations


class PanicException(BaseException):
    pass


raise PanicException("a thread panicked")
