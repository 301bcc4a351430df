// Entry point of the shared worker: one connection pool for all tabs.
import type { FromTab, ToTab } from "./protocol";
import { ConnectionPool } from "./sharedConnection";

const BATCH_MS = 30; // a message to a tab costs the tab more than one more event in it

const pool = new ConnectionPool(true);

/** Puts events of one session that arrive close together into one message. The first is sent at once; the order stays. */
class EventBatcher {
  private batch: Extract<ToTab, { kind: "events" }> | null = null;
  private timer: ReturnType<typeof setTimeout> | null = null;

  constructor(private readonly post: (message: ToTab) => void) {}

  send(message: ToTab): void {
    if (message.kind === "events" && this.timer !== null && (this.batch === null || this.batch.session === message.session)) {
      this.batch = { ...message, events: [...(this.batch?.events ?? []), ...message.events] };
      return;
    }
    this.flush();
    this.post(message);
    if (message.kind === "events") this.timer ??= setTimeout(() => this.end(), BATCH_MS);
  }

  private end(): void {
    this.timer = null;
    if (this.batch === null) return;
    this.flush();
    this.timer = setTimeout(() => this.end(), BATCH_MS);
  }

  private flush(): void {
    if (this.batch !== null) this.post(this.batch);
    this.batch = null;
  }
}

/** A message port does not report that its tab was closed. The tab's lock, which is held while it lives, does. */
function onTabClosed(tab: string, leave: () => void): void {
  void navigator.locks?.request(`magent2.tab.${tab}`, leave);
}

(self as unknown as { onconnect: (event: MessageEvent) => void }).onconnect = (event) => {
  const port = event.ports[0];
  if (port === undefined) return;
  const batcher = new EventBatcher((message) => port.postMessage(message));
  const handleMessage = pool.addTab((message) => batcher.send(message), onTabClosed);
  port.onmessage = ({ data }: MessageEvent<FromTab>) => handleMessage(data);
  port.start();
};
