// The files of the next message: choosing, pasting and dropping them, and the list above the message box.
import { type ClipboardEvent, type ReactElement, useEffect, useRef, useState } from "react";
import { useObservable } from "../store/observable";
import type { UploadItem } from "../store/uploads";
import { useApp } from "../ui/context";
import { formatBytes } from "../ui/format";
import { Icon } from "../ui/icons";

export interface AttachedFiles {
  items: readonly UploadItem[];
  /** Whether all files are uploaded. */
  ready: boolean;
  add: (files: readonly File[]) => void;
  paste: (event: ClipboardEvent) => void;
}

export function useAttachedFiles(id: string): AttachedFiles {
  const app = useApp();
  const items = useObservable(app.uploads.items).filter((one) => one.sessionId === id);
  const add = (files: readonly File[]): void => app.uploads.add(id, files);
  return {
    items,
    ready: items.every((one) => one.file !== null),
    add,
    paste: (event) => {
      const files = [...event.clipboardData.files];
      if (files.length === 0) return;
      event.preventDefault();
      add(files);
    },
  };
}

export function AttachButton({ add }: { add: AttachedFiles["add"] }): ReactElement {
  const input = useRef<HTMLInputElement>(null);
  return (
    <>
      <input
        ref={input} type="file" multiple hidden aria-label="Files to attach"
        onChange={(event) => {
          add([...(event.target.files ?? [])]);
          event.target.value = ""; // so that the same file can be chosen again
        }}
      />
      <button type="button" onClick={() => input.current?.click()} title="Attach files. You can also paste or drop them." className="inline-flex h-9 shrink-0 items-center gap-1.5 rounded-xl px-2 text-sm font-medium text-muted hover:bg-sunken hover:text-ink">
        <Icon name="clip" size={17} /> <span className="max-sm:sr-only">Attach</span>
      </button>
    </>
  );
}

export function AttachedList({ items }: { items: readonly UploadItem[] }): ReactElement | null {
  if (items.length === 0) return null;
  return <ul aria-label="Attached files" className="mb-2 flex flex-wrap gap-2">{items.map((item) => <li key={item.key} className="max-w-full"><AttachedItem item={item} /></li>)}</ul>;
}

function AttachedItem({ item }: { item: UploadItem }): ReactElement {
  const app = useApp();
  const percent = Math.round(item.progress * 100);
  const [broken, setBroken] = useState(false); // a file that calls itself an image need not be one
  return (
    <div className={`relative flex items-center gap-2 overflow-hidden rounded-lg border bg-surface py-1.5 pr-1.5 pl-2 text-sm ${item.error === null ? "max-w-72 border-line" : "border-bad"}`}>
      {item.preview === null || broken ? <Icon name="file" size={18} className="text-muted" /> : <img src={item.preview} alt="" onError={() => setBroken(true)} className="size-8 shrink-0 rounded object-cover" />}
      <span className="min-w-0 flex-1">
        <span className="block truncate">{item.name}</span>
        {item.error !== null ? <span role="alert" className="block text-xs text-bad wrap-anywhere">{item.error}</span> : (
          <span className="block text-xs text-faint">{item.file === null ? `Uploading… ${percent} %` : formatBytes(item.bytes)}</span>
        )}
      </span>
      {item.retryable && <button type="button" onClick={() => app.uploads.retry(item)} className="shrink-0 text-xs font-medium text-accent-ink underline">Try again</button>}
      <button type="button" onClick={() => app.uploads.remove(item.key)} aria-label={`Remove ${item.name}`} title="Remove" className="shrink-0 rounded p-1 text-muted hover:bg-sunken hover:text-ink"><Icon name="close" size={14} /></button>
      {item.file === null && item.error === null && <progress value={percent} max={100} aria-label={`Upload of ${item.name}`} className="absolute inset-x-0 bottom-0 h-0.5 w-full appearance-none [&::-webkit-progress-bar]:bg-transparent [&::-webkit-progress-value]:bg-accent" />}
    </div>
  );
}

/** Takes files that are dropped anywhere on the page. Without it, the browser would leave the page for the file. */
export function DropTarget({ add }: { add: AttachedFiles["add"] }): ReactElement | null {
  const [over, setOver] = useState(false);
  const addFiles = useRef(add);
  addFiles.current = add;
  useEffect(() => {
    const hasFiles = (event: DragEvent): boolean => event.dataTransfer?.types.includes("Files") ?? false;
    const onDrag = (event: DragEvent): void => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setOver(event.type !== "dragleave" || event.relatedTarget !== null);
    };
    const onDrop = (event: DragEvent): void => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setOver(false);
      addFiles.current([...(event.dataTransfer?.files ?? [])]);
    };
    for (const type of ["dragenter", "dragover", "dragleave"] as const) window.addEventListener(type, onDrag);
    window.addEventListener("drop", onDrop);
    return () => {
      for (const type of ["dragenter", "dragover", "dragleave"] as const) window.removeEventListener(type, onDrag);
      window.removeEventListener("drop", onDrop);
    };
  }, []);
  if (!over) return null;
  return (
    <div className="pointer-events-none fixed inset-3 z-50 flex items-center justify-center rounded-2xl border-2 border-dashed border-accent bg-surface/85">
      <p className="inline-flex items-center gap-2 text-lg font-medium"><Icon name="clip" /> Drop files to attach them</p>
    </div>
  );
}
