"""What a failure tells whom: users get a plain text and a failure id, operators get the cause with secrets masked.

Code from outside the package (a tool, a model provider, a connector, a driver) may put anything into the text of its
errors: a URL with a password, a key, a path. So no such text is shown to users or to models. An error of magent2 shows
its own text. It contains no text of another error; its `__cause__` has that, for the log.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from magent2.errors import BusUnavailable, Magent2Error, StorageError, SuspendedSync

MASK = "***"
FAILURE_ID_BYTES = 6
FAILURE_TEXT_MAX_CHARS = 500  # of one text of a failure, and of the field `error` of a log line
TRACEBACK_MAX_CHARS = 20_000
CAUSES_MAX = 4  # errors of a chain that are named
SECRET_MAX_CHARS = 4096  # of one secret: without a limit, a text could make the search slow
MASKED_TEXT_MAX_CHARS = 64 << 10  # what a longer text has beyond this is dropped: it would be neither masked nor read

# The texts of these errors name paths and servers. Only an operator can act on them.
OPERATOR_ERRORS = (BusUnavailable, StorageError, SuspendedSync)

_NAMES = (
    r"pass(?:word|wd|phrase)|pwd|secret|token|credentials?|signature"
    r"|(?:api|access|account|auth|client|encryption|master|private|session|shared|signing)[_\-. ]?key"
)
_VALUE = (
    rf"(?:\"[^\"]{{0,{SECRET_MAX_CHARS}}}\"?|'[^']{{0,{SECRET_MAX_CHARS}}}'?|[^\s,;&'\")}}\]]{{1,{SECRET_MAX_CHARS}}})"
)

# Every pattern keeps its groups and masks the rest. The order matters: a URL may contain a pair.
_SECRETS = tuple(
    re.compile(pattern)
    for pattern in (
        # PEM blocks of private keys, also cut ones
        r"(?s)()-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?"
        r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
        # the user part of a URL. A password may contain `/`, unless what stands before it is a host with a port.
        r"(://)[^\s/?#\"'<>@]{0,256}(?:@[^\s/?#\"'<>@]{1,256}){0,3}(?=@)",
        r"(://)[^\s/:@\"'<>]{0,128}:(?!\d{1,5}[/?#])[^\s@\"'<>]{1,256}(?=@)",
        # headers and schemes of HTTP authentication
        rf"(?i)((?:authorization|cookie|x-api-key)[\"']?\s{{0,4}}[:=]\s{{0,4}}[\"']?(?:(?:bearer|basic|digest|token)\s+)?)"
        rf"[^\s\"',]{{1,{SECRET_MAX_CHARS}}}",
        rf"(?i)\b(bearer\s{{1,4}})(?=\S{{0,64}}\d|\S{{16}})[\w.~+/=\-]{{6,{SECRET_MAX_CHARS}}}",
        # JSON Web Tokens
        rf"\b()eyJ[\w\-]{{5,{SECRET_MAX_CHARS}}}\.[\w\-]{{5,{SECRET_MAX_CHARS}}}(?:\.[\w\-]{{0,{SECRET_MAX_CHARS}}})?",
        # keys of magent2 and of well-known services, by their prefixes
        r"\b()mk_[0-9a-f]{12}_[\w\-]{8,128}",
        r"\b()(?:sk|rk|pk)-[\w\-*]{6,256}",
        r"\b()(?:sk|rk|pk)_(?:live|test)_\w{8,128}",
        r"\b()whsec_[\w+/=\-]{8,128}",
        r"\b()(?:AKIA|ASIA|AROA|AIDA|ABIA|ACCA)[A-Z0-9]{12,20}\b",
        r"\b()gh[pousr]_\w{16,255}",
        r"\b()github_pat_\w{16,255}",
        r"\b()glpat-[\w\-]{16,64}",
        r"\b()(?:xox[abeoprs]|xapp)-[\w\-]{8,255}",
        r"\b()AIza[\w\-]{30,64}",
        r"\b()ya29\.[\w\-]{16,512}",
        r"\b()(?:hf|npm|pypi)[_\-]\w{16,512}",
        r"\b()(?:bot)?\d{8,10}:[\w\-]{35}\b",
        # pairs such as `password=…`, `"api_key": "…"`
        rf"(?i)((?:{_NAMES})[\"']?\s{{0,4}}(?:=>|[=:])\s{{0,4}}){_VALUE}",
    )
)


_SECRET_NAME = re.compile(rf"(?i)(?:{_NAMES})$")


def is_secret_name(name: object) -> bool:
    """Whether a field of this name holds a secret, such as `api_key`."""
    return isinstance(name, str) and _SECRET_NAME.search(name) is not None


def mask_secrets(text: str) -> str:
    """Replace what has the form of a secret: credentials in URLs and headers, keys of known services, `password=…`."""
    if len(text) > MASKED_TEXT_MAX_CHARS:
        text = f"{text[:MASKED_TEXT_MAX_CHARS]}…"
    for pattern in _SECRETS:
        text = pattern.sub(rf"\g<1>{MASK}", text)
    return text


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure. `text` is for users and models, `cause` for operators. Both name the failure id, if there is one.

    `kind` is the type of the error.
    """

    text: str
    cause: str
    id: str | None = None
    kind: str = ""

    @classmethod
    def of(cls, error: BaseException, what: str, *parts: object) -> Failure:
        """Describe an error. `what` says in plain words what failed. `parts` identify the failure (`failure_id`)."""
        return cls._described(error, text_for_users(error) or hidden_text(what), parts)

    @classmethod
    def hidden(cls, error: BaseException, what: str, *parts: object) -> Failure:
        """The same, but the text of the error is hidden in any case."""
        return cls._described(error, hidden_text(what), parts)

    @classmethod
    def _described(cls, error: BaseException, text: str, parts: tuple[object, ...]) -> Failure:
        name = failure_id(*parts)
        marked = f" (failure id {name})"
        return cls(bounded(text) + marked, cause_of(error) + marked, name, type(error).__name__)

    @classmethod
    def plain(cls, text: str) -> Failure:
        """A failure that users and operators see alike."""
        shown = bounded(mask_secrets(text))
        return cls(shown, shown)

    @property
    def named(self) -> str:
        """The text for users behind the type of the error: `RuntimeError: the run failed; …`."""
        return f"{self.kind}: {self.text}" if self.kind else self.text

    def because(self, why: str) -> Failure:
        """The failure behind the reason why it is final."""
        return Failure(f"{why}: {self.named}", f"{why}: {self.cause}", self.id) if why else self


def hidden_text(what: str) -> str:
    return f"{what}; the operator's log has the cause"


def failure_id(*parts: object) -> str:
    """Make a failure id: from `parts`, so that a repeat of the same work has the same id, or random without parts."""
    if not parts:
        return secrets.token_hex(FAILURE_ID_BYTES)
    text = "\x1f".join(map(str, parts))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=FAILURE_ID_BYTES).hexdigest()


def text_for_users(error: BaseException) -> str | None:
    """The text of an error that users and models may see; `None` if it is for operators only."""
    if not isinstance(error, Magent2Error) or isinstance(error, OPERATOR_ERRORS):
        return None
    return mask_secrets(str(error)) or type(error).__name__


def cause_of(error: BaseException) -> str:
    """Type and text of an error and of what caused it, masked and shortened: for operators."""
    return bounded(" <- ".join(mask_secrets(_type_and_text(one)) for one in _chain(error)))


def _chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if current is None:
            return
        yield current
        current = current.__cause__


def _type_and_text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  an exception of foreign code may fail to describe itself
        text = "(its text cannot be read)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def bounded(text: str) -> str:
    return text if len(text) <= FAILURE_TEXT_MAX_CHARS else text[: FAILURE_TEXT_MAX_CHARS - 1] + "…"


def log_failure(
    logger: logging.Logger,
    level: int,
    message: str,
    error: BaseException,
    facts: Mapping[str, object],
    *,
    with_traceback: bool,
) -> None:
    """Log an error with its masked cause, and with its masked traceback if wanted.

    The traceback is masked here, not by the formatter: handlers of the embedding program have formatters of their own.
    """
    if not logger.isEnabledFor(level):
        return
    path, line, function, _ = logger.findCaller(stacklevel=3)
    extra = {**facts, "error": cause_of(error)}
    record = logger.makeRecord(logger.name, level, path, line, message, (), None, function, extra)
    if with_traceback:
        text = "".join(traceback.format_exception(error)).rstrip()
        record.exc_text = mask_secrets(text[-MASKED_TEXT_MAX_CHARS:])[-TRACEBACK_MAX_CHARS:]
    logger.handle(record)
