// A budget that is used up: what is used, a field to raise each limit, and a button that stops the run.
import { type FormEvent, type ReactElement, useState } from "react";
import type { BudgetItem, BudgetUse } from "../fold/state";
import { Badge, Button } from "../ui/common";
import { useApp } from "../ui/context";
import { formatDateTime, formatNumber } from "../ui/format";
import { Icon } from "../ui/icons";
import { useAction } from "../ui/requests";

const KINDS: Readonly<Record<string, string>> = { run: "this run", conversation: "this conversation", user: "the user", user_day: "the user today", day: "today" };
const UNITS = { tokens: "tokens", calls: "model calls", cost_usd: "US dollars" } as const;
const OUTCOMES = { warning: "Almost used up", resumed: "Continued", stopped: "No longer needed" } as const;
const RAISE_FACTOR = 2; // the suggested new limit, in what is used: calls that were running may have gone over the old one

type Unit = BudgetUse["units"][number];

export function BudgetCard({ item }: { item: BudgetItem }): ReactElement {
  const waiting = item.status === "waiting";
  const who = item.subagentId === null ? (item.agent ?? "The run") : `The subagent ${item.agent ?? ""}`;
  return (
    <div className="pb-4 pl-9.5">
      <section aria-label="Budget" className={`rounded-xl border px-4 py-3 ${waiting ? "border-accent bg-accent-soft" : "border-line bg-surface"}`}>
        <div className="flex flex-wrap items-center gap-2 text-sm">
          <Icon name="hand" size={17} className="text-accent-ink" />
          <span className="min-w-0 flex-1"><strong className="font-semibold">{who}</strong> {item.status === "warning" ? "has used most of a budget" : "has used up a budget"}</span>
          {item.status === "waiting" ? <Badge tone="strong">Paused</Badge> : <Badge>{OUTCOMES[item.status]}</Badge>}
        </div>
        <ul className="mt-2 space-y-1 text-sm">
          {item.budgets.map((budget) => <li key={`${budget.budget}:${budget.name}`}>{describeBudget(budget)}</li>)}
        </ul>
        {waiting && <p className="mt-2 text-sm text-muted">{item.resumesAt === null ? "Raise the budget to let it continue, or stop the run." : `It continues by itself at ${formatDateTime(item.resumesAt)}. Raise the budget to let it continue now.`}</p>}
        {waiting && item.budgets.map((budget) => <RaiseForm key={`${budget.budget}:${budget.name}`} budget={budget} />)}
        {waiting && <StopButton />}
      </section>
    </div>
  );
}

function describeBudget(budget: BudgetUse): string {
  const parts = budget.units.map((unit) => `${formatUnit(unit, unit.used)} of ${formatUnit(unit, unit.limit)} ${UNITS[unit.unit]}`);
  return `Budget of ${KINDS[budget.budget] ?? budget.budget}: ${parts.join(", ")}`;
}

function formatUnit({ unit }: Unit, value: number): string {
  return unit === "cost_usd" ? value.toFixed(4) : formatNumber(value);
}

function suggestedLimit({ unit, used, limit }: Unit): number {
  const suggested = Math.max(used, limit) * RAISE_FACTOR;
  return unit === "cost_usd" ? Number(suggested.toFixed(4)) || RAISE_FACTOR : Math.max(suggested, RAISE_FACTOR);
}

function RaiseForm({ budget }: { budget: BudgetUse }): ReactElement {
  const app = useApp();
  // Calls that were lost with their worker may count before their usage says so. Then every limit can be raised.
  const used = budget.units.filter((unit) => unit.used >= unit.limit);
  const full = used.length > 0 ? used : budget.units;
  const [texts, setTexts] = useState(() => Object.fromEntries(full.map((unit) => [unit.unit, String(suggestedLimit(unit))])));
  const [raised, setRaised] = useState(false);
  const { busy, error, run } = useAction();
  const limits = Object.fromEntries(full.map((unit) => [unit.unit, Number(texts[unit.unit])]));
  const valid = full.every((unit) => (limits[unit.unit] ?? 0) > Math.max(unit.used, used.length > 0 ? 0 : unit.limit));
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    if (!valid) return;
    void run(() => app.api.raiseBudget(budget.budget, budget.name, limits)).then((done) => {
      setRaised(done);
      app.expectUpdates();
    });
  };
  if (raised) return <p role="status" className="mt-3 text-sm text-muted">You raised the budget of {KINDS[budget.budget] ?? budget.budget}. The run continues as soon as a worker is free.</p>;
  return (
    <form onSubmit={submit} className="mt-3 flex flex-wrap items-center gap-2">
      {full.map(({ unit }) => (
        <label key={unit} className="flex max-w-full items-center gap-2 text-sm whitespace-nowrap">
          New limit
          <input
            type="number" min={0} step={unit === "cost_usd" ? "any" : 1} value={texts[unit] ?? ""} onChange={(event) => setTexts({ ...texts, [unit]: event.target.value })}
            className="w-32 min-w-0 rounded-lg border border-line bg-surface px-3 py-1.5 text-sm tabular-nums"
          />
          {UNITS[unit]}
        </label>
      ))}
      <Button tone="strong" type="submit" disabled={busy || !valid}>Raise the budget</Button>
      {error && <span role="alert" className="w-full text-sm text-bad">{error}</span>}
    </form>
  );
}

function StopButton(): ReactElement {
  const app = useApp();
  const [stopped, setStopped] = useState(false);
  const { busy, error, run } = useAction();
  const stop = (): void => {
    const id = app.current.get()?.id;
    if (id === undefined) return;
    void run(() => app.api.stop(id, "now")).then((done) => {
      setStopped(done);
      app.expectUpdates();
    });
  };
  return (
    <div className="mt-2">
      <Button tone="bad" disabled={busy || stopped} onClick={stop}>{stopped ? "Stopping…" : "Stop the run"}</Button>
      {error && <span role="alert" className="w-full text-sm text-bad">{error}</span>}
    </div>
  );
}
