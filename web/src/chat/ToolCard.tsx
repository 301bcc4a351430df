// A tool call, collapsed to one line. A Python block shows its code and whether its messages were sent.
import { type ReactElement, useId, useState } from "react";
import type { PythonBlock, ToolItem } from "../fold/state";
import { CodeBlock } from "../ui/CodeBlock";
import { Badge, CopyButton, LongText, Spinner } from "../ui/common";
import { useIsStale } from "../ui/context";
import { formatDuration, formatJson, prettyJson, summarizeArguments } from "../ui/format";
import { Icon } from "../ui/icons";

export function ToolCard({ item }: { item: ToolItem }): ReactElement {
  const [open, setOpen] = useState(item.block !== null);
  const body = useId();
  return (
    <div className="pb-3 pl-9.5">
      <section aria-label={`Tool ${item.name}`} className="overflow-hidden rounded-xl border border-line bg-surface">
        <button type="button" aria-expanded={open} aria-controls={body} onClick={() => setOpen(!open)} className="flex w-full items-center gap-2.5 px-3 py-2 text-left text-sm hover:bg-sunken">
          <Icon name={item.block === null ? "tool" : "code"} size={16} className="text-muted" />
          <span className="font-medium">{item.block === null ? item.name : "Python"}</span>
          <span className="min-w-0 flex-1 truncate text-muted">{item.block === null ? summarizeArguments(item.args) : item.block.status}</span>
          {item.manual && <Badge>manual</Badge>}
          <StatusBadge item={item} />
          <Icon name="chevron" size={14} className={`text-faint transition-transform ${open ? "rotate-90" : ""}`} />
        </button>
        <div id={body} hidden={!open} className="border-t border-line px-3 py-2.5">
          {open && (item.block === null ? <CallDetails item={item} /> : <BlockDetails block={item.block} item={item} />)}
        </div>
      </section>
    </div>
  );
}

function StatusBadge({ item }: { item: ToolItem }): ReactElement {
  const stale = useIsStale();
  const took = item.durationMs === null ? null : <span className="text-xs text-faint tabular-nums">{formatDuration(item.durationMs)}</span>;
  if (item.status === "running") return stale ? <Badge tone="warn">Not complete, no connection</Badge> : <Badge tone="accent"><Spinner size={11} /> Running</Badge>;
  if (item.status === "interrupted") return <Badge>Interrupted</Badge>;
  if (item.status === "error") return <>{took}<Badge tone="bad">Failed</Badge></>;
  return <>{took}<Badge tone="good"><Icon name="check" size={12} /> Done</Badge></>;
}

function CallDetails({ item }: { item: ToolItem }): ReactElement {
  return (
    <div className="space-y-2.5">
      <TextBlock title="Arguments" text={formatJson(item.args)} />
      {item.result !== null && <TextBlock title="Result" text={prettyJson(item.result)} />}
      {item.error !== null && <TextBlock title="Error" text={item.error} bad />}
    </div>
  );
}

function BlockDetails({ block, item }: { block: PythonBlock; item: ToolItem }): ReactElement {
  const error = item.error ?? block.error;
  return (
    <div className="space-y-2.5">
      <div className="-my-3"><CodeBlock code={block.code} language="python" growing={item.status === "running"} /></div>
      {block.output !== "" && <TextBlock title="Output" text={block.output} bad={!block.ok} />}
      {block.output === "" && error !== null && <TextBlock title="Error" text={error} bad />}
      {block.status !== "" && <HeldSends block={block} />}
    </div>
  );
}

/** The outcome of the messages that the block sent: they are held until it ends, and dropped if it fails. */
function HeldSends({ block }: { block: PythonBlock }): ReactElement {
  const tone = !block.ok ? "bad" : block.failed > 0 ? "warn" : "good";
  return (
    <div className="flex flex-wrap items-center gap-2 text-sm">
      <Badge tone={tone}><Icon name="mail" size={12} /> {block.status}</Badge>
      {block.failures.length > 0 && (
        <ul aria-label="Not sent" className="w-full list-disc space-y-0.5 pl-5 text-sm text-bad">
          {block.failures.map((line, index) => <li key={index} className="wrap-anywhere">{line}</li>)}
        </ul>
      )}
    </div>
  );
}

function TextBlock({ title, text, bad = false }: { title: string; text: string; bad?: boolean }): ReactElement {
  return (
    <div>
      <div className="flex items-center justify-between text-xs font-medium text-muted">
        {title}
        <CopyButton text={() => text} label={`Copy ${title.toLowerCase()}`} />
      </div>
      <pre tabIndex={0} aria-label={title} className={`max-h-72 overflow-auto rounded-lg bg-sunken px-3 py-2 font-mono text-[12.5px] leading-relaxed whitespace-pre-wrap wrap-anywhere ${bad ? "text-bad" : ""}`}><LongText text={text} /></pre>
    </div>
  );
}
