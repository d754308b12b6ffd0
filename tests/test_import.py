"""`import prep` and `prep --help` stay light, and the public names are what they say."""

from __future__ import annotations

import subprocess
import sys

import pytest

import prep
from tests.commands import PROJECT

HEAVY = ("torch", "pyarrow", "datasets", "av", "httpx", "rich", "pandas", "numpy", "huggingface_hub", "PIL")


def modules_after(program: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after the program."""
    ending = "\nimport sys\nsys.stderr.write(' '.join(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", program + ending], capture_output=True, text=True, check=True, cwd=PROJECT
    )
    return set(done.stderr.split())


HELP = """
import sys
from prep.cli import main
sys.argv = ["prep", {arguments}]
try:
    main()
except SystemExit:
    pass
"""


@pytest.mark.parametrize(
    "program",
    [
        "import prep",
        "import prep.cli",
        HELP.format(arguments='"--help"'),
        HELP.format(arguments='"videophy2", "--help"'),
        HELP.format(arguments='"explain", "VID003"'),
        "import prep; prep.PrepError, prep.Report, prep.Finding",
    ],
    ids=["import", "cli", "help", "videophy2 help", "explain", "names"],
)
def test_nothing_heavy_is_imported(program: str) -> None:
    assert modules_after(program).isdisjoint(HEAVY)


# A DataLoader of torch's own cannot be made a base class without torch.
TORCHS_OWN = (
    "prep.__main__",
    "prep.dataflow.agreement",
    "prep.dataflow.joint",
    "prep.dataflow.loader",
    "prep.dataflow.wiring",
)


def test_importing_every_other_module_needs_no_torch() -> None:
    program = (
        "import pkgutil, importlib, sys, prep\n"
        "sys.modules['torch'] = None\n"
        "for module in pkgutil.walk_packages(prep.__path__, 'prep.'):\n"
        f"    if module.name not in {TORCHS_OWN}: importlib.import_module(module.name)"
    )
    assert "prep" in modules_after(program)


def test_importing_says_nothing_and_starts_nothing() -> None:
    program = "import prep, threading; assert threading.active_count() == 1"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, cwd=PROJECT)
    assert done.stdout + done.stderr == b""


@pytest.mark.parametrize("name", prep.__all__)
def test_each_public_name_is_there(name: str) -> None:
    value = getattr(prep, name)
    assert isinstance(value, str) if name == "__version__" else callable(value)


def test_another_name_is_not() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = prep.nonsense  # type: ignore[attr-defined]
