"""The worker: turns envelopes into runs, and runs into events."""
