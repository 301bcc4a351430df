// A tab's end of the shared connection: through the shared worker where the browser has one, else in the tab itself.
import { newId } from "../store/ids";
import type { FromTab, SendToTab, ToTab } from "./protocol";
import { ConnectionPool } from "./sharedConnection";
import workerUrl from "./sharedWorker.ts?sharedworker&url";

/** The page's content security policy (Trusted Types) allows no text as a script URL except this one. */
function trustedUrl(url: string): string {
  const types = (globalThis as { trustedTypes?: { createPolicy: (name: string, rules: object) => Policy } }).trustedTypes;
  policy ??= types?.createPolicy("magent2", { createScriptURL: (text: string) => (text === workerUrl ? text : "") }) ?? null;
  return policy === null ? url : (policy.createScriptURL(url) as unknown as string);
}

interface Policy {
  createScriptURL: (url: string) => object;
}

let policy: Policy | null = null;

const WORKER_TIMEOUT_MS = 8_000; // a worker that sends nothing for that long is taken for broken

export interface TabConnection {
  send: (message: FromTab) => void;
  close: () => void;
}

export function connectTab(base: string, token: string | null, onMessage: SendToTab): TabConnection {
  const tab = newId();
  const connect: FromTab = { kind: "connect", tab, base, token, visible: !document.hidden };
  const channel = new TabChannel(onMessage, connect, holdTabLock(tab));
  const stopReporting = reportPageState((message) => channel.send(message));
  return {
    send: (message) => channel.send(message),
    close: () => {
      stopReporting();
      channel.close();
    },
  };
}

/** Hold a lock for as long as the tab lives: the worker takes a tab whose lock is free for closed. */
function holdTabLock(tab: string): Promise<void> {
  return new Promise((held) => {
    if (!("locks" in navigator)) return held();
    void navigator.locks.request(`magent2.tab.${tab}`, () => {
      held();
      return new Promise(() => {});
    });
  });
}

const STREAM_LOCK = "magent2.stream"; // held by the tab that streams, where each tab has a connection of its own

/**
 * Uses the shared worker, and falls back to a connection of its own if the worker does not respond. Of the tabs with a
 * connection of their own, one streams and the others poll: a browser opens six connections to a server, and a stream
 * keeps one of them, so that a sixth stream would block all other requests.
 */
class TabChannel {
  private post: (message: FromTab) => void = () => {};
  private subscription: FromTab | null = null;
  private readonly closed = new AbortController();

  constructor(
    private readonly sendToTab: SendToTab,
    private readonly connect: FromTab,
    private readonly lockHeld: Promise<void>,
  ) {
    if ("SharedWorker" in globalThis && "locks" in navigator) this.openWorker();
    else this.openInTab();
  }

  close(): void {
    this.send({ kind: "disconnect" });
    this.closed.abort();
  }

  send(message: FromTab): void {
    if (message.kind === "subscribe") this.subscription = message;
    this.post(message);
  }

  private openWorker(): void {
    let worker: SharedWorker;
    try {
      worker = new SharedWorker(trustedUrl(workerUrl), { type: "module", name: "magent2" });
    } catch (error) {
      console.info("no shared worker; this tab connects on its own", error);
      return this.openInTab();
    }
    const fallBack = (): void => this.fallBack(worker);
    const timer = setTimeout(fallBack, WORKER_TIMEOUT_MS);
    worker.onerror = fallBack;
    worker.port.onmessage = ({ data }: MessageEvent<ToTab>) => {
      clearTimeout(timer);
      this.sendToTab(data);
    };
    worker.port.start();
    this.post = (message) => void this.lockHeld.then(() => worker.port.postMessage(message));
    this.post(this.connect);
  }

  /** Repeats what the worker was told: who connects, and what the tab has subscribed to. */
  private fallBack(worker: SharedWorker): void {
    if (this.closed.signal.aborted) return;
    worker.port.postMessage({ kind: "disconnect" } satisfies FromTab);
    worker.port.onmessage = null;
    worker.onerror = null;
    this.openInTab();
    if (this.subscription !== null) this.post(this.subscription);
  }

  private openInTab(): void {
    this.post = new ConnectionPool(false).addTab((message) => queueMicrotask(() => this.sendToTab(message)));
    this.post(this.connect);
    if ("locks" in navigator) this.streamWhileLocked();
    else this.streamWhileVisible();
  }

  /** Stream once no other tab does. The lock is free again when this tab is closed. */
  private streamWhileLocked(): void {
    const { signal } = this.closed;
    this.post({ kind: "may_stream", allowed: false });
    const stream = async (): Promise<void> => {
      if (signal.aborted) return; // the tab may have been closed between the grant of the lock and this call
      this.post({ kind: "may_stream", allowed: true });
      return new Promise((release) => signal.addEventListener("abort", () => release()));
    };
    navigator.locks.request(STREAM_LOCK, { signal }, stream).catch((error: unknown) => {
      if (!signal.aborted) throw error;
    });
  }

  /** Pages over plain HTTP have no locks: there, hidden tabs do not stream. */
  private streamWhileVisible(): void {
    const update = (): void => this.post({ kind: "may_stream", allowed: !document.hidden });
    document.addEventListener("visibilitychange", update, { signal: this.closed.signal });
    update();
  }
}

/** Reports whether the tab is visible, whether there is a network, and that the page is left. */
function reportPageState(send: (message: FromTab) => void): () => void {
  const control = new AbortController();
  const { signal } = control;
  document.addEventListener("visibilitychange", () => send({ kind: "visible", visible: !document.hidden }), { signal });
  window.addEventListener("online", () => send({ kind: "online", online: true }), { signal });
  window.addEventListener("offline", () => send({ kind: "online", online: false }), { signal });
  window.addEventListener("pagehide", () => send({ kind: "disconnect" }), { signal });
  return () => control.abort();
}
