"""Stages: from a raw source to a canonical layout, one a kind of data."""
