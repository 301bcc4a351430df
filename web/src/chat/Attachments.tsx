// Files of a message. Pictures are shown. A click downloads any other file; the page never opens it.
import { type ReactElement, useEffect, useState } from "react";
import { ApiError, errorMessage } from "../api/errors";
import type { Attachment } from "../fold/state";
import { Spinner } from "../ui/common";
import { useApp } from "../ui/context";
import { formatBytes } from "../ui/format";
import { Icon } from "../ui/icons";
import { useAction } from "../ui/requests";

const REVOKE_AFTER_MS = 60_000; // the browser has started the download long before
const PICTURES: ReadonlySet<string | null> = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

export function Attachments({ files, atEnd = false }: { files: readonly Attachment[]; atEnd?: boolean }): ReactElement | null {
  if (files.length === 0) return null;
  return <ul aria-label="Files" className={`mt-2 flex flex-wrap gap-2 ${atEnd ? "justify-end" : ""}`}>{files.map((file) => <li key={`${file.fileId ?? file.sha256}/${file.name}`} className="max-w-full"><AttachmentView file={file} /></li>)}</ul>;
}

function AttachmentView({ file }: { file: Attachment }): ReactElement {
  return file.fileId !== null && PICTURES.has(file.mediaType) ? <Picture file={file} fileId={file.fileId} /> : <AttachmentButton file={file} />;
}

const LOOK = "inline-flex max-w-full items-center gap-2 rounded-lg border border-line bg-surface px-3 py-1.5 text-sm text-ink";

/** A picture. It is fetched first because its URL needs the token in a header, which an image cannot send. */
function Picture({ file, fileId }: { file: Attachment; fileId: string }): ReactElement {
  const app = useApp();
  const [url, setUrl] = useState<string | null>(null);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    let made: string | null = null;
    let gone = false;
    app.api.fileContent(fileId).then(
      (content) => {
        if (!gone) setUrl((made = URL.createObjectURL(content)));
      },
      (cause: unknown) => {
        if (!gone) setError(cause instanceof ApiError && cause.status === 404 ? "deleted" : errorMessage(cause));
      },
    );
    return () => {
      gone = true;
      if (made !== null) URL.revokeObjectURL(made);
    };
  }, [app, fileId]);
  if (error !== null) return <span className={LOOK}><Icon name="file" size={15} className="text-muted" /><span className="truncate">{file.name}</span><span className="shrink-0 text-xs text-faint">{error}</span></span>;
  if (url === null) return <span className={`${LOOK} h-40 w-40 justify-center`}><Spinner size={15} /></span>;
  return (
    <a href={url} download={file.name} title={`Download ${file.name}`}>
      <img src={url} alt={file.name} className="h-40 max-w-full min-w-10 rounded-lg border border-line object-contain" />
    </a>
  );
}

function AttachmentButton({ file }: { file: Attachment }): ReactElement {
  const app = useApp();
  const { busy, error, run } = useAction();
  const { fileId, sha256, name } = file;
  const about = <><span className="truncate">{name}</span>{file.bytes !== null && <span className="shrink-0 text-xs text-faint">{formatBytes(file.bytes)}</span>}</>;
  if (fileId === null && sha256 === null) return <span className={LOOK}><Icon name="file" size={15} className="text-muted" />{about}</span>;
  const download = (): void => {
    const id = app.current.get()?.id ?? "";
    void run(async () => saveFile(fileId !== null ? await app.api.fileContent(fileId) : await app.api.downloadFile(id, sha256 ?? "", file.seq), name));
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
