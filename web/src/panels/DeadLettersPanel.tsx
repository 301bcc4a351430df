// Messages that could not be processed; for admins.
import type { ReactElement } from "react";
import type { DeadLetter } from "../api/types";
import { conversationHash } from "../store/route";
import { Button, ErrorMessage, Hint } from "../ui/common";
import { useApp } from "../ui/context";
import { formatDateTime, plural } from "../ui/format";
import { useQuery } from "../ui/requests";
import { RetryOrDrop } from "./RetryOrDrop";

export default function DeadLettersPanel(): ReactElement {
  const app = useApp();
  const { value, error, reload } = useQuery(() => app.api.deadLetters(), "letters");
  if (error) return <div className="p-3"><ErrorMessage text={error} retry={reload} /></div>;
  if (value === null) return <Hint>Loading…</Hint>;
  return (
    <div className="space-y-2 p-3">
      <Button className="w-full" onClick={reload}>Refresh</Button>
      {value.letters.length === 0 && <Hint>No dead letters.</Hint>}
      <ul aria-label="Dead letters" className="space-y-2">{value.letters.map((letter) => <Entry key={`${letter.agent}/${letter.seq}`} letter={letter} onChange={reload} />)}</ul>
    </div>
  );
}

function Entry({ letter, onChange }: { letter: DeadLetter; onChange: () => void }): ReactElement {
  const app = useApp();
  const { agent, seq } = letter;
  return (
    <li className="rounded-xl border border-line p-3 text-sm">
      <div className="flex justify-between gap-2"><strong className="font-medium">{agent}</strong><span className="text-xs text-faint">{formatDateTime(Date.parse(letter.buried_at))}</span></div>
      {letter.text !== null && <p className="mt-1 line-clamp-3 wrap-anywhere">{letter.text}</p>}
      <p className="mt-1 text-xs text-bad wrap-anywhere">{letter.reason} ({plural(letter.attempts, "attempt")})</p>
      <RetryOrDrop
        retry={() => app.api.retryDeadLetter(agent, seq)} drop={() => app.api.dropDeadLetter(agent, seq)} onChange={onChange}
        warning="Drop this message? It will not be answered."
      >
        {letter.conversation_id && <a className="ml-auto text-xs text-accent-ink underline" href={conversationHash(letter.conversation_id)}>Open conversation</a>}
      </RetryOrDrop>
    </li>
  );
}
