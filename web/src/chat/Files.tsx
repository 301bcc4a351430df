// Files that came with a message: named, and kept by the browser on a click. None is opened here.
import type { ReactElement } from "react";
import type { Attachment } from "../fold/state";
import { useDoing } from "../ui/asking";
import { useApp } from "../ui/context";
import { size } from "../ui/format";
import { Icon } from "../ui/icons";
import { Spinner } from "../ui/parts";

const KEEP_MS = 60_000; // long after the browser has taken it over

export function Files({ files }: { files: readonly Attachment[] }): ReactElement | null {
  if (files.length === 0) return null;
  return <ul aria-label="Files" className="mt-2 flex flex-wrap gap-2">{files.map((file) => <li key={`${file.sha256}/${file.name}`} className="max-w-full"><File file={file} /></li>)}</ul>;
}

const LOOK = "inline-flex max-w-full items-center gap-2 rounded-lg border border-line bg-surface px-3 py-1.5 text-sm text-ink";

function File({ file }: { file: Attachment }): ReactElement {
  const app = useApp();
  const { busy, problem, run } = useDoing();
  const { sha256, name } = file;
  const about = <><span className="truncate">{name}</span>{file.bytes !== null && <span className="shrink-0 text-xs text-faint">{size(file.bytes)}</span>}</>;
  if (sha256 === null) return <span className={LOOK}><Icon name="file" size={15} className="text-muted" />{about}</span>;
  const fetchIt = (): void => {
    const id = app.current.get()?.id;
    if (id !== undefined) void run(async () => keep(await app.api.file(id, sha256, file.seq), name));
  };
  return (
    <>
      <button type="button" disabled={busy} onClick={fetchIt} title={file.type ?? undefined} aria-label={`Download ${name}`} className={`${LOOK} hover:bg-sunken`}>
        {busy ? <Spinner size={15} /> : <Icon name="file" size={15} className="text-muted" />}{about}<Icon name="down" size={14} className="text-muted" />
      </button>
      {problem && <p role="alert" className="mt-1 text-xs text-bad">{problem}</p>}
    </>
  );
}

/** The address of the file needs the token in a header, which a link cannot send. */
function keep(file: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), KEEP_MS);
}
