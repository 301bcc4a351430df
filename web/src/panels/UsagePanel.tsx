// The tokens that the models have used, and how much of the conversation they are sent.
import type { ReactElement } from "react";
import type { Usage } from "../fold/state";
import { useObservable } from "../store/observable";
import { ErrorMessage, Hint } from "../ui/common";
import { useApp } from "../ui/context";
import { formatNumber } from "../ui/format";
import { useQuery } from "../ui/requests";
import type { PanelProps } from "./Details";
import { UsageChart } from "./UsageChart";

export function UsagePanel({ conversation, session: observable }: PanelProps): ReactElement {
  const app = useApp();
  const session = useObservable(observable);
  const runs = session.runs.length;
  const details = useQuery(() => (conversation === null || runs === 0 ? Promise.resolve(null) : app.api.session(conversation.id)), `${conversation?.id}/${runs}`);
  if (conversation === null || session.eventCount === 0) return <Hint>No usage yet.</Hint>;
  const last = session.runs.findLast((run) => run.usage !== null);
  return (
    <div className="space-y-5 p-4">
      {details.error && <ErrorMessage text={details.error} retry={details.reload} />}
      <UsageTotals title="This conversation" usage={session.usage} />
      <section>
        <h3 className="text-sm font-medium">By agent</h3>
        <table className="mt-1 w-full text-sm tabular-nums">
          <thead><tr className="text-left text-xs text-faint"><th scope="col" className="py-1 font-normal">Agent</th><th scope="col" className="text-right font-normal">Input</th><th scope="col" className="text-right font-normal">Output</th></tr></thead>
          <tbody>
            {Object.entries(session.usageByAgent).map(([name, used]) => (
              <tr key={name} className="border-t border-line"><td className="py-1">{name}</td><td className="text-right">{formatNumber(used.inputTokens)}</td><td className="text-right">{formatNumber(used.outputTokens)}</td></tr>
            ))}
          </tbody>
        </table>
      </section>
      <UsageChart refreshKey={`${conversation.id}/${runs}`} />
      <section>
        <h3 className="text-sm font-medium">Context</h3>
        <dl className="mt-1 grid grid-cols-[auto_1fr] gap-x-4 gap-y-1 text-sm">
          <DetailLine name="Events" value={formatNumber(session.eventCount)} />
          <DetailLine name="Runs" value={formatNumber(runs)} />
          {last?.usage && <DetailLine name="Input of the last run" value={formatNumber(last.usage.inputTokens)} />}
          {last && last.omittedRuns > 0 && <DetailLine name="Oldest runs not sent" value={formatNumber(last.omittedRuns)} />}
          {details.value?.scenario_id && <DetailLine name="Scenario" value={details.value.scenario_id} />}
          {details.value?.owner && <DetailLine name="Owner" value={details.value.owner} />}
          <DetailLine name="ID" value={conversation.id} />
        </dl>
        {details.value?.overlay && <><h4 className="mt-3 text-xs text-faint">Extra instructions for every agent</h4><p className="mt-1 rounded-lg bg-sunken px-3 py-2 text-sm whitespace-pre-wrap wrap-anywhere">{details.value.overlay}</p></>}
      </section>
    </div>
  );
}

function DetailLine({ name, value }: { name: string; value: string }): ReactElement {
  return <><dt className="text-muted">{name}</dt><dd className="text-right wrap-anywhere tabular-nums">{value}</dd></>;
}

function UsageTotals({ title, usage }: { title: string; usage: Usage }): ReactElement {
  const figures = [["Total tokens", usage.totalTokens], ["Input tokens", usage.inputTokens], ["Output tokens", usage.outputTokens], ["Model calls", usage.requests]] as const;
  return (
    <section aria-label={title} className="grid grid-cols-2 gap-2">
      {figures.map(([name, value]) => (
        <div key={name} className="rounded-xl bg-sunken px-3 py-2.5"><div className="text-xl font-semibold tabular-nums">{formatNumber(value)}</div><div className="text-xs text-muted">{name}</div></div>
      ))}
    </section>
  );
}
