"""Experiments on data: they import the library, never the reverse."""
