// Whether the server has another page by now: a tab may stay open over an upgrade. Pure.

const SCRIPT = /<script[^>]*\ssrc="([^"]+)"/g;

/** The name of a file, which says what is in it. */
function nameOf(address: string): string {
  return address.slice(address.lastIndexOf("/") + 1);
}

/** `own`: the script that this tab runs. A plain page, or something else in its place, says nothing about it. */
export function isOutdated(index: string, own: string): boolean {
  const named = [...index.matchAll(SCRIPT)].map((found) => nameOf(found[1] ?? "")).filter((name) => name.startsWith("index-"));
  return named.length > 0 && !named.includes(nameOf(own));
}

/** The script that this tab runs. */
export function ownScript(): string {
  return document.querySelector<HTMLScriptElement>("script[type=module]")?.src ?? "";
}
