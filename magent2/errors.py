"""Every error of magent2, sorted by what the caller can do next.

Magent2Error
├── InvalidInput (also a ValueError)   fix the call; nothing was changed
│   ├── AddressError       a recipient or a name that cannot be a topic
│   ├── TopicError         topic empty, too long, or with control characters
│   ├── PayloadError       not a JSON object
│   ├── PayloadTooLarge    over the cap: send a blob, or raise the cap
│   ├── IdError            record id empty, too long, or reserved
│   ├── LimitError         a limit below 1 or above its cap
│   ├── HeadTooLarge       a head is a cache: keep it small
│   ├── BlobTooLarge       over the cap for blobs
│   ├── CounterGap         an owner's append skipped a number
│   ├── HopsExceeded       agents answer each other for ever
│   ├── TextTooLong        say it in fewer words, or send a message of its own
│   ├── SettingsError      a URL, variable or option that cannot be used
│   ├── TemplateRefused    a message's template that does more than show it: `what` names it
│   ├── RosterError        a description of agents with faults: `faults` has them all
│   ├── UnknownScenario    the message lists the scenarios that there are
│   ├── UnknownAgent       the message lists the agents that there are
│   ├── UnknownTool        the message lists the tools that there are
│   └── ArgumentsError     arguments that do not fit the tool's schema
├── Refused                read again, decide again; nothing was changed
│   ├── IdConflict         this id was used with another body: take a new id
│   ├── ConditionFailed    the log has moved on
│   ├── UnknownCursor      start over from the floor
│   ├── BlobMissing        put the blob first
│   ├── NameTaken          agent and conversation names are one space
│   ├── NotYours           somebody else's conversation: write to one of your own
│   ├── NoActiveRun        nobody is at work there: send a message instead
│   ├── QueueFull          enough waits there already: wait until some of it was seen
│   ├── UnknownCall        no such call waits for approval: list those that do
│   ├── AlreadyDecided     a call that was approved, rejected or left to expire stays so
│   ├── UnknownEntity      nobody has made it
│   ├── BlockFailed        a block inside a block did not end well
│   ├── NotFriends         both must have agreed: ask for the friendship first
│   ├── NotAMember         only members write to a channel: join it first
│   ├── NotAContact        a swarm talks with whom it is open to, and with nobody else
│   ├── Diverged           a block that was begun again did something else than the first time
│   ├── OutcomeUnknown     begun before a crash, and not to be done twice: find out whether it happened
│   ├── WouldDeadlock      whoever is waited for waits for this run: send without waiting
│   └── NotEmpty           import only into an empty log
├── NotTaken               a receiver outside will never take the message as it is
├── Fenced                 another owner exists: stop this run
├── SuspendedSync          a function for both faces awaited something besides the log: await it on an event loop
├── TopicDeleted           gone for good
├── MalformedRecord        somebody else wrote into the topic: erase the record, go on after it
├── TransientError         try again
│   ├── BusUnavailable     the server or file does not answer
│   ├── ModelUnavailable   the model does not answer, or stopped halfway
│   ├── GatewayUnreachable nobody listens at the address, or the connection was lost
│   └── AnswerPending      no answer yet; the run goes on, wait again
├── GatewayProblem         what a gateway answered instead: `status` and `code` say why
│   ├── RequestRefused     fix the request
│   ├── Unauthorized       another token, or another address
│   ├── NotFound           there is no such thing, or not any more
│   ├── Conflict           it is at odds with what is there: read, decide again
│   ├── Gone               deleted, or dropped by retention
│   ├── GatewayBusy        try again, in `retry_after_s` if it says so
│   └── GatewayFailed      look into the log of the gateway
├── RunEnded               a run that was waited for has ended without an answer
│   ├── RunFailed          `dead retry` gives it another chance
│   └── RunStopped         somebody stopped it
├── ModelError             the run cannot go on as it is: change the agent, its tools, its key or its model
│   ├── ModelRefused       the model or a guardrail says no: ask differently
│   └── ContextTooLong     the conversation does not fit: begin another, or take a larger model
└── StorageError           a person must act
    ├── StorageFull        free some space
    ├── StorageUnwritable  permissions, read-only file, missing folder
    │   └── NoPermission   the Redis user lacks ACL rights: the message lists them
    ├── StorageCorrupt     restore a backup
    ├── SchemaTooNew       written by a newer release: upgrade
    └── UnsupportedServer  Redis too old, or a Cluster
"""

from __future__ import annotations

from collections.abc import Sequence


class Magent2Error(Exception):
    """The root: whatever magent2 raises on purpose is one of these."""


class InvalidInput(Magent2Error, ValueError):
    """The call cannot be right as it is."""


class AddressError(InvalidInput):
    """A recipient or a name that cannot become a topic."""


class TopicError(InvalidInput):
    """A topic that no log can have."""


class PayloadError(InvalidInput):
    """A payload that is not a JSON object."""


class PayloadTooLarge(InvalidInput):
    """A payload over the cap."""


class IdError(InvalidInput):
    """A record id that cannot be used."""


class LimitError(InvalidInput):
    """A limit outside its range."""


class HeadTooLarge(InvalidInput):
    """A head over its cap."""


class BlobTooLarge(InvalidInput):
    """A blob over its cap."""


class CounterGap(InvalidInput):
    """An owner's append skipped a number: an earlier append of the run is missing."""


class HopsExceeded(InvalidInput):
    """A message that was passed on too often."""


class TextTooLong(InvalidInput):
    """A text over its cap."""


class SettingsError(InvalidInput):
    """A setting that cannot be used."""


class TemplateRefused(InvalidInput):
    """A template that does more than show a message. `what` is one word for programs: `loop`, `call`, `size` …"""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"template refused ({what}): {reason}")
        self.what = what


class RosterError(InvalidInput):
    """A description of agents that cannot be used; every fault is named."""

    def __init__(self, where: str, faults: Sequence[str]) -> None:
        super().__init__(f"{where} cannot be used: {'; '.join(faults)}")
        self.where = where
        self.faults = tuple(faults)


class UnknownScenario(InvalidInput):
    """The roster has no scenario of that name."""


class UnknownAgent(InvalidInput):
    """The scenario has no agent of that name."""


class UnknownTool(InvalidInput):
    """There is no tool of that name."""


class ArgumentsError(InvalidInput):
    """Arguments that do not fit the tool's parameters."""


class Refused(Magent2Error):
    """The call is well formed, the log says no."""


class IdConflict(Refused):
    """The id was used before, with another body."""


class ConditionFailed(Refused):
    """A condition of the append does not hold."""


class UnknownCursor(Refused):
    """The cursor points at nothing that the log still has."""


class BlobMissing(Refused):
    """The blob is not there."""


class NameTaken(Refused):
    """An agent or a conversation of that name exists."""


class NotYours(Refused):
    """The conversation belongs to somebody else; for whoever asks it is not there."""


class NoActiveRun(Refused):
    """No run is under way that the message could reach."""


class QueueFull(Refused):
    """As much waits as may wait."""


class UnknownCall(Refused):
    """No call of that id waits for approval."""


class AlreadyDecided(Refused):
    """A call that somebody has decided on otherwise."""


class UnknownEntity(Refused):
    """There is no entity of that kind and id."""


class BlockFailed(Refused):
    """A block inside another one did not end well; what it held is forgotten."""


class NotFriends(Refused):
    """The two have not both agreed to be friends, or one of them has ended it."""


class NotAMember(Refused):
    """Whoever sends is not, or no longer, a member of the channel."""


class NotAContact(Refused):
    """The swarm does not take messages from there, or may not send any there."""


class Diverged(Refused):
    """A block that is run again does something else than the attempt that has sent something already."""


class OutcomeUnknown(Refused):
    """It was begun before a crash and must not be done twice; nobody here knows whether it was done."""


class WouldDeadlock(Refused):
    """The answer would have to come from somebody who waits for this very run."""


class NotEmpty(Refused):
    """The log has records already."""


class NotTaken(Magent2Error):
    """The receiver of a connector says no, and would say so again."""


class Fenced(Magent2Error):
    """The lane has another owner now; whatever this run still writes is refused."""


class SuspendedSync(Magent2Error):
    """`run_sync` was given a coroutine that suspends."""


class TopicDeleted(Magent2Error):
    """The topic was deleted; its numbers never start over."""


class MalformedRecord(Magent2Error):
    """A record that this program cannot have written."""

    def __init__(self, topic: str, seq: int, reason: str) -> None:
        super().__init__(f"record {seq} of {topic!r} is malformed ({reason}); erase it, or read on after {seq}")
        self.topic = topic
        self.seq = seq


class TransientError(Magent2Error):
    """The same call may succeed later."""


class BusUnavailable(TransientError):
    """The server or file behind the bus does not answer."""


class ModelUnavailable(TransientError):
    """The model did not answer, or not to the end."""


class GatewayUnreachable(TransientError):
    """No answer from the address. `sent`: the request may have arrived all the same."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class AnswerPending(TransientError):
    """The answer did not come in the time that was given; the run goes on."""


class GatewayProblem(Magent2Error):
    """A gateway said no. `detail` is its text, `code` is stable, `fields` is the rest of the problem document."""

    def __init__(self, status: int, code: str, detail: str, fields: dict[str, object] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.fields = fields or {}


class RequestRefused(GatewayProblem, InvalidInput):
    """The request cannot be right as it is."""


class Unauthorized(GatewayProblem):
    """No token, a wrong one, or one that may not do this."""


class NotFound(GatewayProblem, Refused):
    """There is no such conversation or letter."""


class Conflict(GatewayProblem, Refused):
    """The request is at odds with what the log has."""


class Gone(GatewayProblem):
    """It was there, and never will be again."""


class GatewayBusy(GatewayProblem, TransientError):
    """The gateway, or the bus behind it, cannot now."""

    @property
    def retry_after_s(self) -> float | None:
        value = self.fields.get("retry_after_s")
        return float(value) if isinstance(value, int | float) else None


class GatewayFailed(GatewayProblem):
    """The gateway could not do it, or what answered is no gateway."""


class RunEnded(Magent2Error):
    """The run is over, and there is no answer."""

    def __init__(self, message: str, *, run_id: str | None = None, reason: str | None = None) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.reason = reason


class RunFailed(RunEnded):
    """The run was tried as often as it may be, and buried."""


class RunStopped(RunEnded):
    """The run was stopped before it had an answer."""


class ModelError(Magent2Error):
    """The run cannot go on; the same again would end the same."""


class ModelRefused(ModelError):
    """The model, or a guardrail around it, will not do this."""


class ContextTooLong(ModelError):
    """The request is longer than the model takes."""


class StorageError(Magent2Error):
    """The store cannot do its work until a person acts."""


class StorageFull(StorageError):
    """No space left for what was to be written."""


class StorageUnwritable(StorageError):
    """The file or its folder cannot be written."""


class NoPermission(StorageUnwritable):
    """The Redis user lacks ACL rights that the engine needs."""


class StorageCorrupt(StorageError):
    """The file is not a log, or is damaged."""


class SchemaTooNew(StorageError):
    """The log was written by a newer release."""


class UnsupportedServer(StorageError):
    """A server that cannot keep the promises."""
