"""Layouts: what each kind of data is on disk, its records, its checks, its consumption."""
