// The message box. It stays open during a run: a message sent then steers the run, or is answered after it.
import { type ClipboardEvent, type FormEvent, type KeyboardEvent, memo, type ReactElement, useLayoutEffect, useRef, useState } from "react";
import type { Run } from "../fold/state";
import { useObservable } from "../store/observable";
import { hasPending, type SendMode } from "../store/sender";
import type { UploadItem } from "../store/uploads";
import { Spinner } from "../ui/common";
import { useApp, useHasRoute } from "../ui/context";
import { useDraft } from "../ui/draft";
import { plural } from "../ui/format";
import { Icon } from "../ui/icons";
import { useAction } from "../ui/requests";
import { AttachButton, AttachedList, DropTarget, useAttachedFiles } from "./AttachedFiles";

const TEXT_MAX_CHARS = 500_000; // the server's limit
const STEER_MAX_CHARS = 20_000; // the server's limit; a longer message is answered after the run
const FIELD_MAX_PX = 240;
const REPLACING = "/api/sdk/session/{session_id}/regenerate"; // a server with this route also knows `when_busy`
const MODES: Readonly<Record<SendMode, string>> = { steer: "Steer", message: "Queue", interrupt: "Interrupt" };

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
  const [draft, setDraft] = useDraft(`draft.${id}`);
  const text = draft ?? "";
  const setText = (next: string): void => setDraft(next || null);
  const [chosen, choose] = useDraft(`mode.${id}`);
  const canChoose = useHasRoute(REPLACING);
  const canSteer = useHasRoute("/api/sdk/session/{session_id}/steer");
  const canAttach = useHasRoute("/api/files");
  const files = useAttachedFiles(id);
  const cannotSteer = !canSteer || text.length > STEER_MAX_CHARS || files.items.length > 0; // files come with a message of their own
  const mode: SendMode = chosen === "message" || chosen === "interrupt" ? chosen : cannotSteer ? "message" : "steer";
  const offline = useObservable(app.connectionStatus).state === "offline";
  const tooLong = text.length > TEXT_MAX_CHARS;
  const nothing = text.trim() === "" && files.items.length === 0;
  const send = (event?: FormEvent): void => {
    event?.preventDefault();
    if (nothing || tooLong || !files.ready) return;
    const isRunning = run !== null || awaited || hasPending(app.sender.pending.get(), id);
    app.send(text, isRunning ? mode : "message", agent);
    setText("");
    choose(null);
  };
  const press = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    event.preventDefault();
    send();
  };
  return (
    <form onSubmit={send} className="mx-auto w-full max-w-3xl px-4 pb-[max(0.9rem,env(safe-area-inset-bottom))] sm:px-6">
      {canAttach && <DropTarget add={files.add} />}
      <AttachedList items={files.items} />
      <div className={`flex items-end gap-2 ${run === null ? "" : "max-sm:flex-wrap"} rounded-2xl border border-line bg-surface py-2 pr-2 shadow-sm focus-within:border-accent ${canAttach ? "pl-2" : "pl-4"}`}>
        {canAttach && <AttachButton add={files.add} />}
        <MessageField text={text} setText={setText} press={press} paste={canAttach ? files.paste : undefined} wide={run !== null} hint={offline ? "Write a message. It is sent when the connection is back." : placeholderText(run, paused, mode, agent)} />
        {run !== null && canChoose && <ModeChoice mode={mode} canSteer={canSteer && files.items.length === 0} choose={choose} />}
        {run !== null && <StopButton run={run} id={id} />}
        <button type="submit" disabled={nothing || tooLong || !files.ready} title="Send (Enter)" className="inline-flex h-9 shrink-0 items-center justify-center gap-1.5 rounded-xl px-3 text-sm font-medium bg-accent text-white transition-opacity hover:brightness-110 disabled:bg-sunken disabled:text-faint">
          <Icon name="send" size={16} className="max-sm:hidden" /> {run !== null && mode !== "message" ? MODES[mode] : "Send"}
        </button>
      </div>
      <p className="mt-1.5 flex h-4 justify-between gap-3 truncate px-1 text-xs text-faint">
        <span className="truncate">{tooLong ? `This message is ${plural(text.length - TEXT_MAX_CHARS, "character")} too long.` : offline ? "No connection: the state of the conversation is not known." : fileHint(files.items) ?? hintText(run, paused, mode)}</span>
        <span className="hidden shrink-0 sm:inline">Enter to send, Shift+Enter for a new line</span>
      </p>
    </form>
  );
});

/** What the message does to the run in progress. The choice is for one message. */
function ModeChoice({ mode, canSteer, choose }: { mode: SendMode; canSteer: boolean; choose: (mode: SendMode) => void }): ReactElement {
  const modes = (Object.keys(MODES) as SendMode[]).filter((one) => canSteer || one !== "steer");
  return (
    <select
      id="when-busy" aria-label="While the agent works" title="What your message does while the agent works" value={mode} onChange={(event) => choose(event.target.value as SendMode)}
      className="h-9 shrink-0 rounded-xl border border-line bg-surface px-2 text-sm text-ink hover:bg-sunken max-sm:ml-auto"
    >
      {modes.map((one) => <option key={one} value={one}>{MODES[one]}</option>)}
    </select>
  );
}

function placeholderText(run: Run | null, paused: boolean, mode: SendMode, agent: string | null): string {
  if (run === null) return agent === null ? "Message the team" : `Message ${agent}`;
  if (mode === "interrupt") return `Stop ${run.agent ?? "the run"} and ask something else`;
  if (paused) return `${run.agent ?? "The run"} is waiting for your decision`;
  return mode === "steer" ? `Steer ${run.agent ?? "the run"} while it works` : "Write your next message";
}

function hintText(run: Run | null, paused: boolean, mode: SendMode): string {
  if (run === null) return "";
  if (mode === "interrupt") return "The current run is stopped, and the agent answers this instead.";
  if (mode === "message") return "The agent answers this after the current run.";
  return paused ? "The agent reads this when the run resumes." : "The agent reads this before its next step.";
}

function fileHint(items: readonly UploadItem[]): string | null {
  if (items.some((one) => one.error !== null)) return "Remove the files that could not be uploaded.";
  return items.some((one) => one.file === null) ? "You can send the message when its files are uploaded." : null;
}

interface FieldProps {
  text: string;
  setText: (text: string) => void;
  press: (event: KeyboardEvent) => void;
  paste: ((event: ClipboardEvent) => void) | undefined;
  /** Whether the field has a line of its own on a phone, because the buttons of a run leave no room beside them. */
  wide: boolean;
  hint: string;
}

function MessageField({ text, setText, press, paste, wide, hint }: FieldProps): ReactElement {
  const area = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    const field = area.current;
    if (field === null) return;
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight, FIELD_MAX_PX)}px`;
  }, [text]);
  return (
    <textarea
      ref={area} id="composer" rows={1} value={text} aria-label="Message" placeholder={hint} onKeyDown={press} onPaste={paste} onChange={(event) => setText(event.target.value)}
      className={`max-h-60 min-h-9 flex-1 ${wide ? "max-sm:order-first max-sm:basis-full max-sm:pl-2" : ""} resize-none bg-transparent py-1.5 leading-6 outline-none placeholder:overflow-hidden placeholder:text-ellipsis placeholder:whitespace-nowrap placeholder:text-faint`}
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
