// The tools that the active agent may use; each can be run by hand, and its last result stays in sight.
import { type FormEvent, type ReactElement, useState } from "react";
import type { Tool, ToolDone } from "../api/shapes";
import { useCell, usePart } from "../store/cell";
import { useDoing } from "../ui/asking";
import { useApp } from "../ui/context";
import { duration, pretty } from "../ui/format";
import { Icon } from "../ui/icons";
import { Badge, Button, Failure, Hint, Spinner } from "../ui/parts";
import type { PanelProps } from "./Inspector";
import { argumentsOf, type Field, fieldsOf, type Texts } from "./schema";

export function ToolsPanel({ conversation, session }: PanelProps): ReactElement {
  const app = useApp();
  const team = useCell(app.team);
  const active = usePart(session, (now) => now.agent);
  const begun = usePart(session, (now) => now.events > 0);
  const agent = team?.agents.find((one) => one.name === (active ?? team.root));
  if (team === null || agent === undefined) return <Hint>Loading…</Hint>;
  const tools = agent.tools.map((name) => team.tools.find((tool) => tool.name === name) ?? unknownTool(name));
  const id = conversation !== null && begun ? conversation.id : null;
  return (
    <div className="space-y-2 p-3">
      <p className="px-1 text-sm text-muted">What <strong className="font-medium text-ink">{agent.name}</strong> may use, and nothing else.{id === null && " Begin a conversation to run one by hand."}</p>
      {tools.length === 0 && <Hint>{agent.name} has no tools.</Hint>}
      {tools.map((tool) => <ToolEntry key={`${agent.name}/${tool.name}`} tool={tool} id={id} />)}
    </div>
  );
}

function unknownTool(name: string): Tool {
  return { name, kind: "mcp", description: "Only the worker knows more about it.", params_schema: null, agents: [] };
}

function ToolEntry({ tool, id }: { tool: Tool; id: string | null }): ReactElement {
  const app = useApp();
  const [last, setLast] = useState<ToolDone | null>(null);
  const { busy, problem, run } = useDoing();
  const work = (args: Record<string, unknown>): void => {
    if (id === null) return;
    app.hurry();
    void run(async () => setLast(await app.api.runTool(id, tool.name, args)));
  };
  return (
    <details className="group rounded-xl border border-line open:pb-3">
      <summary className="flex cursor-pointer list-none items-center gap-2 px-3 py-2.5 text-sm [&::-webkit-details-marker]:hidden">
        <Icon name="chevron" size={14} className="text-faint transition-transform group-open:rotate-90" />
        <span className="min-w-0 flex-1 truncate font-mono text-[13px]">{tool.name}</span>
        {busy ? <Badge tone="accent"><Spinner size={11} /> Running</Badge> : last !== null && <Badge tone={last.status === "success" ? "good" : "bad"}>{last.status === "success" ? "Done" : "Failed"}</Badge>}
        {tool.kind !== "custom" && <Badge>{tool.kind === "builtin" ? "built in" : "MCP"}</Badge>}
      </summary>
      <div className="space-y-3 px-3">
        {tool.description && <p className="text-sm text-muted">{tool.description}</p>}
        {tool.kind === "builtin" ? <p className="text-sm text-muted">The provider runs it in the middle of an answer; it cannot be run by hand.</p> : <ToolForm tool={tool} busy={busy || id === null} work={work} />}
        {problem && <Failure text={problem} />}
        {last !== null && <Result done={last} />}
      </div>
    </details>
  );
}

function ToolForm({ tool, busy, work }: { tool: Tool; busy: boolean; work: (args: Record<string, unknown>) => void }): ReactElement {
  const fields = tool.params_schema === null ? [RAW] : fieldsOf(tool.params_schema);
  const [texts, setTexts] = useState<Texts>({});
  const [wrong, setWrong] = useState<Texts>({});
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    const found = argumentsOf(fields, texts);
    setWrong(found.wrong);
    const args = tool.params_schema === null ? found.args[RAW.name] : found.args;
    if (Object.keys(found.wrong).length === 0) work((args ?? {}) as Record<string, unknown>);
  };
  return (
    <form onSubmit={submit} noValidate className="space-y-2.5">
      {fields.map((field) => (
        <Input key={field.name} field={field} text={texts[field.name] ?? field.first} wrong={wrong[field.name]} set={(text) => setTexts({ ...texts, [field.name]: text })} />
      ))}
      <Button type="submit" tone="strong" disabled={busy}>Run</Button>
    </form>
  );
}

const RAW: Field = { name: "arguments", label: "arguments", about: "As JSON.", sort: "json", choices: [], required: false, first: "{}" };
const BOX = "mt-1 w-full rounded-lg border border-line bg-surface px-2.5 py-1.5 text-sm";

function Input({ field, text, wrong, set }: { field: Field; text: string; wrong: string | undefined; set: (text: string) => void }): ReactElement {
  const shared = { value: text, "aria-invalid": wrong !== undefined, onChange: (event: { target: { value: string } }) => set(event.target.value) };
  if (field.sort === "yes") {
    return <label className="flex items-center gap-2 text-sm"><input type="checkbox" checked={text === "true"} onChange={(event) => set(String(event.target.checked))} /> {field.label}</label>;
  }
  return (
    <label className="block text-sm">
      <span className="font-medium">{field.label}</span>{field.required && <span className="text-faint"> (needed)</span>}
      {wrong && <span role="alert" className="ml-2 text-bad">{wrong}</span>}
      {field.sort === "choice" ? <select {...shared} className={BOX}>{!field.required && <option value="" />}{field.choices.map((one) => <option key={one}>{one}</option>)}</select>
        : field.sort === "json" ? <textarea {...shared} rows={3} className={`${BOX} font-mono`} />
        : <input {...shared} inputMode={field.sort === "text" ? "text" : "decimal"} className={BOX} />}
      {field.about && <span className="mt-0.5 block text-xs text-faint">{field.about}</span>}
    </label>
  );
}

function Result({ done }: { done: ToolDone }): ReactElement {
  return (
    <div>
      <p className="text-xs text-muted">Last result{done.duration_ms !== null && `, ${duration(done.duration_ms)}`}</p>
      <pre tabIndex={0} aria-label="Last result" className={`mt-1 max-h-60 overflow-auto rounded-lg bg-sunken px-3 py-2 font-mono text-xs whitespace-pre-wrap wrap-anywhere ${done.status === "error" ? "text-bad" : ""}`}>{done.error ?? pretty(done.result)}</pre>
    </div>
  );
}
