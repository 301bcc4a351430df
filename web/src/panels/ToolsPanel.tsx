// The tools of the active agent. Each can be run manually; its last result stays visible.
import { type FormEvent, type ReactElement, useState } from "react";
import type { Tool, ToolResult } from "../api/types";
import { useObservable, useSelector } from "../store/observable";
import { Badge, Button, ErrorMessage, Hint, LongText, Spinner } from "../ui/common";
import { useApp } from "../ui/context";
import { formatDuration, prettyJson } from "../ui/format";
import { Icon } from "../ui/icons";
import { useAction } from "../ui/requests";
import type { PanelProps } from "./Details";
import { type FieldTexts, type FormField, formFields, parseArguments } from "./schemaForm";

export function ToolsPanel({ conversation, session }: PanelProps): ReactElement {
  const app = useApp();
  const team = useObservable(app.team);
  const active = useSelector(session, (now) => now.activeAgent);
  const hasEvents = useSelector(session, (now) => now.eventCount > 0);
  const agent = team?.agents.find((one) => one.name === (active ?? team.rootAgent));
  if (team === null || agent === undefined) return <Hint>Loading…</Hint>;
  const tools = agent.tools.map((name) => team.tools.find((tool) => tool.name === name) ?? unknownTool(name));
  const id = conversation !== null && hasEvents ? conversation.id : null;
  return (
    <div className="space-y-2 p-3">
      <p className="px-1 text-sm text-muted">The tools that <strong className="font-medium text-ink">{agent.name}</strong> can use.{id === null && " To run one manually, start a conversation."}</p>
      {tools.length === 0 && <Hint>{agent.name} has no tools.</Hint>}
      {tools.map((tool) => <ToolEntry key={`${agent.name}/${tool.name}`} tool={tool} id={id} />)}
    </div>
  );
}

function unknownTool(name: string): Tool {
  return { name, kind: "mcp", description: "The description is available only on the worker.", params_schema: null, agents: [] };
}

function ToolEntry({ tool, id }: { tool: Tool; id: string | null }): ReactElement {
  const app = useApp();
  const [last, setLast] = useState<ToolResult | null>(null);
  const { busy, error, run } = useAction();
  const execute = (args: Record<string, unknown>): void => {
    if (id === null) return;
    app.expectUpdates();
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
        {tool.kind === "builtin" ? <p className="text-sm text-muted">The model provider runs this tool. It cannot be run manually.</p> : <ToolForm tool={tool} busy={busy || id === null} execute={execute} />}
        {error && <ErrorMessage text={error} />}
        {last !== null && <ResultView result={last} />}
      </div>
    </details>
  );
}

function ToolForm({ tool, busy, execute }: { tool: Tool; busy: boolean; execute: (args: Record<string, unknown>) => void }): ReactElement {
  const fields = tool.params_schema === null ? [RAW_ARGUMENTS] : formFields(tool.params_schema);
  const [texts, setTexts] = useState<FieldTexts>({});
  const [errors, setErrors] = useState<FieldTexts>({});
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    const parsed = parseArguments(fields, texts);
    setErrors(parsed.errors);
    const args = tool.params_schema === null ? parsed.args[RAW_ARGUMENTS.name] : parsed.args;
    if (Object.keys(parsed.errors).length === 0) execute((args ?? {}) as Record<string, unknown>);
  };
  return (
    <form onSubmit={submit} noValidate className="space-y-2.5">
      {fields.map((field) => (
        <FieldInput key={field.name} field={field} text={texts[field.name] ?? field.defaultText} error={errors[field.name]} set={(text) => setTexts({ ...texts, [field.name]: text })} />
      ))}
      <Button type="submit" tone="strong" disabled={busy}>Run</Button>
    </form>
  );
}

const RAW_ARGUMENTS: FormField = { name: "arguments", label: "arguments", description: "A JSON object.", type: "json", choices: [], required: false, defaultText: "{}" };
const INPUT_STYLE = "mt-1 w-full rounded-lg border border-line bg-surface px-2.5 py-1.5 text-sm";

function FieldInput({ field, text, error, set }: { field: FormField; text: string; error: string | undefined; set: (text: string) => void }): ReactElement {
  const shared = { value: text, "aria-invalid": error !== undefined, onChange: (event: { target: { value: string } }) => set(event.target.value) };
  if (field.type === "boolean") {
    return <label className="flex items-center gap-2 text-sm"><input type="checkbox" checked={text === "true"} onChange={(event) => set(String(event.target.checked))} /> {field.label}</label>;
  }
  return (
    <label className="block text-sm">
      <span className="font-medium">{field.label}</span>{field.required && <span className="text-faint"> (required)</span>}
      {error && <span role="alert" className="ml-2 text-bad">{error}</span>}
      {field.type === "choice" ? <select {...shared} className={INPUT_STYLE}>{!field.required && <option value="" />}{field.choices.map((one) => <option key={one}>{one}</option>)}</select>
        : field.type === "json" ? <textarea {...shared} rows={3} className={`${INPUT_STYLE} font-mono`} />
        : <input {...shared} inputMode={field.type === "text" ? "text" : "decimal"} className={INPUT_STYLE} />}
      {field.description && <span className="mt-0.5 block text-xs text-faint">{field.description}</span>}
    </label>
  );
}

function ResultView({ result }: { result: ToolResult }): ReactElement {
  return (
    <div>
      <p className="text-xs text-muted">Last result{result.duration_ms !== null && `, ${formatDuration(result.duration_ms)}`}</p>
      <pre tabIndex={0} aria-label="Last result" className={`mt-1 max-h-60 overflow-auto rounded-lg bg-sunken px-3 py-2 font-mono text-xs whitespace-pre-wrap wrap-anywhere ${result.status === "error" ? "text-bad" : ""}`}><LongText text={result.error ?? prettyJson(result.result)} /></pre>
    </div>
  );
}
