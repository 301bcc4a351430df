"""Every error of magent2, grouped by what the caller can do next.

Magent2Error
├── InvalidInput (also a ValueError)   fix the call; nothing was changed
│   ├── AddressError       the recipient or name cannot be a topic
│   ├── TopicError         the topic is empty, too long, or has control characters
│   ├── PayloadError       the payload is not a JSON object
│   ├── PayloadTooLarge    the payload exceeds its limit: send a blob, or raise the limit
│   ├── IdError            the record id is empty, too long, or reserved
│   ├── LimitError         a limit is below 1 or above its maximum
│   ├── HeadTooLarge       the head of a topic is too large: a head is a cache, keep it small
│   ├── BlobTooLarge       the blob exceeds its limit
│   ├── UnsupportedFile    the content of the file is of a type that cannot be uploaded
│   ├── FileTooLarge       the file exceeds its limit
│   ├── FilesFull          the files of its owner exceed their limit: delete some first
│   ├── WebhooksFull       its owner has as many webhooks as are allowed: delete one first
│   ├── CounterGap         an owner's append skipped a number
│   ├── HopsExceeded       agents keep answering each other
│   ├── TextTooLong        the text exceeds its limit: shorten it, or send a separate message
│   ├── SettingsError      a URL, variable or option is invalid
│   ├── TemplateRefused    a message template does more than show the message: `what` says what
│   ├── RosterError        an agents file has faults: `faults` lists them all
│   ├── UnknownScenario    the message lists the known scenarios
│   ├── UnknownAgent       the message lists the known agents
│   ├── UnknownTool        the message lists the known tools
│   ├── ArgumentsError     the arguments do not match the tool's schema
│   └── ResultError        a tool returned something that JSON cannot hold: return JSON values or text
├── Refused                read again, decide again; nothing was changed
│   ├── IdConflict         this id was used with a different body: use a new id
│   ├── ConditionFailed    the log has changed since it was read
│   ├── UnknownCursor      start again from the first record that the log still has
│   ├── BlobMissing        store the blob first
│   ├── NameTaken          (also a ValueError) agents and conversations share one set of names: choose another
│   ├── NotYours           the conversation has another owner: write to one of your own
│   ├── NoActiveRun        no run is in progress there: send a message instead
│   ├── ConversationBusy   a message waits there or is being answered: wait for its end, or stop it first
│   ├── NotSupersedable    only the last answer to a person is replaced: send a message instead
│   ├── BudgetUsedUp       the budget is used up: raise it and send the message again
│   ├── QueueFull          too many messages wait there: wait until some were processed
│   ├── UnknownCall        no such call waits for approval: list the calls that do
│   ├── AlreadyDecided     the call was already approved, rejected or expired, and stays so
│   ├── UnknownEntity      the directory has no such entry
│   ├── UnknownFile        there is no such file, or it has another owner
│   ├── UnknownSchedule    there is no such schedule, or it has another owner
│   ├── ScheduleEnded      the schedule has ended: create another
│   ├── BlockFailed        a block inside another block failed
│   ├── NotFriends         both users must have agreed: request the friendship first
│   ├── NotAMember         only members write to a channel: join it first
│   ├── NotAContact        the swarm does not exchange messages with this user
│   ├── BlockDiverged      a repeated block did something different from its first attempt
│   ├── OutcomeUnknown     started before a crash and not safe to repeat: find out whether it happened
│   ├── WouldDeadlock      the agent waited for is waiting for this run: send without waiting
│   └── NotEmpty           import only into an empty log
├── ToolError              raised by a tool on purpose: its text is for the model and the user
│   └── ToolTimedOut       (also a TimeoutError) the tool took longer than its limit
├── NotTaken               an external receiver will never accept the message as it is
├── Fenced                 the lane has another owner: stop this run
│   └── WriterClosed       the work on the lane is ending: write nothing more
├── SuspendedSync          a function over the log awaited something else: await it on an event loop
├── TopicDeleted           the topic is gone for good
├── MalformedRecord        another program wrote into the topic: erase the record, or continue after it
├── TransientError         try again
│   ├── BusUnavailable     the server or file does not answer
│   │   └── NotReplicated  too few replicas have confirmed a write in time: it may exist; write it again
│   ├── ModelUnavailable   the model does not answer, or its answer broke off
│   │   └── CircuitOpen    its provider did not answer several times: no call is made now
│   ├── RunTimedOut        the run took longer than its limit
│   ├── GatewayUnreachable nothing listens at the address, or the connection was lost
│   │   └── TlsFailed      the certificate is not trusted, or the scheme is wrong: it is not tried again
│   └── AnswerPending      no answer yet; the run continues, wait again
│       └── ApprovalNeeded the run waits for approval of tool calls: decide on `approvals`, then wait again
├── GatewayProblem         the gateway answered with a problem: `status` and `code` say why
│   ├── RequestRefused     fix the request
│   ├── Unauthorized       use another token, or another address
│   ├── NotFound           it does not exist, or no longer exists
│   ├── Conflict           the request contradicts the stored state: read, decide again
│   ├── Gone               deleted, or dropped by retention
│   ├── GatewayBusy        try again, after `retry_after_s` if it is given
│   └── GatewayFailed      read the log of the gateway
├── RunEnded               the awaited run ended without an answer
│   ├── RunFailed          `magent2 dead retry` processes the message again
│   └── RunStopped         the run was stopped
├── ModelError             the run cannot continue: change the agent, its tools, its key or its model
│   ├── ModelRefused       the model or a guardrail refused: ask differently
│   ├── OutputMismatch     the answer did not match its schema, also when asked again: simplify the schema
│   └── ContextTooLong     the conversation is too long: start another, or use a model with a larger context
└── StorageError           an operator must act
    ├── StorageFull        free some space
    ├── StorageUnwritable  permissions, read-only file, missing folder
    │   └── NoPermission   the Redis user lacks ACL rights: the message lists them
    ├── StorageCorrupt     restore a backup
    ├── SchemaTooNew       written by a newer release: upgrade
    └── UnsupportedServer  Redis too old, or a Cluster
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Magent2Error(Exception):
    """Base class of every error that magent2 raises on purpose."""


class InvalidInput(Magent2Error, ValueError):
    """The call is invalid as it stands. Nothing was changed."""


class AddressError(InvalidInput):
    """A recipient or a name that cannot be a topic."""


class TopicError(InvalidInput):
    """The topic is not valid."""


class PayloadError(InvalidInput):
    """The payload is not a JSON object."""


class PayloadTooLarge(InvalidInput):
    """The payload exceeds its limit."""


class IdError(InvalidInput):
    """The record id is not valid."""


class LimitError(InvalidInput):
    """A limit outside its range."""


class HeadTooLarge(InvalidInput):
    """The head of a topic exceeds its limit."""


class BlobTooLarge(InvalidInput):
    """A blob exceeds its limit."""


class UnsupportedFile(InvalidInput):
    """The content of the file is of a type that cannot be uploaded."""


class FileTooLarge(InvalidInput):
    """The file exceeds its limit."""


class FilesFull(InvalidInput):
    """The files of its owner exceed their limit."""


class WebhooksFull(InvalidInput):
    """The owner has as many webhooks as are allowed."""


class CounterGap(InvalidInput):
    """An owner's append skipped a number: an earlier append of the run is missing."""


class HopsExceeded(InvalidInput):
    """A message was passed on too often."""


class TextTooLong(InvalidInput):
    """A text exceeds its limit."""


class SettingsError(InvalidInput):
    """A setting is not valid."""


class TemplateRefused(InvalidInput):
    """A template that does more than show a message. `what` is one word for programs: `loop`, `call`, `size` …"""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"template refused ({what}): {reason}")
        self.what = what


class RosterError(InvalidInput):
    """An agents file that cannot be used. `faults` lists every fault."""

    def __init__(self, where: str, faults: Sequence[str]) -> None:
        super().__init__(f"{where} cannot be used: {'; '.join(faults)}")
        self.where = where
        self.faults = tuple(faults)


class UnknownScenario(InvalidInput):
    """The roster has no scenario of that name."""


class UnknownAgent(InvalidInput):
    """The scenario has no agent of that name."""


class UnknownTool(InvalidInput):
    """No tool of that name exists."""


class ArgumentsError(InvalidInput):
    """The arguments do not match the tool's parameters."""


class ResultError(InvalidInput):
    """A tool has run, and its result is not a JSON value."""


class Refused(Magent2Error):
    """The call is valid, but the state of the log does not allow it. Nothing was changed."""


class IdConflict(Refused):
    """The id was used before with a different body."""


class ConditionFailed(Refused):
    """A condition of the append does not hold."""


class UnknownCursor(Refused):
    """The cursor points to a record that the log does not have, or no longer has."""


class BlobMissing(Refused):
    """The blob does not exist."""


class NameTaken(Refused, ValueError):
    """An agent or a conversation of that name exists. Also a `ValueError`: another name is needed."""


class NotYours(Refused):
    """The conversation has another owner. To this caller it looks as if it did not exist."""


class NoActiveRun(Refused):
    """No run is in progress that the message could reach."""


class ConversationBusy(Refused):
    """A message of the conversation waits or is being answered, and the request is only for an idle one."""


class NotSupersedable(Refused):
    """The run is not the last one of the conversation, or does not answer a message of a person."""


class BudgetUsedUp(Refused):
    """A budget of tokens, model calls or money is used up, and the run cannot wait for more."""


class QueueFull(Refused):
    """The maximum number of messages is waiting already."""


class UnknownCall(Refused):
    """No call of that id waits for approval."""


class AlreadyDecided(Refused):
    """The call was decided differently before."""


class UnknownFile(Refused):
    """There is no such file, or it has another owner."""


class UnknownSchedule(Refused):
    """There is no such schedule, or it has another owner."""


class ScheduleEnded(Refused):
    """The schedule has ended and cannot be paused or resumed."""


class UnknownEntity(Refused):
    """The directory has no entry of that kind and id."""


class BlockFailed(Refused):
    """A block inside another block failed; the messages it held are discarded."""


class NotFriends(Refused):
    """The two users have not both agreed to be friends, or one of them has ended it."""


class NotAMember(Refused):
    """The sender is not, or no longer, a member of the channel."""


class NotAContact(Refused):
    """The swarm does not accept messages from this user, or may not send any to them."""


class BlockDiverged(Refused):
    """A repeated block did something different from the attempt that has already sent messages."""


class OutcomeUnknown(Refused):
    """It was started before a crash and must not be repeated; whether it happened is unknown."""


class WouldDeadlock(Refused):
    """The answer would have to come from an agent that is waiting for this run."""


class NotEmpty(Refused):
    """The log already has records."""


class ToolError(Magent2Error):
    """A tool raises this on purpose: its text goes to the model, and may reach the user.

    The text of any other exception of a tool is shown to operators only, in the log.
    """


class ToolTimedOut(ToolError, TimeoutError):
    """A tool took longer than its limit."""


class NotTaken(Magent2Error):
    """The external receiver of a connector rejected the message, and would reject it again."""


class Fenced(Magent2Error):
    """The lane has another owner now. All further writes of this run are refused."""


class WriterClosed(Fenced):
    """The writer of a lane was asked to write after the work on the lane had begun to end."""


class SuspendedSync(Magent2Error):
    """`run_sync` was given a coroutine that awaits something besides the log."""


class TopicDeleted(Magent2Error):
    """The topic was deleted. Its sequence numbers are never used again."""


class MalformedRecord(Magent2Error):
    """A record that magent2 did not write."""

    def __init__(self, topic: str, seq: int, reason: str) -> None:
        super().__init__(f"record {seq} of {topic!r} is malformed ({reason}); erase it, or read on after {seq}")
        self.topic = topic
        self.seq = seq


class TransientError(Magent2Error):
    """The same call may succeed later."""


class BusUnavailable(TransientError):
    """The server or file behind the bus does not answer."""


class NotReplicated(BusUnavailable):
    """Too few replicas have confirmed a write in time. It took effect on the primary; a failover may lose it."""


class ModelUnavailable(TransientError):
    """The model did not answer, or its answer broke off. `retry_after_s` is the delay that its provider asked for."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CircuitOpen(ModelUnavailable):
    """A model provider did not answer several times in a row, so this call was not made."""

    def __init__(self, provider: str, retry_in_s: float) -> None:
        super().__init__(f"{provider} does not answer; calls are suspended", retry_after_s=retry_in_s)
        self.retry_in_s = retry_in_s


class RunTimedOut(TransientError):
    """A run took longer than its limit."""


class GatewayUnreachable(TransientError):
    """The address did not answer. `sent`: the request may have arrived nevertheless."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class TlsFailed(GatewayUnreachable):
    """The TLS connection was not established. The message names the cause; a repeat would fail in the same way."""


class AnswerPending(TransientError):
    """The answer did not arrive within the timeout; the run continues."""


class PendingApproval(Protocol):
    """A tool call that waits for approval. `ApprovalInfo` of the HTTP API has these fields and more."""

    @property
    def session_id(self) -> str: ...
    @property
    def call_id(self) -> str: ...
    @property
    def agent_id(self) -> str: ...
    @property
    def tool(self) -> str: ...
    @property
    def args(self) -> Mapping[str, object]: ...
    @property
    def status(self) -> str: ...


class ApprovalNeeded(AnswerPending):
    """The run waits until a person has decided on tool calls. `approvals` are those calls."""

    def __init__(self, message: str, approvals: Sequence[PendingApproval]) -> None:
        super().__init__(message)
        self.approvals = tuple(approvals)


class GatewayProblem(Magent2Error):
    """A gateway refused the request.

    `detail` is its text, `code` is stable, `fields` is the rest of the problem document.
    """

    def __init__(self, status: int, code: str, detail: str, fields: dict[str, object] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.fields = fields or {}


class RequestRefused(GatewayProblem, InvalidInput):
    """The request is invalid as it stands."""


class Unauthorized(GatewayProblem):
    """The token is missing, wrong, or not allowed to do this."""


class NotFound(GatewayProblem, Refused):
    """The conversation or dead letter does not exist."""


class Conflict(GatewayProblem, Refused):
    """The request contradicts the stored state."""


class Gone(GatewayProblem):
    """It existed once and will not exist again."""


class GatewayBusy(GatewayProblem, TransientError):
    """The gateway, or the bus behind it, cannot serve the request now."""

    @property
    def retry_after_s(self) -> float | None:
        value = self.fields.get("retry_after_s")
        return float(value) if isinstance(value, int | float) else None


class GatewayFailed(GatewayProblem):
    """The gateway failed, or the server that answered is not a gateway."""


class RunEnded(Magent2Error):
    """The run ended without an answer."""

    def __init__(self, message: str, *, run_id: str | None = None, reason: str | None = None) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.reason = reason


class RunFailed(RunEnded):
    """The run failed too often; its message is a dead letter."""


class RunStopped(RunEnded):
    """The run was stopped before it had an answer."""


class ModelError(Magent2Error):
    """The run cannot continue; a repeat would fail in the same way."""


class ModelRefused(ModelError):
    """The model, or a guardrail around it, refused the request."""


class OutputMismatch(ModelError):
    """The answer does not match the schema of the output, also after the model was told so."""


class ContextTooLong(ModelError):
    """The request is longer than the model accepts."""


class StorageError(Magent2Error):
    """The store cannot work until an operator acts."""


class StorageFull(StorageError):
    """No space is left for the write."""


class StorageUnwritable(StorageError):
    """The file or its folder is not writable."""


class NoPermission(StorageUnwritable):
    """The Redis user lacks ACL rights that the engine needs."""


class StorageCorrupt(StorageError):
    """The file is not a log, or it is damaged."""


class SchemaTooNew(StorageError):
    """The log was written by a newer release."""


class UnsupportedServer(StorageError):
    """The server cannot keep the guarantees of the bus."""
