// What the models have used, and how much of the conversation they are shown.
import type { ReactElement } from "react";
import type { Usage } from "../fold/state";
import { useCell } from "../store/cell";
import { useAsked } from "../ui/asking";
import { useApp } from "../ui/context";
import { figure } from "../ui/format";
import { Failure, Hint } from "../ui/parts";
import type { PanelProps } from "./Inspector";

export function UsagePanel({ conversation, session: watched }: PanelProps): ReactElement {
  const app = useApp();
  const session = useCell(watched);
  const runs = session.runs.length;
  const shown = useAsked(() => (conversation === null || runs === 0 ? Promise.resolve(null) : app.api.session(conversation.id)), `${conversation?.id}/${runs}`);
  if (conversation === null || session.events === 0) return <Hint>Figures appear with the first answer.</Hint>;
  const last = session.runs.findLast((run) => run.usage !== null);
  return (
    <div className="space-y-5 p-4">
      {shown.problem && <Failure text={shown.problem} again={shown.again} />}
      <Figures title="This conversation" usage={session.usage} />
      <section>
        <h3 className="text-sm font-medium">By agent</h3>
        <table className="mt-1 w-full text-sm tabular-nums">
          <thead><tr className="text-left text-xs text-faint"><th scope="col" className="py-1 font-normal">agent</th><th scope="col" className="text-right font-normal">read</th><th scope="col" className="text-right font-normal">written</th></tr></thead>
          <tbody>
            {Object.entries(session.usageByAgent).map(([name, used]) => (
              <tr key={name} className="border-t border-line"><td className="py-1">{name}</td><td className="text-right">{figure(used.input)}</td><td className="text-right">{figure(used.output)}</td></tr>
            ))}
          </tbody>
        </table>
      </section>
      <section>
        <h3 className="text-sm font-medium">Context</h3>
        <dl className="mt-1 grid grid-cols-[auto_1fr] gap-x-4 gap-y-1 text-sm">
          <Line name="events in the log" value={figure(session.events)} />
          <Line name="runs" value={figure(runs)} />
          {last?.usage && <Line name="read in the last run" value={figure(last.usage.input)} />}
          {last && last.leftOut > 0 && <Line name="oldest runs left out" value={figure(last.leftOut)} />}
          {shown.value?.scenario_id && <Line name="scenario" value={shown.value.scenario_id} />}
          {shown.value?.owner && <Line name="owner" value={shown.value.owner} />}
          <Line name="id" value={conversation.id} />
        </dl>
        {shown.value?.overlay && <><h4 className="mt-3 text-xs text-faint">Said to every agent here</h4><p className="mt-1 rounded-lg bg-sunken px-3 py-2 text-sm whitespace-pre-wrap wrap-anywhere">{shown.value.overlay}</p></>}
      </section>
    </div>
  );
}

function Line({ name, value }: { name: string; value: string }): ReactElement {
  return <><dt className="text-muted">{name}</dt><dd className="text-right wrap-anywhere tabular-nums">{value}</dd></>;
}

function Figures({ title, usage }: { title: string; usage: Usage }): ReactElement {
  const figures = [["tokens", usage.total], ["read", usage.input], ["written", usage.output], ["model calls", usage.requests]] as const;
  return (
    <section aria-label={title} className="grid grid-cols-2 gap-2">
      {figures.map(([name, value]) => (
        <div key={name} className="rounded-xl bg-sunken px-3 py-2.5"><div className="text-xl font-semibold tabular-nums">{figure(value)}</div><div className="text-xs text-muted">{name}</div></div>
      ))}
    </section>
  );
}
