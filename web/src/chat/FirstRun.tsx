// Nothing has been said yet: what this is, and three things to try that need no key and no network.
import type { ReactElement } from "react";
import { useCell } from "../store/cell";
import type { Team } from "../store/app";
import { useApp } from "../ui/context";
import { Icon, type IconName } from "../ui/icons";

interface Idea {
  icon: IconName;
  title: string;
  about: string;
  text: string;
}

const PYTHON = "run_python";

export function ideasFor(team: Team | null): Idea[] {
  const tools = new Set(team?.agents.flatMap((agent) => agent.tools) ?? []);
  const root = team?.agents.find((agent) => agent.name === team.root);
  const other = root?.handoffs[0];
  const ideas: Idea[] = [];
  if (tools.has("weather")) ideas.push({ icon: "tool", title: "Watch a tool at work", about: "The agent looks up the weather.", text: "weather in Oslo" });
  if (other !== undefined) ideas.push({ icon: "swap", title: "See a handoff", about: `The conversation goes over to ${other}.`, text: `talk to ${other}` });
  if (root?.tools.includes(PYTHON)) ideas.push({ icon: "code", title: "Run a Python block", about: "Its messages leave when it ends well.", text: "run a block" });
  ideas.push({ icon: "list", title: "Get an answer that streams", about: "Lists, a table and code, word by word.", text: isScripted(team) ? SAMPLE : ASKED });
  return ideas.slice(0, 3);
}

function isScripted(team: Team | null): boolean {
  return team !== null && ["demo", "echo", "unknown"].includes(team.model);
}

const ASKED = "Explain how a web server answers a request: a short list, a small table, and a few lines of Python.";

// A scripted model echoes what it does not know: this is what it will say.
const SAMPLE = [
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

export function FirstRun(): ReactElement {
  const app = useApp();
  const team = useCell(app.team);
  return (
    <div className="flex min-h-0 flex-1 flex-col justify-center overflow-y-auto px-4 py-8 sm:px-6">
      <div className="mx-auto w-full max-w-2xl">
        <h2 className="text-2xl font-semibold tracking-tight">What should the team do?</h2>
        <p className="mt-2 max-w-prose text-muted">
          Write below. You see every tool, handoff and token as it happens, can steer or stop at any time, and nothing is lost when you close the page.
        </p>
        <div className="mt-6 grid gap-3 sm:grid-cols-3">
          {team !== null && ideasFor(team).map((idea) => (
            <button key={idea.title} type="button" onClick={() => app.say(idea.text, "message", team.root)} className="flex flex-col items-start gap-1 rounded-xl border border-line bg-surface p-4 text-left transition-colors hover:border-accent">
              <Icon name={idea.icon} className="mb-1 text-accent-ink" />
              <span className="font-medium">{idea.title}</span>
              <span className="text-sm text-muted">{idea.about}</span>
            </button>
          ))}
        </div>
        {team !== null && team.agents.every((agent) => agent.alive === false) && (
          <p role="status" className="mt-6 rounded-lg bg-warn-soft px-4 py-3 text-sm text-warn">No worker serves these agents now. Messages wait until one does: <code>magent2 worker</code>.</p>
        )}
      </div>
    </div>
  );
}
