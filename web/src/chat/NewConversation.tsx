// The start of a new conversation, with three suggestions that work without an API key and without a network.
import type { ReactElement } from "react";
import type { Team } from "../store/app";
import { useObservable } from "../store/observable";
import { useApp } from "../ui/context";
import { Icon, type IconName } from "../ui/icons";

interface Suggestion {
  icon: IconName;
  title: string;
  about: string;
  text: string;
}

const PYTHON = "run_python";

export function suggestionsFor(team: Team | null): Suggestion[] {
  const tools = new Set(team?.agents.flatMap((agent) => agent.tools) ?? []);
  const root = team?.agents.find((agent) => agent.name === team.rootAgent);
  const other = root?.handoffs[0];
  const suggestions: Suggestion[] = [];
  if (tools.has("weather")) suggestions.push({ icon: "tool", title: "Watch a tool call", about: "The agent looks up the weather.", text: "weather in Oslo" });
  if (other !== undefined) suggestions.push({ icon: "swap", title: "See a handoff", about: `The conversation is handed off to ${other}.`, text: `talk to ${other}` });
  if (root?.tools.includes(PYTHON)) suggestions.push({ icon: "code", title: "Run a Python block", about: "Its messages are sent only if it succeeds.", text: "run a block" });
  suggestions.push({ icon: "list", title: "Get a streamed answer", about: "A list, a table and code, word by word.", text: isScriptedModel(team) ? SCRIPTED_PROMPT : MODEL_PROMPT });
  return suggestions.slice(0, 3);
}

function isScriptedModel(team: Team | null): boolean {
  return team !== null && ["demo", "echo", "unknown"].includes(team.modelKind);
}

const MODEL_PROMPT = "Explain how a web server answers a request: a short list, a small table, and a few lines of Python.";

// A scripted model echoes a prompt that it does not know, so this prompt is the answer to show.
const SCRIPTED_PROMPT = [
  "Here is what a turn looks like:",
  "",
  "1. the model's answer is **recorded**,",
  "2. then its tools run, each result *recorded* too,",
  "3. and only then the next turn begins.",
  "",
  "| record | survives a crash |",
  "|---|---|",
  "| answer | yes |",
  "| tool result | yes |",
  "",
  "```python",
  "with Client() as client:",
  '    sent = client.send("general", "hello")',
  "    print(client.wait(sent).text)",
  "```",
].join("\n");

export function NewConversation(): ReactElement {
  const app = useApp();
  const team = useObservable(app.team);
  return (
    <div className="flex min-h-0 flex-1 flex-col justify-center overflow-y-auto px-4 py-8 sm:px-6">
      <div className="mx-auto w-full max-w-2xl">
        <h2 className="text-2xl font-semibold tracking-tight">What should the team do?</h2>
        <p className="mt-2 max-w-prose text-muted">
          Write a message below. You see every tool call and handoff as it happens, and you can steer or stop the run at any time. Runs continue when you close the page.
        </p>
        <div className="mt-6 grid gap-3 sm:grid-cols-3">
          {team !== null && suggestionsFor(team).map((suggestion) => (
            <button key={suggestion.title} type="button" onClick={() => app.send(suggestion.text, "message", team.rootAgent)} className="flex flex-col items-start gap-1 rounded-xl border border-line bg-surface p-4 text-left transition-colors hover:border-accent">
              <Icon name={suggestion.icon} className="mb-1 text-accent-ink" />
              <span className="font-medium">{suggestion.title}</span>
              <span className="text-sm text-muted">{suggestion.about}</span>
            </button>
          ))}
        </div>
        {team !== null && team.agents.every((agent) => agent.alive === false) && (
          <p role="status" className="mt-6 rounded-lg bg-warn-soft px-4 py-3 text-sm text-warn">No worker is running for these agents. Messages wait until you start one with <code>magent2 worker</code>.</p>
        )}
      </div>
    </div>
  );
}
