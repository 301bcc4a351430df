// Mail that nobody could answer; for admins.
import type { ReactElement } from "react";
import type { Letter } from "../api/shapes";
import { hashOf } from "../store/address";
import { useAsked } from "../ui/asking";
import { useApp } from "../ui/context";
import { plural, whole } from "../ui/format";
import { Button, Failure, Hint } from "../ui/parts";
import { Decide } from "./Decide";

export default function LettersPanel(): ReactElement {
  const app = useApp();
  const { value, problem, again } = useAsked(() => app.api.letters(), "letters");
  if (problem) return <div className="p-3"><Failure text={problem} again={again} /></div>;
  if (value === null) return <Hint>Loading…</Hint>;
  return (
    <div className="space-y-2 p-3">
      <Button className="w-full" onClick={again}>Look again</Button>
      {value.letters.length === 0 && <Hint>None. All mail was answered.</Hint>}
      <ul aria-label="Dead letters" className="space-y-2">{value.letters.map((letter) => <Entry key={`${letter.agent}/${letter.seq}`} letter={letter} changed={again} />)}</ul>
    </div>
  );
}

function Entry({ letter, changed }: { letter: Letter; changed: () => void }): ReactElement {
  const app = useApp();
  const { agent, seq } = letter;
  return (
    <li className="rounded-xl border border-line p-3 text-sm">
      <div className="flex justify-between gap-2"><strong className="font-medium">{agent}</strong><span className="text-xs text-faint">{whole(Date.parse(letter.buried_at))}</span></div>
      {letter.text !== null && <p className="mt-1 line-clamp-3 wrap-anywhere">{letter.text}</p>}
      <p className="mt-1 text-xs text-bad wrap-anywhere">{letter.reason} ({plural(letter.attempts, "attempt")})</p>
      <Decide
        retry={() => app.api.retryLetter(agent, seq)} drop={() => app.api.dropLetter(agent, seq)} changed={changed}
        warning="Drop it? Nobody will answer it."
      >
        {letter.conversation_id && <a className="ml-auto text-xs text-accent-ink underline" href={hashOf(letter.conversation_id)}>conversation</a>}
      </Decide>
    </li>
  );
}
