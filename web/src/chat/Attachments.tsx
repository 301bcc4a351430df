// Files of a message. A click downloads one; the page never opens it.
import type { ReactElement } from "react";
import type { Attachment } from "../fold/state";
import { Spinner } from "../ui/common";
import { useApp } from "../ui/context";
import { formatBytes } from "../ui/format";
import { Icon } from "../ui/icons";
import { useAction } from "../ui/requests";

const REVOKE_AFTER_MS = 60_000; // the browser has started the download long before

export function Attachments({ files }: { files: readonly Attachment[] }): ReactElement | null {
  if (files.length === 0) return null;
  return <ul aria-label="Files" className="mt-2 flex flex-wrap gap-2">{files.map((file) => <li key={`${file.sha256}/${file.name}`} className="max-w-full"><AttachmentButton file={file} /></li>)}</ul>;
}

const LOOK = "inline-flex max-w-full items-center gap-2 rounded-lg border border-line bg-surface px-3 py-1.5 text-sm text-ink";

function AttachmentButton({ file }: { file: Attachment }): ReactElement {
  const app = useApp();
  const { busy, error, run } = useAction();
  const { sha256, name } = file;
  const about = <><span className="truncate">{name}</span>{file.bytes !== null && <span className="shrink-0 text-xs text-faint">{formatBytes(file.bytes)}</span>}</>;
  if (sha256 === null) return <span className={LOOK}><Icon name="file" size={15} className="text-muted" />{about}</span>;
  const download = (): void => {
    const id = app.current.get()?.id;
    if (id !== undefined) void run(async () => saveFile(await app.api.downloadFile(id, sha256, file.seq), name));
  };
  return (
    <>
      <button type="button" disabled={busy} onClick={download} title={file.mediaType ?? undefined} aria-label={`Download ${name}`} className={`${LOOK} hover:bg-sunken`}>
        {busy ? <Spinner size={15} /> : <Icon name="file" size={15} className="text-muted" />}{about}<Icon name="down" size={14} className="text-muted" />
      </button>
      {error && <p role="alert" className="mt-1 text-xs text-bad">{error}</p>}
    </>
  );
}

/** The file is fetched first because its URL needs the token in a header, which a link cannot send. */
function saveFile(file: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), REVOKE_AFTER_MS);
}
