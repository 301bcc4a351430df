// What model calls have used in the last days: a bar for each day, and the sums by model.
import { type ReactElement, useState } from "react";
import type { UsageReport } from "../api/types";
import { ErrorMessage, Hint } from "../ui/common";
import { useApp } from "../ui/context";
import { formatNumber } from "../ui/format";
import { useQuery } from "../ui/requests";

type Group = UsageReport["groups"][number];
type Measure = "tokens" | "cost_usd" | "calls";

const MEASURES: readonly (readonly [Measure, string])[] = [["tokens", "Tokens"], ["cost_usd", "Cost"], ["calls", "Calls"]];
const WIDTH = 320;
const HEIGHT = 96;
const GAP = 2;
const DAY_MS = 86_400_000;

export function UsageChart({ refreshKey }: { refreshKey: string }): ReactElement {
  const app = useApp();
  const [measure, setMeasure] = useState<Measure>("tokens");
  const days = useQuery(() => app.api.usageReport("day"), `days/${refreshKey}`);
  const models = useQuery(() => app.api.usageReport("model"), `models/${refreshKey}`);
  const error = days.error ?? models.error;
  if (error) return <ErrorMessage text={error} retry={() => { days.reload(); models.reload(); }} />;
  if (!days.value || !models.value) return <Hint>Loading usage…</Hint>;
  const { total } = days.value;
  return (
    <section aria-label="Usage over time">
      <div className="flex items-center justify-between gap-2">
        <h3 className="text-sm font-medium">All conversations, last {daysOf(days.value).length} days</h3>
        <div role="group" aria-label="Measure" className="flex gap-1">
          {MEASURES.map(([name, label]) => (
            <button key={name} type="button" aria-pressed={measure === name} onClick={() => setMeasure(name)} className={`rounded-md px-2 py-0.5 text-xs ${measure === name ? "bg-accent-soft font-medium text-accent-ink" : "text-muted"}`}>{label}</button>
          ))}
        </div>
      </div>
      <Bars report={days.value} measure={measure} />
      <table className="mt-2 w-full text-sm tabular-nums">
        <thead><tr className="text-left text-xs text-faint"><th scope="col" className="py-1 font-normal">Model</th><th scope="col" className="text-right font-normal">Calls</th><th scope="col" className="text-right font-normal">Tokens</th><th scope="col" className="text-right font-normal">Cost</th></tr></thead>
        <tbody>
          {models.value.groups.map((group) => (
            <tr key={group.model} className="border-t border-line"><td className="py-1 wrap-anywhere">{group.model}</td><td className="text-right">{formatNumber(group.calls)}</td><td className="text-right">{formatNumber(group.tokens)}</td><td className="text-right">{formatCost(group.cost_usd)}</td></tr>
          ))}
        </tbody>
      </table>
      {total.unpriced_calls > 0 && <p className="mt-1 text-xs text-muted">The price of {formatNumber(total.unpriced_calls)} calls is not known.</p>}
      {total.lost_calls > 0 && <p className="mt-1 text-xs text-muted">Not included: about {formatNumber(total.lost_tokens)} tokens of {formatNumber(total.lost_calls)} calls that were lost with their worker.</p>}
    </section>
  );
}

function Bars({ report, measure }: { report: UsageReport; measure: Measure }): ReactElement {
  const days = daysOf(report);
  const byDay = new Map(report.groups.map((group) => [group.day, group]));
  const values = days.map((day) => valueOf(byDay.get(day), measure));
  const top = Math.max(...values, 0);
  const step = WIDTH / days.length;
  const isUnknown = measure === "cost_usd" && report.total.cost_usd === null;
  const shown = (value: number): string => (measure === "cost_usd" ? formatCost(value) : formatNumber(value));
  return (
    <figure className="mt-2">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`${measure} by day, highest ${shown(top)}`} className="h-24 w-full" preserveAspectRatio="none">
        <line x1={0} y1={HEIGHT - 0.5} x2={WIDTH} y2={HEIGHT - 0.5} className="stroke-line" />
        {values.map((value, place) => {
          const height = top === 0 ? 0 : (value / top) * (HEIGHT - 2);
          return <rect key={days[place]} x={place * step + GAP / 2} y={HEIGHT - height} width={Math.max(1, step - GAP)} height={height} className="fill-accent"><title>{`${days[place]}: ${shown(value)}`}</title></rect>;
        })}
      </svg>
      <figcaption className="mt-1 flex justify-between text-xs text-faint tabular-nums"><span>{days[0]}</span><span>{isUnknown ? "no price is known" : `highest day: ${shown(top)}`}</span><span>{days.at(-1)}</span></figcaption>
    </figure>
  );
}

/** The days of a report, also those without usage. */
export function daysOf({ since, until }: Pick<UsageReport, "since" | "until">): string[] {
  const days: string[] = [];
  for (let at = Date.parse(since); at <= Date.parse(until); at += DAY_MS) days.push(new Date(at).toISOString().slice(0, 10));
  return days;
}

function valueOf(group: Group | undefined, measure: Measure): number {
  return group?.[measure] ?? 0;
}

function formatCost(cost: number | null | undefined): string {
  return cost === null || cost === undefined ? "unknown" : `$${cost.toFixed(cost < 1 ? 4 : 2)}`;
}
