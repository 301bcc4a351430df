// Each run as a bar of time: when the model spoke, when tools worked.
import { type ReactElement, useEffect, useState } from "react";
import type { Run, Span } from "../fold/state";
import { usePart } from "../store/cell";
import { clock, duration, figure } from "../ui/format";
import { Badge, Hint } from "../ui/parts";
import type { PanelProps } from "./Inspector";

const RUNS_SHOWN = 30;
const NARROWEST_PERCENT = 0.8;
const EVERY_MS = 500;

const TONES = { running: "accent", finished: "good", failed: "bad", stopped: "plain" } as const;

export function TimelinePanel({ session }: PanelProps): ReactElement {
  const all = usePart(session, (now) => now.runs);
  const runs = all.slice(-RUNS_SHOWN).reverse();
  const now = useNow(runs.some((run) => run.to === null));
  if (runs.length === 0) return <Hint>Runs appear here, with what took how long.</Hint>;
  return (
    <ol className="space-y-2 p-3">
      {runs.map((run) => <RunEntry key={run.id} run={run} now={now} />)}
      {all.length > RUNS_SHOWN && <li className="px-1 text-xs text-faint">The last {RUNS_SHOWN} of {figure(all.length)} runs.</li>}
    </ol>
  );
}

function RunEntry({ run, now }: { run: Run; now: number }): ReactElement {
  const end = run.to ?? now;
  const whole = Math.max(1, end - run.from);
  return (
    <li className="rounded-xl border border-line p-3">
      <div className="flex items-center gap-2 text-sm">
        <span className="min-w-0 flex-1 truncate"><strong className="font-medium">{run.agent ?? "agent"}</strong> <span className="text-faint">{clock(run.from)}</span></span>
        {run.kind === "tool" && <Badge>by hand</Badge>}
        {run.attempt > 1 && <Badge tone="warn">attempt {run.attempt}</Badge>}
        <span className="text-xs text-muted tabular-nums">{duration(whole)}</span>
        <Badge tone={TONES[run.status]}>{run.status}</Badge>
      </div>
      <ul className="mt-2 space-y-1">
        {run.spans.map((span) => <Bar key={span.key} span={span} from={run.from} whole={whole} now={now} />)}
      </ul>
      {run.leftOut > 0 && <p className="mt-2 text-xs text-warn">The model was not shown the oldest {run.leftOut} runs.</p>}
    </li>
  );
}

function Bar({ span, from, whole, now }: { span: Span; from: number; whole: number; now: number }): ReactElement {
  const took = Math.max(0, (span.to ?? now) - span.from);
  const left = Math.min(100 - NARROWEST_PERCENT, (100 * (span.from - from)) / whole);
  const width = Math.min(100 - left, Math.max(NARROWEST_PERCENT, (100 * took) / whole));
  const colour = span.failed ? "bg-bad" : span.kind === "tool" ? "bg-warn" : "bg-accent";
  return (
    <li className="grid grid-cols-[7rem_1fr_3.5rem] items-center gap-2 text-xs">
      <span className="truncate text-muted" title={span.name}>{span.name}</span>
      <span aria-hidden="true" className="relative h-2 rounded-full bg-sunken"><span className={`absolute inset-y-0 rounded-full ${colour}`} style={{ left: `${left}%`, width: `${width}%` }} /></span>
      <span className="text-right text-faint tabular-nums">{duration(took)}</span>
    </li>
  );
}

function useNow(moving: boolean): number {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    if (!moving) return;
    const timer = setInterval(() => setNow(Date.now()), EVERY_MS);
    return () => clearInterval(timer);
  }, [moving]);
  return now;
}
