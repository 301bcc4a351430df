// Messages between a tab and the shared connection, which runs in a shared worker or, without one, in the tab itself.
import type { SessionEvent, SessionSummary } from "../api/types";

export type ConnectionStatus =
  | { state: "connecting" }
  | { state: "live" }
  | { state: "polling" }
  | { state: "paused" } // polling has stopped after a time without activity
  | { state: "offline"; retryAt: number | null }
  | { state: "unauthorized" };

export type FromTab =
  | { kind: "connect"; tab: string; base: string; token: string | null; visible: boolean }
  | { kind: "subscribe"; sessions: Readonly<Record<string, number>> }
  | { kind: "visible"; visible: boolean }
  | { kind: "activity" } // the user did something: updates are expected soon
  | { kind: "online"; online: boolean }
  | { kind: "may_stream"; allowed: boolean } // else the connection polls; for connections that are not shared
  | { kind: "disconnect" };

export type ToTab =
  | { kind: "status"; status: ConnectionStatus; shared: boolean }
  | { kind: "reconnected" } // after a lost connection; the server may be another release now
  | { kind: "events"; session: string; events: SessionEvent[] }
  | { kind: "ended"; session: string; reason: string } // the reason is "deleted" or "unknown"
  | { kind: "reset"; session: string } // the server no longer knows the cursor: start from the beginning
  | { kind: "sessions"; sessions: SessionSummary[] } // the whole list
  | { kind: "sessions_changed"; changed: SessionSummary[]; removed: string[] };

export type SendToTab = (message: ToTab) => void;
