// A session while events are taken in: lists are copied once per batch, and only those that change.
import type { Item, Run, Session, Span } from "./state";

export class Draft {
  cursor: number;
  events: number;
  agent: string | null;
  usage: Session["usage"];
  usageByAgent: Session["usageByAgent"];
  handoffs: Session["handoffs"];
  private items: Item[] | null = null;
  private places: Map<string, number> | null = null;
  private runs: Run[] | null = null;
  private runPlaces: Map<string, number> | null = null;
  private clientIds: Set<string> | null = null;

  constructor(private readonly before: Session) {
    ({
      cursor: this.cursor, events: this.events, agent: this.agent, usage: this.usage,
      usageByAgent: this.usageByAgent, handoffs: this.handoffs,
    } = before);
  }

  item(key: string): Item | null {
    const place = (this.places ?? this.before.places).get(key);
    return place === undefined ? null : ((this.items ?? this.before.items)[place] ?? null);
  }

  /** In its place, or at the end when it is new. */
  put(item: Item): void {
    this.items ??= [...this.before.items];
    const place = (this.places ?? this.before.places).get(item.key);
    if (place !== undefined) {
      this.items[place] = item;
      return;
    }
    this.places ??= new Map(this.before.places);
    this.places.set(item.key, this.items.length);
    this.items.push(item);
  }

  run(id: string | null): Run | null {
    const place = id === null ? undefined : (this.runPlaces ?? this.before.runPlaces).get(id);
    return place === undefined ? null : ((this.runs ?? this.before.runs)[place] ?? null);
  }

  putRun(run: Run): void {
    this.runs ??= [...this.before.runs];
    const place = (this.runPlaces ?? this.before.runPlaces).get(run.id);
    if (place !== undefined) {
      this.runs[place] = run;
      return;
    }
    this.runPlaces ??= new Map(this.before.runPlaces);
    this.runPlaces.set(run.id, this.runs.length);
    this.runs.push(run);
  }

  putSpan(runId: string | null, span: Span): void {
    const run = this.run(runId);
    if (run === null) return;
    const others = run.spans.filter((one) => one.key !== span.key);
    this.putRun({ ...run, spans: [...others, span] });
  }

  /** The model's part of a turn: from the end of what came before it, to its last word or its first call. */
  putTurn(runId: string | null, key: string, agent: string | null, to: number | null): void {
    const run = this.run(runId);
    if (run === null) return;
    const known = run.spans.find((span) => span.key === key);
    const from = known?.from ?? Math.max(run.from, ...run.spans.map((span) => span.to ?? 0));
    this.putSpan(runId, { key, kind: "answer", name: "model", agent, from, to, failed: false });
  }

  hasSpan(runId: string | null, key: string): boolean {
    return this.run(runId)?.spans.some((span) => span.key === key) ?? false;
  }

  /** Ends what a run left open, as when it was stopped. */
  closeItemsOf(runId: string): void {
    const items = this.items ?? this.before.items;
    for (let place = items.length - 1; place >= 0; place -= 1) {
      const item = items[place];
      if (item === undefined || (item.kind === "user" && item.runId === runId)) return;
      if (item.kind === "answer" && item.runId === runId && item.streaming) this.put({ ...item, streaming: false });
      if (item.kind === "tool" && item.runId === runId && item.status === "running") this.put({ ...item, status: "cut" });
      if (item.kind === "approval" && item.runId === runId && item.status === "pending") this.put({ ...item, status: "stopped" });
    }
  }

  addClientId(id: string): void {
    this.clientIds ??= new Set(this.before.clientIds);
    this.clientIds.add(id);
  }

  done(): Session {
    const { before } = this;
    return {
      cursor: this.cursor,
      events: this.events,
      items: this.items ?? before.items,
      places: this.places ?? before.places,
      runs: this.runs ?? before.runs,
      runPlaces: this.runPlaces ?? before.runPlaces,
      clientIds: this.clientIds ?? before.clientIds,
      agent: this.agent,
      usage: this.usage,
      usageByAgent: this.usageByAgent,
      handoffs: this.handoffs,
    };
  }
}
