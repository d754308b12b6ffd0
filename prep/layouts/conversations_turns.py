"""The rules on one conversation: roles, media blocks, placeholders, answers.

A conversation is read once into `Turns`; each rule gets that and says what is wrong, or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prep.findings import Finding, found
from prep.layouts.conversations import Answer

__all__ = ["CONVERSATION", "IMAGES", "RULES", "VIDEOS", "Turns", "Wanted", "plain_question", "read_turns"]

CONVERSATION: Final = "conversations-conversation"
VIDEOS: Final = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".gif", ".ts")
IMAGES: Final = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")

_PLACEHOLDER: Final = re.compile(
    r"<(?:image|video)>|<\|(?:image_pad|video_pad|vision_start|vision_end|vision_pad)\|>"
)
_MISSING: Final = frozenset(("nan", "NaN", "None", "null", "<NA>", "NaT"))
_LABEL: Final = "Caption:"
_TURN_KEYS: Final = frozenset(("role", "content", "reasoning_content"))
_SHOWN = 60
_PLAIN_LENGTH = 16  # no missing value is spelt as long
_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the recipe lets a conversation say; nothing is known of a tree without a manifest."""

    answer: Answer | None = None
    caption: str = _LABEL
    plain: set[str] = field(default_factory=set, compare=False)
    """Answers that were found to be right before; at most `_REMEMBERED`."""

    def is_plain(self, answer: str) -> bool:
        """Whether no rule on answers can find anything in this text (which has no placeholder)."""
        if answer in self.plain:
            return True
        text = answer.strip()
        right = bool(text) and text not in _MISSING and (self.answer is None or self.answer.allows(answer))
        if right and len(self.plain) < _REMEMBERED:
            self.plain.add(answer)
        return right

    @classmethod
    def of(cls, recipe: Mapping[str, Any], request: Mapping[str, Any]) -> Wanted:
        """What a manifest's recipe and request say of answers and captions."""
        rule = recipe.get("answers", {}).get(request.get("score_field"))
        template = str(recipe.get("caption", {}).get("template", _LABEL))
        label = template.partition("{caption}")[0].strip() or _LABEL
        return cls(Answer.of(rule) if rule else None, label)


@dataclass(slots=True)
class Turns:
    """What one conversation holds. Turns and blocks count from 0, as in its JSON pointers.

    `blocks` are (turn, kind, key) of media; `questions` and `answers` are (turn, text) of system
    and user turns, and of assistant turns; `extra` tells that some key is not of the layout.
    """

    path: str
    media: str
    roles: list[str]
    blocks: list[tuple[int, str, str]]
    questions: list[tuple[int, str]]
    answers: list[tuple[int, str]]
    extra: bool
    turns: list[dict[str, Any]]
    wanted: Wanted


def read_turns(turns: list[dict[str, Any]], path: str, media: str, wanted: Wanted) -> Turns:
    """The facts of a conversation that obeys its schema."""
    roles: list[str] = []
    blocks: list[tuple[int, str, str]] = []
    questions: list[tuple[int, str]] = []
    answers: list[tuple[int, str]] = []
    extra = False
    for number, turn in enumerate(turns):
        role = turn["role"]
        content = turn["content"]
        roles.append(role)
        extra = extra or len(turn) != 2
        if content.__class__ is str:
            text = content
        else:
            text = ""
            for block in content:
                kind = block["type"]
                extra = extra or len(block) != 2
                if kind == "text":
                    text = f"{text}{block['text']}" if text else block["text"]
                else:
                    blocks.append((number, kind, block[kind]))
        (answers if role == "assistant" else questions).append((number, text))
    return Turns(path, media, roles, blocks, questions, answers, extra, turns, wanted)


def plain_question(document: Any, media: str, wanted: Wanted) -> str | None:
    """The question of a conversation as `prep` writes it, in which no rule finds anything; else None.

    Most conversations are such, and a glance is several times cheaper than the schema and the
    rules. It may only say less than they do: what it lets pass, they let pass.
    """
    try:
        user, assistant = document["conversations"]
        block, asked = user["content"]
        (told,) = assistant["content"]
        question, answer = asked["text"], told["text"]
        shaped = (
            len(document) == 1
            and len(user) == len(assistant) == len(block) == len(asked) == len(told) == 2
            and user["role"] == "user"
            and assistant["role"] == "assistant"
            and block["type"] == "video"
            and asked["type"] == told["type"] == "text"
            and block["video"].__class__ is question.__class__ is answer.__class__ is str
        )
    except (KeyError, TypeError, ValueError):
        return None
    if not shaped or not block["video"] or media[-4:] != ".mp4":
        return None
    if "<" in question or "<" in answer or len(question) < _PLAIN_LENGTH or question.isspace():
        return None
    start = question.rfind(wanted.caption)
    if start >= 0 and question[start + len(wanted.caption) :][:32].strip() in _MISSING:
        return None
    return question if wanted.is_plain(answer) else None


Rule = Callable[[Turns], Iterable[Finding]]
_NOTHING: Final[tuple[Finding, ...]] = ()


def roles_alternate(turns: Turns) -> Iterable[Finding]:
    """REC006: after one system turn at most, user and assistant take turns, the user first."""
    if turns.roles == ["user", "assistant"]:
        return _NOTHING
    first = 1 if turns.roles[0] == "system" else 0
    for number, role in enumerate(turns.roles[first:], first):
        due = "user" if (number - first) % 2 == 0 else "assistant"
        if role != due:
            return [_at("REC006", turns, number, f"the role is {role}; expected {due}")]
    return _NOTHING


def has_answer(turns: Turns) -> Iterable[Finding]:
    """REC007: some turn is the assistant's."""
    if turns.answers:
        return _NOTHING
    count = len(turns.roles)
    return [found("REC007", turns.path, f"{count} turn(s), none of the assistant's; expected 1 or more")]


def turns_are_filled(turns: Turns) -> Iterable[Finding]:
    """REC005: each turn has a text that is not blank, or media."""
    texts = (*turns.questions, *turns.answers)
    blank = [number for number, text in texts if not text or text.isspace()]
    if not blank:
        return _NOTHING
    filled = {number for number, _, _ in turns.blocks}
    return [
        _at("REC005", turns, number, f"the {turns.roles[number]} turn has neither text nor media")
        for number in blank
        if number not in filled
    ]


def media_is_named_once(turns: Turns) -> Iterable[Finding]:
    """REC002: one media block, in a user turn, of the kind that the media's ending says.

    Upstream's loader puts the record's one media file under the key of the first media block, so
    a second block finds nothing, and without a block the media is never seen.
    """
    if len(turns.blocks) != 1:
        return [found("REC002", turns.path, _how_many(turns))]
    number, kind, key = turns.blocks[0]
    if turns.roles[number] != "user":
        message = f"the media block {key!r} is in a turn of the {turns.roles[number]}; expected the user's"
        return [_at("REC002", turns, number, message)]
    ending = turns.media.lower()
    other = IMAGES if kind == "video" else VIDEOS
    if ending.endswith(other):
        return [_at("REC002", turns, number, f"the block is of type {kind}; the media is {turns.media}")]
    return _NOTHING


def _how_many(turns: Turns) -> str:
    if not turns.blocks:
        return f"no media block; expected 1 for the record's media {turns.media or 'file'}"
    keys = ", ".join(dict.fromkeys(key for _, _, key in turns.blocks))
    return f"{len(turns.blocks)} media blocks ({keys[:_SHOWN]}); expected 1: a record has one media file"


def no_placeholders(turns: Turns) -> Iterable[Finding]:
    """REC003 and REC004: no literal placeholder in a question or an answer."""
    findings = []
    for number, text in turns.questions:
        if "<" in text and (seen := _PLACEHOLDER.search(text)):
            count = len(_PLACEHOLDER.findall(text))
            message = (
                f"{count} literal {seen[0]} in the text; the record has {len(turns.blocks)} media block(s)"
            )
            findings.append(_at("REC003", turns, number, message))
    for number, text in turns.answers:
        if "<" in text and (seen := _PLACEHOLDER.search(text)):
            findings.append(_at("REC004", turns, number, f"the answer holds {seen[0]}"))
    return findings


def answers_fit(turns: Turns) -> Iterable[Finding]:
    """REC008: each answer is one that the recipe's rule writes."""
    rule = turns.wanted.answer
    if rule is None:
        return _NOTHING
    return [
        _at("REC008", turns, number, f"the answer is {text[:_SHOWN]!r}; expected {_scale(rule)}")
        for number, text in turns.answers
        # A blank answer is REC005's, a missing value REC009's: one fault, one finding.
        if not rule.allows(text) and text.strip() and text.strip() not in _MISSING
    ]


def _scale(rule: Answer) -> str:
    if rule.kind == "integer":
        return f"a whole number from {rule.minimum} to {rule.maximum}"
    return f"one of {', '.join((rule.words or {}).values())}" if rule.words else "a text"


def no_missing_values(turns: Turns) -> Iterable[Finding]:
    """REC009: no text, and no caption in a question, is a missing value spelt out."""
    findings = []
    for number, text in (*turns.questions, *turns.answers):
        if len(text) < _PLAIN_LENGTH and text.strip() in _MISSING:
            findings.append(_at("REC009", turns, number, f"the whole text is {text.strip()!r}"))
    label = turns.wanted.caption
    for number, text in turns.questions:
        start = text.rfind(label)
        if start >= 0 and (value := text[start + len(label) :][:32].strip()) in _MISSING:
            findings.append(_at("REC009", turns, number, f"the caption is {value!r}"))
    return findings


def keys_are_known(turns: Turns) -> Iterable[Finding]:
    """TXT007: no key that the loader does not read."""
    if not turns.extra:
        return _NOTHING
    findings = []
    for number, turn in enumerate(turns.turns):
        unknown = [f"/{key}" for key in sorted(turn.keys() - _TURN_KEYS)]
        content = turn["content"] if isinstance(turn["content"], list) else ()
        for place, block in enumerate(content):
            unknown += [f"/content/{place}/{key}" for key in sorted(block.keys() - {"type", block["type"]})]
        findings += [
            found(
                "TXT007",
                turns.path,
                "a key that the layout does not have",
                place=f"/conversations/{number}{key}",
            )
            for key in unknown
        ]
    return findings


def _at(code: str, turns: Turns, number: int, message: str) -> Finding:
    return found(code, turns.path, message, place=f"/conversations/{number}")


RULES: Final[tuple[Rule, ...]] = (
    roles_alternate,
    has_answer,
    turns_are_filled,
    media_is_named_once,
    no_placeholders,
    answers_fit,
    no_missing_values,
    keys_are_known,
)
"""Every rule on one conversation; a rule that finds nothing costs a fraction of a microsecond."""
