// A session state under construction. Its lists are copied once per batch of events, and only those that change: events
// arrive by the thousand, and unchanged parts must stay the same objects so that components are not drawn again.
import type { LogItem, Run, SessionState, Span } from "./state";

export class SessionBuilder {
  cursor: number;
  eventCount: number;
  activeAgent: string | null;
  usage: SessionState["usage"];
  usageByAgent: SessionState["usageByAgent"];
  handoffs: SessionState["handoffs"];
  private items: LogItem[] | null = null;
  private itemIndex: Map<string, number> | null = null;
  private runs: Run[] | null = null;
  private runIndex: Map<string, number> | null = null;
  private clientIds: Set<string> | null = null;

  constructor(private readonly before: SessionState) {
    ({
      cursor: this.cursor, eventCount: this.eventCount, activeAgent: this.activeAgent, usage: this.usage,
      usageByAgent: this.usageByAgent, handoffs: this.handoffs,
    } = before);
  }

  getItem(key: string): LogItem | null {
    const place = (this.itemIndex ?? this.before.itemIndex).get(key);
    return place === undefined ? null : ((this.items ?? this.before.items)[place] ?? null);
  }

  /** Replace the item with the same key, or append the item. */
  putItem(item: LogItem): void {
    this.items ??= [...this.before.items];
    const place = (this.itemIndex ?? this.before.itemIndex).get(item.key);
    if (place !== undefined) {
      this.items[place] = item;
      return;
    }
    this.itemIndex ??= new Map(this.before.itemIndex);
    this.itemIndex.set(item.key, this.items.length);
    this.items.push(item);
  }

  removeItems(gone: (item: LogItem) => boolean): void {
    this.items = (this.items ?? this.before.items).filter((item) => !gone(item));
    this.itemIndex = new Map(this.items.map((item, place) => [item.key, place]));
  }

  getRun(id: string | null): Run | null {
    const place = id === null ? undefined : (this.runIndex ?? this.before.runIndex).get(id);
    return place === undefined ? null : ((this.runs ?? this.before.runs)[place] ?? null);
  }

  putRun(run: Run): void {
    this.runs ??= [...this.before.runs];
    const place = (this.runIndex ?? this.before.runIndex).get(run.id);
    if (place !== undefined) {
      this.runs[place] = run;
      return;
    }
    this.runIndex ??= new Map(this.before.runIndex);
    this.runIndex.set(run.id, this.runs.length);
    this.runs.push(run);
  }

  putSpan(runId: string | null, span: Span): void {
    const run = this.getRun(runId);
    if (run === null) return;
    const others = run.spans.filter((one) => one.key !== span.key);
    this.putRun({ ...run, spans: [...others, span] });
  }

  /** The model's part of a turn: from the end of the previous span to the end of the answer or the first tool call. */
  putModelSpan(runId: string | null, key: string, agent: string | null, to: number | null): void {
    const run = this.getRun(runId);
    if (run === null) return;
    const known = run.spans.find((span) => span.key === key);
    const from = known?.startedAt ?? Math.max(run.startedAt, ...run.spans.map((span) => span.endedAt ?? 0));
    this.putSpan(runId, { key, kind: "answer", name: "model", agent, startedAt: from, endedAt: to, failed: false });
  }

  hasSpan(runId: string | null, key: string): boolean {
    return this.getRun(runId)?.spans.some((span) => span.key === key) ?? false;
  }

  /** Mark that a run, and the subagents that this conversation shows with it, do not wait for a budget any more. */
  closeBudgets(runId: string | null, status: "resumed" | "stopped"): void {
    for (const item of this.items ?? this.before.items) {
      if (item.kind === "budget" && item.status === "waiting" && (item.runId === runId || item.runId === null)) this.putItem({ ...item, status });
    }
  }

  /** Close the items that a run left open, for example because it was stopped. */
  closeOpenItems(runId: string): void {
    this.closeBudgets(runId, "stopped");
    const items = this.items ?? this.before.items;
    for (let place = items.length - 1; place >= 0; place -= 1) {
      const item = items[place];
      if (item === undefined || (item.kind === "user" && item.runId === runId)) return;
      if (item.kind === "answer" && item.runId === runId && item.streaming) this.putItem({ ...item, streaming: false });
      if (item.kind === "tool" && item.runId === runId && item.status === "running") this.putItem({ ...item, status: "interrupted" });
      if (item.kind === "approval" && item.runId === runId && item.status === "pending") this.putItem({ ...item, status: "stopped" });
    }
  }

  addClientId(id: string): void {
    this.clientIds ??= new Set(this.before.clientIds);
    this.clientIds.add(id);
  }

  build(): SessionState {
    const { before } = this;
    return {
      cursor: this.cursor,
      eventCount: this.eventCount,
      items: this.items ?? before.items,
      itemIndex: this.itemIndex ?? before.itemIndex,
      runs: this.runs ?? before.runs,
      runIndex: this.runIndex ?? before.runIndex,
      clientIds: this.clientIds ?? before.clientIds,
      activeAgent: this.activeAgent,
      usage: this.usage,
      usageByAgent: this.usageByAgent,
      handoffs: this.handoffs,
    };
  }
}
