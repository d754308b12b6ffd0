"""Upstream's own files: located, checked against the lock, and read as literals without running them."""
