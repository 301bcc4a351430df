// A tab's end of the connection: through the shared worker where there is one, else on its own.
import { newId } from "../store/ids";
import { Hubs } from "./hubs";
import workerUrl from "./worker.ts?sharedworker&url";
import type { FromHub, Tell, ToHub } from "./protocol";

/** The page's policy lets nobody turn text into script, but for this one address of our own. */
function trusted(url: string): string {
  const types = (globalThis as { trustedTypes?: { createPolicy: (name: string, rules: object) => Policy } }).trustedTypes;
  policy ??= types?.createPolicy("magent2", { createScriptURL: (given: string) => (given === workerUrl ? given : "") }) ?? null;
  return policy === null ? url : (policy.createScriptURL(url) as unknown as string);
}

interface Policy {
  createScriptURL: (url: string) => object;
}

let policy: Policy | null = null;

const WORKER_MAX_MS = 8_000; // a worker that says nothing for so long is not there

export interface Link {
  send: (message: ToHub) => void;
  close: () => void;
}

export function openLink(base: string, token: string | null, tell: Tell): Link {
  const tab = newId();
  const hello: ToHub = { kind: "hello", tab, base, token, visible: !document.hidden };
  const way = new Way(tell, hello, holdLock(tab));
  const unwatch = watch((message) => way.send(message));
  return {
    send: (message) => way.send(message),
    close: () => {
      unwatch();
      way.send({ kind: "bye" });
    },
  };
}

/** Held from then on, for as long as the tab lives: the worker takes whoever does not hold theirs for gone. */
function holdLock(tab: string): Promise<void> {
  return new Promise((held) => {
    if (!("locks" in navigator)) return held();
    void navigator.locks.request(`magent2.tab.${tab}`, () => {
      held();
      return new Promise(() => {});
    });
  });
}

/** Begins with the worker and changes over when that does not answer; what was said is said again. */
class Way {
  private post: (message: ToHub) => void;
  private following: ToHub | null = null;

  constructor(
    private readonly tell: Tell,
    private readonly hello: ToHub,
    private readonly held: Promise<void>,
  ) {
    this.post = "SharedWorker" in globalThis && "locks" in navigator ? this.byWorker() : this.alone();
    this.post(hello);
  }

  send(message: ToHub): void {
    if (message.kind === "follow") this.following = message;
    this.post(message);
  }

  private byWorker(): (message: ToHub) => void {
    let worker: SharedWorker;
    try {
      worker = new SharedWorker(trusted(workerUrl), { type: "module", name: "magent2" });
    } catch (error) {
      console.info("no shared worker; this tab connects on its own", error);
      return this.alone();
    }
    const giveUp = (): void => this.goAlone(worker);
    const timer = setTimeout(giveUp, WORKER_MAX_MS);
    worker.onerror = giveUp;
    worker.port.onmessage = ({ data }: MessageEvent<FromHub>) => {
      clearTimeout(timer);
      this.tell(data);
    };
    worker.port.start();
    return (message) => void this.held.then(() => worker.port.postMessage(message));
  }

  private goAlone(worker: SharedWorker): void {
    worker.port.postMessage({ kind: "bye" } satisfies ToHub);
    worker.port.onmessage = null;
    worker.onerror = null;
    this.post = this.alone();
    this.post(this.hello);
    if (this.following !== null) this.post(this.following);
  }

  private alone(): (message: ToHub) => void {
    return new Hubs(false).connect((message) => queueMicrotask(() => this.tell(message)));
  }
}

/** Tells the hub whether anybody looks, and whether there is a network. */
function watch(send: (message: ToHub) => void): () => void {
  const control = new AbortController();
  const { signal } = control;
  document.addEventListener("visibilitychange", () => send({ kind: "visible", visible: !document.hidden }), { signal });
  window.addEventListener("online", () => send({ kind: "online", online: true }), { signal });
  window.addEventListener("offline", () => send({ kind: "online", online: false }), { signal });
  window.addEventListener("pagehide", () => send({ kind: "bye" }), { signal });
  return () => control.abort();
}
