"""Texts of upstream read from its source as literals; nothing of it is imported or run."""

from __future__ import annotations

import ast

from prep.errors import PrepError

__all__ = ["string_constant"]


def string_constant(source: bytes, name: str, origin: str) -> str:
    """The string that a module assigns to `name` at its top level; raises PrepError if there is none."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise PrepError(
            f"{origin}: not a Python file: {error}.", remedy="Give a checkout of upstream."
        ) from error
    for statement in module.body:
        value = _assigned(statement, name)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    raise PrepError(f"{origin}: has no string constant {name}.", remedy="Give a checkout of upstream.")


def _assigned(statement: ast.stmt, name: str) -> ast.expr | None:
    if isinstance(statement, ast.AnnAssign):
        targets: list[ast.expr] = [statement.target]
    elif isinstance(statement, ast.Assign):
        targets = statement.targets
    else:
        return None
    named = any(isinstance(target, ast.Name) and target.id == name for target in targets)
    return statement.value if named else None
