// The message box. It stays open during a run: a message sent then steers the run, or is answered after it.
import { type FormEvent, type KeyboardEvent, memo, type ReactElement, useEffect, useLayoutEffect, useRef, useState } from "react";
import type { Run } from "../fold/state";
import { useObservable } from "../store/observable";
import { hasPending } from "../store/sender";
import { tabStore } from "../store/storage";
import { Spinner } from "../ui/common";
import { useApp } from "../ui/context";
import { plural } from "../ui/format";
import { Icon } from "../ui/icons";
import { useAction } from "../ui/requests";

const TEXT_MAX_CHARS = 500_000; // the server's limit
const STEER_MAX_CHARS = 20_000; // the server's limit; a longer message is answered after the run
const FIELD_MAX_PX = 240;

interface Props {
  run: Run | null;
  /** Whether the run is waiting for an approval. */
  paused: boolean;
  /** Whether a run is about to start. */
  runPending: boolean;
  agent: string | null;
}

export const Composer = memo(function Composer({ run, paused, runPending: awaited, agent }: Props): ReactElement {
  const app = useApp();
  const id = useObservable(app.current)?.id ?? "";
  const [text, setText] = useDraft(id);
  const canSteer = useObservable(app.routes).has("/api/sdk/session/{session_id}/steer");
  const offline = useObservable(app.connectionStatus).state === "offline";
  const tooLong = text.length > TEXT_MAX_CHARS;
  const send = (event?: FormEvent): void => {
    event?.preventDefault();
    if (text.trim() === "" || tooLong) return;
    const isRunning = run !== null || awaited || hasPending(app.sender.pending.get(), id);
    app.send(text, isRunning && canSteer && text.length <= STEER_MAX_CHARS ? "steer" : "message", agent);
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
        <MessageField text={text} setText={setText} press={press} hint={offline ? "Write a message. It is sent when the connection is back." : placeholderText(run, paused, canSteer, agent)} />
        {run !== null && <StopButton run={run} id={id} />}
        <button type="submit" disabled={text.trim() === "" || tooLong} title="Send (Enter)" className="inline-flex h-9 shrink-0 items-center justify-center gap-1.5 rounded-xl px-3 text-sm font-medium bg-accent text-white transition-opacity hover:brightness-110 disabled:bg-sunken disabled:text-faint">
          <Icon name="send" size={16} className="max-sm:hidden" /> {run !== null && canSteer ? "Steer" : "Send"}
        </button>
      </div>
      <p className="mt-1.5 flex h-4 justify-between gap-3 truncate px-1 text-xs text-faint">
        <span className="truncate">{tooLong ? `This message is ${plural(text.length - TEXT_MAX_CHARS, "character")} too long.` : offline ? "No connection: the state of the conversation is not known." : hintText(run, paused, canSteer)}</span>
        <span className="hidden shrink-0 sm:inline">Enter to send, Shift+Enter for a new line</span>
      </p>
    </form>
  );
});

function placeholderText(run: Run | null, paused: boolean, canSteer: boolean, agent: string | null): string {
  if (run === null) return agent === null ? "Message the team" : `Message ${agent}`;
  if (paused) return `${run.agent ?? "The run"} is waiting for your approval`;
  return canSteer ? `Steer ${run.agent ?? "the run"} while it works` : "Write your next message";
}

function hintText(run: Run | null, paused: boolean, canSteer: boolean): string {
  if (run === null) return "";
  if (paused) return "The agent reads this when the run resumes.";
  return canSteer ? "The agent reads this before its next step." : "The agent answers this after the current run.";
}

function MessageField({ text, setText, press, hint }: { text: string; setText: (text: string) => void; press: (event: KeyboardEvent) => void; hint: string }): ReactElement {
  const area = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    const field = area.current;
    if (field === null) return;
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight, FIELD_MAX_PX)}px`;
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
  const { busy, error, run: runAction } = useAction();
  const [stopping, setStopping] = useState<string | null>(null);
  const stop = (): void => {
    setStopping(run.id);
    void runAction(() => app.api.stop(id, "now")).then((done) => (done ? app.expectUpdates() : setStopping(null)));
  };
  const isStopping = stopping === run.id;
  return (
    <button type="button" id="stop" onClick={stop} disabled={busy || isStopping} title={error ?? "Stop (Ctrl+.)"} className="inline-flex h-9 shrink-0 items-center gap-1.5 rounded-xl border border-line px-3 text-sm font-medium hover:bg-sunken disabled:opacity-60">
      {isStopping ? <Spinner /> : <Icon name="stop" size={15} className="max-sm:hidden" />} {error === null ? (isStopping ? "Stopping…" : "Stop") : "Stop failed"}
    </button>
  );
}

/** The unsent text of a conversation. It survives a reload of the tab. */
function useDraft(id: string): [string, (text: string) => void] {
  const name = `draft.${id}`;
  const [text, setText] = useState(() => tabStore.get(name) ?? "");
  useEffect(() => setText(tabStore.get(name) ?? ""), [name]);
  return [
    text,
    (next) => {
      tabStore.set(name, next === "" ? null : next);
      setText(next);
    },
  ];
}
