import { type ReactElement, useEffect, useRef } from "react";
import { IconButton } from "./common";
import { SHORTCUTS } from "./shortcuts";

export function ShortcutHelp({ close }: { close: () => void }): ReactElement {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} onClose={close} aria-labelledby="help-title" className="m-auto w-[min(26rem,92vw)] rounded-2xl border border-line bg-raised p-0 text-ink shadow-xl backdrop:bg-black/40">
      <div className="flex items-center justify-between border-b border-line py-2 pr-2 pl-5">
        <h2 id="help-title" className="font-semibold">Keyboard shortcuts</h2>
        <IconButton icon="close" text="Close" onClick={() => dialog.current?.close()} />
      </div>
      <dl className="grid grid-cols-[1fr_auto] gap-x-6 gap-y-2.5 px-5 py-4 text-sm">
        {SHORTCUTS.map(({ keys, action }) => (
          <div key={keys} className="contents"><dt>{action}</dt><dd><kbd className="rounded-md border border-line bg-sunken px-1.5 py-0.5 font-mono text-xs">{keys}</kbd></dd></div>
        ))}
      </dl>
    </dialog>
  );
}
