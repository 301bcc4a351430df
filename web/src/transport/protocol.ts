// What a tab and the hub say to each other. The hub lives in a shared worker, or in the tab itself.
import type { Event, SessionItem } from "../api/shapes";

export type LinkState =
  | { is: "connecting" }
  | { is: "live" }
  | { is: "polling" }
  | { is: "paused" } // polling has stopped after a while without anybody
  | { is: "offline"; retryAt: number | null }
  | { is: "unauthorized" };

export type ToHub =
  | { kind: "hello"; tab: string; base: string; token: string | null; visible: boolean }
  | { kind: "follow"; sessions: Readonly<Record<string, number>> }
  | { kind: "visible"; visible: boolean }
  | { kind: "sent" } // somebody did something: news are near
  | { kind: "online"; online: boolean }
  | { kind: "bye" };

export type FromHub =
  | { kind: "link"; state: LinkState; shared: boolean }
  | { kind: "back" } // a connection that was lost is there again, perhaps to another release of the server
  | { kind: "events"; session: string; events: Event[] }
  | { kind: "over"; session: string; reason: string } // deleted, unknown
  | { kind: "restart"; session: string } // its cursor points at nothing: begin anew
  | { kind: "sessions"; sessions: SessionItem[] } // all of them
  | { kind: "changed"; changed: SessionItem[]; removed: string[] };

export type Tell = (message: FromHub) => void;
