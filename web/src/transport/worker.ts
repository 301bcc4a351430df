// The hub of all tabs, in a shared worker.
import { Hubs } from "./hubs";
import type { FromHub, ToHub } from "./protocol";

const GATHER_MS = 30; // a message to a tab costs it more than an event in it

const hubs = new Hubs(true);

/** Puts events that follow each other closely into one message; the first goes at once, and order stays. */
class Gathering {
  private held: Extract<FromHub, { kind: "events" }> | null = null;
  private timer: ReturnType<typeof setTimeout> | null = null;

  constructor(private readonly post: (message: FromHub) => void) {}

  tell(message: FromHub): void {
    if (message.kind === "events" && this.timer !== null && (this.held === null || this.held.session === message.session)) {
      this.held = { ...message, events: [...(this.held?.events ?? []), ...message.events] };
      return;
    }
    this.flush();
    this.post(message);
    if (message.kind === "events") this.timer ??= setTimeout(() => this.end(), GATHER_MS);
  }

  private end(): void {
    this.timer = null;
    if (this.held === null) return;
    this.flush();
    this.timer = setTimeout(() => this.end(), GATHER_MS);
  }

  private flush(): void {
    if (this.held !== null) this.post(this.held);
    this.held = null;
  }
}

// A port does not tell that its tab is gone. A tab holds a lock of its name for as long as it lives.
function whenGone(tab: string, leave: () => void): void {
  void navigator.locks?.request(`magent2.tab.${tab}`, leave);
}

(self as unknown as { onconnect: (event: MessageEvent) => void }).onconnect = (event) => {
  const port = event.ports[0];
  if (port === undefined) return;
  const gathering = new Gathering((message) => port.postMessage(message));
  const heed = hubs.connect((message) => gathering.tell(message), whenGone);
  port.onmessage = ({ data }: MessageEvent<ToHub>) => heed(data);
  port.start();
};
