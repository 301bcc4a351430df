// Sends what is outgoing, as often as it takes, always under the same id: the server takes it once. One message of a
// conversation after the other.
import type { Api } from "../api/client";
import { explain, Problem } from "../api/problem";
import { Cell } from "./cell";
import { newId } from "./ids";
import { keptHere } from "./kept";
import { againIn, changed, nextOf, type Outgoing, type OutgoingList, parseOutgoing, without } from "./outgoing";

const KEPT = "outgoing";

export class Sender {
  readonly list = new Cell<OutgoingList>(parseOutgoing(keptHere.get(KEPT)));
  private readonly timers = new Map<string, ReturnType<typeof setTimeout>>();

  constructor(
    private readonly api: () => Api,
    private readonly sent: (one: Outgoing) => void,
  ) {
    this.list.watch(() => keptHere.set(KEPT, JSON.stringify(this.list.get())));
  }

  add(one: Pick<Outgoing, "sessionId" | "text" | "how" | "agent">): void {
    const clientId = newId();
    this.list.update((list) => [...list, { ...one, clientId, at: Date.now(), state: "sending", tries: 0, why: null }]);
    void this.send(clientId);
  }

  /** All that has not arrived: after a reload, and when the network is back. */
  resume(): void {
    for (const one of this.list.get()) if (one.state !== "refused") this.again(one.clientId);
  }

  again(clientId: string): void {
    this.cancel(clientId);
    this.change(clientId, { state: "sending" });
    void this.send(clientId);
  }

  drop(clientId: string): void {
    this.cancel(clientId);
    const dropped = this.list.get().find((one) => one.clientId === clientId);
    this.list.update((list) => without(list, (one) => one.clientId === clientId));
    if (dropped !== undefined) this.goOn(dropped);
  }

  /** The log shows these now. */
  shown(ids: ReadonlySet<string>): void {
    this.list.update((list) => without(list, (one) => ids.has(one.clientId)));
  }

  private async send(clientId: string): Promise<void> {
    const list = this.list.get();
    const one = list.find((found) => found.clientId === clientId);
    if (one === undefined || nextOf(list, one.sessionId) !== one) return;
    this.change(clientId, { state: "sending", tries: one.tries + 1, why: null });
    try {
      await this.deliver(one);
      this.change(clientId, { state: "accepted" });
      this.sent(one);
    } catch (error) {
      this.failed(one, error);
    }
    this.goOn(one);
  }

  /** With what waits behind this one, if that is out of the way. */
  private goOn(after: Outgoing): void {
    const next = nextOf(this.list.get(), after.sessionId);
    if (next !== null && next.clientId !== after.clientId) this.again(next.clientId);
  }

  private async deliver(one: Outgoing): Promise<void> {
    const { sessionId, text, clientId: clientMessageId } = one;
    const message = { sessionId, text, clientMessageId };
    if (one.how === "steer") {
      await this.api().steer(message);
      return;
    }
    if (one.agent !== null) await this.api().create(sessionId, one.agent || null);
    await this.api().say(message);
  }

  private failed(one: Outgoing, error: unknown): void {
    const tries = one.tries + 1;
    if (error instanceof Problem && error.code === "no_active_run") {
      // The run ended while the steer was on its way: it is the next message then.
      this.change(one.clientId, { how: "message", tries });
      this.again(one.clientId);
    } else if (error instanceof Problem && error.isPassing) {
      this.change(one.clientId, { state: "waiting", why: explain(error) });
      const wait = error.retryAfterS === null ? againIn(tries) : error.retryAfterS * 1000;
      this.timers.set(one.clientId, setTimeout(() => this.again(one.clientId), wait));
    } else this.change(one.clientId, { state: "refused", why: explain(error) });
  }

  private change(clientId: string, change: Partial<Outgoing>): void {
    this.list.update((list) => changed(list, clientId, change));
  }

  private cancel(clientId: string): void {
    clearTimeout(this.timers.get(clientId));
    this.timers.delete(clientId);
  }
}
