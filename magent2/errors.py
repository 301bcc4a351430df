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
│   └── SettingsError      a URL, variable or option that cannot be used
├── Refused                read again, decide again; nothing was changed
│   ├── IdConflict         this id was used with another body: take a new id
│   ├── ConditionFailed    the log has moved on
│   ├── UnknownCursor      start over from the floor
│   ├── BlobMissing        put the blob first
│   ├── NameTaken          agent and conversation names are one space
│   └── NotEmpty           import only into an empty log
├── Fenced                 another owner exists: stop this run
├── TopicDeleted           gone for good
├── MalformedRecord        somebody else wrote into the topic: erase the record, go on after it
├── TransientError         try again
│   ├── BusUnavailable     the server or file does not answer
│   └── ModelUnavailable   the model does not answer, or stopped halfway
├── ModelError             the run cannot go on as it is: change the agent, its tools, its key or its model
│   ├── ModelRefused       the model or a guardrail says no: ask differently
│   └── ContextTooLong     the conversation does not fit: begin another, or take a larger model
└── StorageError           a person must act
    ├── StorageFull        free some space
    ├── StorageUnwritable  permissions, read-only file, missing folder
    ├── StorageCorrupt     restore a backup
    ├── SchemaTooNew       written by a newer release: upgrade
    └── UnsupportedServer  Redis too old, or a Cluster
"""

from __future__ import annotations


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


class SettingsError(InvalidInput):
    """A setting that cannot be used."""


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


class NotEmpty(Refused):
    """The log has records already."""


class Fenced(Magent2Error):
    """The lane has another owner now; whatever this run still writes is refused."""


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


class StorageCorrupt(StorageError):
    """The file is not a log, or is damaged."""


class SchemaTooNew(StorageError):
    """The log was written by a newer release."""


class UnsupportedServer(StorageError):
    """A server that cannot keep the promises."""
