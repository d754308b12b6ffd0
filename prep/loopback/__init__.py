"""A Hugging Face Hub and a plain file host on 127.0.0.1, for the demo, the tests and the benchmarks.

    with LoopbackHub() as hub:
        commit = hub.add_repo("owner/name", {"a.csv": b"..."})
        url = hub.add_file("clips/a b.mp4", path)
        hub.faults.set("a b.mp4", Fault(FaultKind.CUT, after_bytes=1000), times=1)

`hub.endpoint` goes into HF_ENDPOINT or the client's `endpoint=`. The answers follow what
`huggingface_hub` 1.33 reads (hf_api.py, file_download.py). `loopback_process` runs the same
server in a process of its own.
"""

from __future__ import annotations

from prep.loopback.faults import Fault, FaultKind, Faults
from prep.loopback.process import RepositorySpec, loopback_process
from prep.loopback.server import LoopbackHub, RequestRecord, file_url

__all__ = [
    "Fault",
    "FaultKind",
    "Faults",
    "LoopbackHub",
    "RepositorySpec",
    "RequestRecord",
    "file_url",
    "loopback_process",
]
