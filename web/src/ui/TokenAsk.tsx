// Asked for when the server does not know who calls.
import { type FormEvent, type ReactElement, useState } from "react";
import { useApp } from "./context";
import { Icon } from "./icons";
import { Button } from "./parts";

export function TokenAsk(): ReactElement {
  const app = useApp();
  const [token, setToken] = useState("");
  const refused = app.api.token !== null;
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    if (token.trim() !== "") app.setToken(token.trim());
  };
  return (
    <main className="flex h-full items-center justify-center overflow-y-auto p-5">
      <form onSubmit={submit} className="w-full max-w-md rounded-2xl border border-line bg-surface p-6 shadow-sm sm:p-8">
        <Icon name="key" size={26} className="text-accent-ink" />
        <h1 className="mt-3 text-xl font-semibold tracking-tight">{refused ? "That key does not open this gateway" : "Whose page is this?"}</h1>
        <p className="mt-2 text-muted">The gateway wants to know who asks. Its token is printed by <code className="rounded bg-sunken px-1.5 py-0.5 font-mono text-[13px]">magent2 token show</code>; a key that somebody made for you works as well.</p>
        <label className="mt-5 block text-sm font-medium">
          Token or key
          <input autoFocus type="password" autoComplete="off" spellCheck={false} value={token} onChange={(event) => setToken(event.target.value)} className="mt-1 w-full rounded-lg border border-line bg-page px-3 py-2 font-mono text-sm" />
        </label>
        {refused && <p role="alert" className="mt-2 text-sm text-bad">It was refused: mistyped, replaced by a newer one, or revoked.</p>}
        <Button type="submit" tone="strong" className="mt-4 w-full py-2!" disabled={token.trim() === ""}>Go on</Button>
        <p className="mt-3 text-xs text-faint">It is kept in this browser until you sign out, and goes to this gateway alone.</p>
      </form>
    </main>
  );
}
