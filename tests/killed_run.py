"""Runs `prep` again and again in forked children, each killed just before its Nth change of the disk.

Not a test: a process that test_crash.py starts. It reads one JSON line a run from stdin,
`{"at": N, "arguments": [...]}` (N = 0: never; `"signal"` for another than KILL), and answers with one:
the child's exit status (-9 where it was killed), how many changes it had made by its end, and what it
said on stderr.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import tempfile
import traceback

# Whatever a run imports, so that the children need not.
import httpx  # noqa: F401
import huggingface_hub.hf_api  # noqa: F401
import pyarrow.parquet  # noqa: F401

import prep.preparation  # noqa: F401
from prep import cli

CHANGES = {"os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.symlink", "os.truncate"}
LINKS = ("os.link", "os.symlink")
BROKEN = 70
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def main() -> None:
    """Serve until stdin ends."""
    for line in sys.stdin:
        order = json.loads(line)
        ours, theirs = os.pipe()
        with tempfile.TemporaryFile("w+") as log:
            child = os.fork()
            if child == 0:
                number = order.get("signal", signal.SIGKILL)
                run(order["at"], order["arguments"], theirs, log.fileno(), number)
            os.close(theirs)
            _, status = os.waitpid(child, 0)
            with os.fdopen(ours) as pipe:
                counted = pipe.read()
            log.seek(0)
            status = os.waitstatus_to_exitcode(status)
            answer = {"status": status, "changes": int(counted or 0), "said": log.read()}
        print(json.dumps(answer), flush=True)


def run(at: int, arguments: list[str], pipe: int, log: int, number: int) -> None:
    """Be the command; never returns."""
    numbers = itertools.count(1)
    out = arguments[arguments.index("--out-root") + 1]
    made = 0

    def on_event(event: str, values: tuple[object, ...]) -> None:
        nonlocal made
        if event == "open":
            flags = values[2]
            if not isinstance(flags, int) or not flags & WRITING:
                return
        elif event not in CHANGES:
            return
        if str(values[0]).startswith(out) or (event in LINKS and str(values[1]).startswith(out)):
            made = next(numbers)
            if made == at:
                os.kill(os.getpid(), number)

    for stream in (1, 2):
        os.dup2(log, stream)
    sys.addaudithook(on_event)
    sys.argv = ["prep", *arguments]
    status = BROKEN
    try:
        cli.main()
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        if status == BROKEN:
            traceback.print_exc()
        sys.stderr.flush()
        os.write(pipe, str(made).encode())
        os._exit(status)


if __name__ == "__main__":
    main()
