// Replacing the last answer: regenerate it, or edit the message that it answers.
import { type FormEvent, type KeyboardEvent, type ReactElement, useRef } from "react";
import type { UserItem } from "../fold/state";
import { newId } from "../store/ids";
import { Button } from "../ui/common";
import { useApp, useHasRoute } from "../ui/context";
import { Icon, type IconName } from "../ui/icons";
import { useAction } from "../ui/requests";

export function TextButton({ icon, label, title, disabled = false, onClick }: { icon: IconName; label: string; title: string; disabled?: boolean; onClick: () => void }): ReactElement {
  return (
    <button type="button" title={title} disabled={disabled} onClick={onClick} className="inline-flex h-6 items-center gap-1 rounded-md px-1.5 font-medium text-muted hover:bg-sunken hover:text-ink disabled:opacity-60">
      <Icon name={icon} size={13} /> {label}
    </button>
  );
}

/** The same key for every click: a request whose response was lost is not made twice. */
export function RegenerateButton(): ReactElement | null {
  const app = useApp();
  const { busy, error, run } = useAction();
  const key = useRef(newId());
  const available = useHasRoute("/api/sdk/session/{session_id}/regenerate");
  const regenerate = (): void => {
    const id = app.current.get()?.id;
    if (id !== undefined) void run(() => app.api.regenerate(id, key.current)).then(() => app.expectUpdates());
  };
  if (!available) return null;
  return (
    <>
      <TextButton icon="retry" label="Regenerate" title="Have this message answered again" disabled={busy} onClick={regenerate} />
      {error && <span role="alert" className="text-bad">{error}</span>}
    </>
  );
}

/** `setText(null)` closes the editor. */
export function MessageEditor({ item, text, setText }: { item: UserItem; text: string; setText: (text: string | null) => void }): ReactElement {
  const app = useApp();
  const { busy, error, run } = useAction();
  const request = useRef({ text: "", clientMessageId: "" });
  const blank = text.trim() === "";
  const send = (event?: FormEvent): void => {
    event?.preventDefault();
    const sessionId = app.current.get()?.id;
    if (blank || sessionId === undefined) return;
    // A repeat after a lost response has the same key. Another text is another request.
    if (request.current.text !== text) request.current = { text, clientMessageId: newId() };
    void run(() => app.api.edit(item.key, { sessionId, ...request.current })).then((done) => {
      app.expectUpdates();
      if (done) setText(null);
    });
  };
  const press = (event: KeyboardEvent): void => {
    if (event.key === "Escape") setText(null);
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    event.preventDefault();
    send();
  };
  return (
    <form onSubmit={send} className="flex flex-col items-end gap-2 pt-2 pb-4">
      <textarea
        autoFocus rows={3} value={text} aria-label="Edit message" onKeyDown={press} onChange={(event) => setText(event.target.value)}
        className="w-[85%] resize-y rounded-2xl border border-accent bg-surface px-4 py-2.5 leading-6 outline-none"
      />
      <div className="flex items-center gap-2 text-sm">
        {error && <span role="alert" className="text-xs text-bad">{error}</span>}
        <Button onClick={() => setText(null)}>Cancel</Button>
        <button type="submit" disabled={busy || blank} className="inline-flex h-9 items-center rounded-xl bg-accent px-3 text-sm font-medium text-white hover:brightness-110 disabled:bg-sunken disabled:text-faint">Send</button>
      </div>
    </form>
  );
}
