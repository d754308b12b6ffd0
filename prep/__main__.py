"""`python -m prep` is the `prep` command."""

from __future__ import annotations

from prep.cli import main

main()
