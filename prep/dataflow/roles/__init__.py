"""Processors for the datasets that this project prepares; the user gives the tokenizer or processor.

None needs a model. `VideoPhy2Frames`, `ShareGPTToMessages` and `ReasoningMessages` make messages and hand
them to a chat processor; `SFTClip` and `RobotWindow` make the samples that sequential packing and the VFM
list collator take.
"""

from __future__ import annotations

from prep.dataflow.roles.clips import SFTClip
from prep.dataflow.roles.messages import ReasoningMessages, ShareGPTToMessages, VideoPhy2Frames
from prep.dataflow.roles.windows import RobotWindow

__all__ = ["ReasoningMessages", "RobotWindow", "SFTClip", "ShareGPTToMessages", "VideoPhy2Frames"]
