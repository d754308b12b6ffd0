"""What the Hub's client raises, in one sentence each with its remedy.

The client wraps the cause of a failed look-up several times (LocalEntryNotFoundError, ValueError);
the cause is what the user must hear. Read from huggingface_hub 0.34 to 2.4: `errors.py`,
`utils/_http.py`, `file_download.py`. Below 1.0 the client goes through requests, then through
httpx, and from 2.0 on through httpx2; none of them is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prep.errors import EnvironmentLacksError, FetchError, IncompleteError, PrepError, UsageError

__all__ = ["client_faults"]

_BROKEN_OFF = frozenset({"ChunkedEncodingError", "ReadError", "RemoteProtocolError"})
"""How requests, httpx and httpx2 call a connection that ended amid an answer."""
_LOGIN = "run `hf auth login` or set HF_TOKEN"


@dataclass(frozen=True, slots=True)
class _Asked:
    endpoint: str
    repo: str
    repo_type: str
    revision: str | None
    path: str | None

    @property
    def what(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.repo}{revision}" + (f": {self.path}" if self.path else "")

    @property
    def page(self) -> str:
        return f"{self.endpoint}/{'datasets/' if self.repo_type == 'dataset' else ''}{self.repo}"


@contextmanager
def client_faults(
    endpoint: str, repo: str, repo_type: str, revision: str | None, path: str | None = None
) -> Iterator[None]:
    """Turn what the client raises inside into errors of `prep.errors`."""
    asked = _Asked(endpoint, repo, repo_type, revision, path)
    try:
        yield
    except PrepError:
        raise
    except _client_errors() as error:
        raise _translated(asked, _cause(error)) from error


def _client_errors() -> tuple[type[Exception], ...]:
    """What the client lets through: plain errors, and the root of its HTTP library's."""
    from huggingface_hub.errors import HfHubHTTPError

    roots = [base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception)]
    return OSError, ValueError, KeyError, *roots


def _cause(error: BaseException) -> BaseException:
    """The innermost cause under the client's own wrappings."""
    from huggingface_hub.errors import FileMetadataError, LocalEntryNotFoundError

    wraps = isinstance(error, LocalEntryNotFoundError) or type(error) is ValueError
    if wraps and error.__cause__ is not None and not isinstance(error, FileMetadataError):
        return _cause(error.__cause__)
    return error


def _translated(asked: _Asked, error: BaseException) -> PrepError:
    from huggingface_hub import errors

    match error:
        case errors.GatedRepoError():
            return _gated(asked)
        case errors.RepositoryNotFoundError():
            return _no_repository(asked)
        case errors.RevisionNotFoundError():
            return _permanent(
                "missing_revision", f"{asked.repo} has no revision {asked.revision!r}.", asked.page
            )
        case errors.EntryNotFoundError() if isinstance(error, errors.HfHubHTTPError):
            return _permanent("missing_file", f"{asked.what}: the Hub has no such file.", asked.page)
        case errors.DisabledRepoError():
            return _permanent("disabled", f"{asked.repo} has been disabled on the Hub.", asked.page)
        case errors.HFValidationError():
            return UsageError(f"{asked.what} names no Hub repository: {_first_line(error)}")
        case errors.OfflineModeIsEnabled():
            message = f"{asked.what}: the Hub may not be asked in this process (HF_HUB_OFFLINE)."
            return EnvironmentLacksError(message, remedy="Unset HF_HUB_OFFLINE, or run with --offline.")
        case errors.FileMetadataError():
            return _no_hub(asked, _first_line(error))
        case errors.HfHubHTTPError():
            return _by_status(asked, error.response.status_code, error.response.headers.get("Retry-After"))
        case OSError() if error.errno is not None and not isinstance(error, ConnectionError | TimeoutError):
            return _disk(asked, error)
        case ValueError() | KeyError():
            # A sign-in page in place of JSON, or JSON that is none of the Hub's.
            return _no_hub(
                asked, f"the answer is no Hub listing ({type(error).__name__}: {_first_line(error)})"
            )
    return _network(asked, error)


def _gated(asked: _Asked) -> EnvironmentLacksError:
    message = f"{asked.what} is gated: its owner asks for terms to be accepted first."
    remedy = f"Accept them at {asked.page}, then {_LOGIN}, and run the same command again."
    return EnvironmentLacksError(message, remedy=remedy)


def _no_repository(asked: _Asked) -> FetchError:
    message = f"The Hub has no {asked.repo_type} {asked.repo!r} that this login may see."
    remedy = f"Check the spelling; if it is private, {_LOGIN}."
    return FetchError("missing_repo", message, transient=False, remedy=remedy)


def _permanent(reason: str, message: str, page: str) -> FetchError:
    return FetchError(reason, message, transient=False, remedy=f"See {page} for what there is.")


def _no_hub(asked: _Asked, said: str) -> FetchError:
    message = f"{asked.what}: {asked.endpoint} does not answer as a Hub does: {said}."
    remedy = "Check HF_ENDPOINT and the proxy settings."
    return FetchError("no_hub", message, transient=False, remedy=remedy)


def _by_status(asked: _Asked, status: int, retry_after: str | None) -> PrepError:
    message = f"{asked.what}: the Hub at {asked.endpoint} answered {status}"
    if status in (401, 403):
        remedy = f"The login may not read it: {_LOGIN}, with a token that has access."
        return EnvironmentLacksError(f"{message}.", remedy=remedy)
    if status == 429:
        wait = f" in {retry_after} s" if retry_after else " later"
        remedy = f"Run the same command again{wait}; a login raises the limit: {_LOGIN}."
        return FetchError("http_429", f"{message}: too many requests.", transient=True, remedy=remedy)
    transient = status in (408, 425) or status >= 500
    remedy = "Run the same command again later." if transient else ""
    return FetchError(f"http_{status}", f"{message}.", transient=transient, remedy=remedy)


def _disk(asked: _Asked, error: OSError) -> IncompleteError:
    at = f" ({error.filename})" if error.filename else ""
    message = f"{asked.what} cannot be kept in the Hub's cache: {error.strerror}{at}."
    remedy = "Free space there or set HF_HOME to another folder, then run the same command again."
    return IncompleteError(message, remedy=remedy)


def _network(asked: _Asked, error: BaseException) -> FetchError:
    said = _first_line(error) or type(error).__name__
    message = f"{asked.what}: the Hub at {asked.endpoint} could not be reached, or broke off: {said}"
    remedy = "Check the connection and the proxy settings, then run the same command again."
    reason = "cut_body" if type(error).__name__ in _BROKEN_OFF else "unreachable"
    return FetchError(reason, f"{message.removesuffix('.')}.", transient=True, remedy=remedy)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
