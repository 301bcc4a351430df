// Asks for a token when the server rejects a request without one, or with a wrong one.
import { type FormEvent, type ReactElement, useState } from "react";
import { Button } from "./common";
import { useApp } from "./context";
import { Icon } from "./icons";

export function SignIn(): ReactElement {
  const app = useApp();
  const [token, setToken] = useState("");
  const rejected = app.api.token !== null;
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    if (token.trim() !== "") app.setToken(token.trim());
  };
  return (
    <main className="flex h-full items-center justify-center overflow-y-auto p-5">
      <form onSubmit={submit} className="w-full max-w-md rounded-2xl border border-line bg-surface p-6 shadow-sm sm:p-8">
        <Icon name="key" size={26} className="text-accent-ink" />
        <h1 className="mt-3 text-xl font-semibold tracking-tight">{rejected ? "Sign-in failed" : "Sign in"}</h1>
        <p className="mt-2 text-muted">Enter an access key, or the gateway's token. To print the token, run <code className="rounded bg-sunken px-1.5 py-0.5 font-mono text-[13px]">magent2 token show</code> on the server.</p>
        <label className="mt-5 block text-sm font-medium">
          Token or key
          <input autoFocus type="password" autoComplete="off" spellCheck={false} value={token} onChange={(event) => setToken(event.target.value)} className="mt-1 w-full rounded-lg border border-line bg-page px-3 py-2 font-mono text-sm" />
        </label>
        {rejected && <p role="alert" className="mt-2 text-sm text-bad">This token or key is not valid. It may be mistyped, replaced or revoked.</p>}
        <Button type="submit" tone="strong" className="mt-4 w-full py-2!" disabled={token.trim() === ""}>Sign in</Button>
        <p className="mt-3 text-xs text-faint">It is stored in this browser until you sign out, and only sent to this gateway.</p>
      </form>
    </main>
  );
}
