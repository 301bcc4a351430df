// Where one writes. It stays open while a run is under way: what is sent then steers it, or waits for its turn.
import { type FormEvent, type KeyboardEvent, memo, type ReactElement, useEffect, useLayoutEffect, useRef, useState } from "react";
import type { Run } from "../fold/state";
import { useCell } from "../store/cell";
import { keptHere } from "../store/kept";
import { isOnItsWay } from "../store/outgoing";
import { useDoing } from "../ui/asking";
import { useApp } from "../ui/context";
import { Icon } from "../ui/icons";
import { Spinner } from "../ui/parts";

const TEXT_MAX_CHARS = 500_000; // the server's limit
const STEER_MAX_CHARS = 20_000; // likewise; what is longer waits for its turn
const HIGHEST_PX = 240;

interface Props {
  run: Run | null;
  /** Whether the run waits for a person. */
  paused: boolean;
  /** Whether a run is about to begin. */
  awaited: boolean;
  agent: string | null;
}

export const Composer = memo(function Composer({ run, paused, awaited, agent }: Props): ReactElement {
  const app = useApp();
  const id = useCell(app.current)?.id ?? "";
  const [text, setText] = useDraft(id);
  const canSteer = useCell(app.routes).has("/api/sdk/session/{session_id}/steer");
  const tooLong = text.length > TEXT_MAX_CHARS;
  const send = (event?: FormEvent): void => {
    event?.preventDefault();
    if (text.trim() === "" || tooLong) return;
    const begun = run !== null || awaited || isOnItsWay(app.sender.list.get(), id);
    app.say(text, begun && canSteer && text.length <= STEER_MAX_CHARS ? "steer" : "message", agent);
    setText("");
  };
  const press = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    event.preventDefault();
    send();
  };
  return (
    <form onSubmit={send} className="mx-auto w-full max-w-3xl px-4 pb-[max(0.9rem,env(safe-area-inset-bottom))] sm:px-6">
      <div className="flex items-end gap-2 rounded-2xl border border-line bg-surface py-2 pr-2 pl-4 shadow-sm focus-within:border-accent">
        <Field text={text} setText={setText} press={press} hint={hintOf(run, paused, canSteer, agent)} />
        {run !== null && <StopButton run={run} id={id} />}
        <button type="submit" disabled={text.trim() === "" || tooLong} aria-label={run !== null && canSteer ? "Steer" : "Send"} title="Send (Enter)" className="inline-flex size-9 shrink-0 items-center justify-center rounded-xl bg-accent text-white transition-opacity hover:brightness-110 disabled:bg-sunken disabled:text-faint">
          <Icon name="send" size={18} />
        </button>
      </div>
      <p className="mt-1.5 flex h-4 justify-between gap-3 truncate px-1 text-xs text-faint">
        <span className="truncate">{tooLong ? `Too long by ${text.length - TEXT_MAX_CHARS} characters.` : noteOf(run, paused, canSteer)}</span>
        <span className="hidden shrink-0 sm:inline">Enter sends, Shift+Enter breaks the line</span>
      </p>
    </form>
  );
});

function hintOf(run: Run | null, paused: boolean, canSteer: boolean, agent: string | null): string {
  if (run === null) return agent === null ? "Message the team" : `Message ${agent}`;
  if (paused) return `${run.agent ?? "The run"} waits for your decision`;
  return canSteer ? `Steer ${run.agent ?? "the run"} while it works` : "Write on: it is answered next";
}

function noteOf(run: Run | null, paused: boolean, canSteer: boolean): string {
  if (run === null) return "";
  if (paused) return "What you write is seen when it goes on.";
  return canSteer ? "Seen before the model's next step." : "A run is under way; your message waits for its turn.";
}

function Field({ text, setText, press, hint }: { text: string; setText: (text: string) => void; press: (event: KeyboardEvent) => void; hint: string }): ReactElement {
  const area = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    const field = area.current;
    if (field === null) return;
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight, HIGHEST_PX)}px`;
  }, [text]);
  return (
    <textarea
      ref={area} id="composer" rows={1} value={text} aria-label="Message" placeholder={hint} onKeyDown={press} onChange={(event) => setText(event.target.value)}
      className="max-h-60 min-h-9 flex-1 resize-none bg-transparent py-1.5 leading-6 outline-none placeholder:overflow-hidden placeholder:text-ellipsis placeholder:whitespace-nowrap placeholder:text-faint"
    />
  );
}

function StopButton({ run, id }: { run: Run; id: string }): ReactElement {
  const app = useApp();
  const { busy, problem, run: doing } = useDoing();
  const [stopping, setStopping] = useState<string | null>(null);
  const stop = (): void => {
    setStopping(run.id);
    void doing(() => app.api.stop(id, "now")).then((done) => (done ? app.hurry() : setStopping(null)));
  };
  const told = stopping === run.id;
  return (
    <button type="button" id="stop" onClick={stop} disabled={busy || told} title={problem ?? "Stop (Ctrl+.)"} className="inline-flex h-9 shrink-0 items-center gap-1.5 rounded-xl border border-line px-3 text-sm font-medium hover:bg-sunken disabled:opacity-60">
      {told ? <Spinner /> : <Icon name="stop" size={15} />} {problem === null ? (told ? "Stopping" : "Stop") : "Stop failed"}
    </button>
  );
}

/** What is written here and not sent yet, kept per conversation. */
function useDraft(id: string): [string, (text: string) => void] {
  const name = `draft.${id}`;
  const [text, setText] = useState(() => keptHere.get(name) ?? "");
  useEffect(() => setText(keptHere.get(name) ?? ""), [name]);
  return [
    text,
    (next) => {
      keptHere.set(name, next === "" ? null : next);
      setText(next);
    },
  ];
}
