// Each run as a timeline of model calls and tool calls.
import { type ReactElement, useEffect, useState } from "react";
import type { Run, Span } from "../fold/state";
import { useSelector } from "../store/observable";
import { Badge, Hint } from "../ui/common";
import { useIsStale } from "../ui/context";
import { formatDuration, formatNumber, formatTime, plural } from "../ui/format";
import type { PanelProps } from "./Details";

const RUNS_SHOWN = 30;
const BAR_MIN_PERCENT = 0.8;
const REFRESH_MS = 500;

const TONES = { running: "accent", finished: "good", failed: "bad", stopped: "plain" } as const;

export function TimelinePanel({ session }: PanelProps): ReactElement {
  const all = useSelector(session, (now) => now.runs);
  const runs = all.slice(-RUNS_SHOWN).reverse();
  const stale = useIsStale();
  const now = useNow(!stale && runs.some((run) => run.endedAt === null));
  if (runs.length === 0) return <Hint>No runs yet.</Hint>;
  return (
    <ol className="space-y-2 p-3">
      {runs.map((run) => <RunEntry key={run.id} run={run} now={now} stale={stale} />)}
      {all.length > RUNS_SHOWN && <li className="px-1 text-xs text-faint">Showing the last {RUNS_SHOWN} of {formatNumber(all.length)} runs.</li>}
    </ol>
  );
}

function RunEntry({ run, now, stale }: { run: Run; now: number; stale: boolean }): ReactElement {
  const end = run.endedAt ?? now;
  const totalMs = Math.max(1, end - run.startedAt);
  return (
    <li className="rounded-xl border border-line p-3">
      <div className="flex items-center gap-2 text-sm">
        <span className="min-w-0 flex-1 truncate"><strong className="font-medium">{run.agent ?? "agent"}</strong> <span className="text-faint">{formatTime(run.startedAt)}</span></span>
        {run.kind === "tool" && <Badge>manual</Badge>}
        {run.attempt > 1 && <Badge tone="warn">attempt {run.attempt}</Badge>}
        <span className="text-xs text-muted tabular-nums">{formatDuration(totalMs)}</span>
        {stale && run.status === "running" ? <Badge tone="warn">not complete</Badge> : <Badge tone={TONES[run.status]}>{run.status}</Badge>}
      </div>
      <ul className="mt-2 space-y-1">
        {run.spans.map((span) => <SpanBar key={span.key} span={span} from={run.startedAt} totalMs={totalMs} now={now} />)}
      </ul>
      {run.omittedRuns > 0 && <p className="mt-2 text-xs text-warn">Not sent to the model: the oldest {plural(run.omittedRuns, "run")}.</p>}
    </li>
  );
}

function SpanBar({ span, from, totalMs, now }: { span: Span; from: number; totalMs: number; now: number }): ReactElement {
  const durationMs = Math.max(0, (span.endedAt ?? now) - span.startedAt);
  const left = Math.min(100 - BAR_MIN_PERCENT, (100 * (span.startedAt - from)) / totalMs);
  const width = Math.min(100 - left, Math.max(BAR_MIN_PERCENT, (100 * durationMs) / totalMs));
  const colour = span.failed ? "bg-bad" : span.kind === "tool" ? "bg-warn" : "bg-accent";
  return (
    <li className="grid grid-cols-[7rem_1fr_3.5rem] items-center gap-2 text-xs">
      <span className="truncate text-muted" title={span.name}>{span.name}</span>
      <span aria-hidden="true" className="relative h-2 rounded-full bg-sunken"><span className={`absolute inset-y-0 rounded-full ${colour}`} style={{ left: `${left}%`, width: `${width}%` }} /></span>
      <span className="text-right text-faint tabular-nums">{formatDuration(durationMs)}</span>
    </li>
  );
}

function useNow(moving: boolean): number {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    if (!moving) return;
    const timer = setInterval(() => setNow(Date.now()), REFRESH_MS);
    return () => clearInterval(timer);
  }, [moving]);
  return now;
}
