// Whether the server serves a newer page than this tab runs: a tab may stay open during an upgrade.

const SCRIPT = /<script[^>]*\ssrc="([^"]+)"/g;

/** The file name contains a hash of the content. */
function fileName(address: string): string {
  return address.slice(address.lastIndexOf("/") + 1);
}

/** Whether `index` names another script than the `loaded` one. A page without our script, such as an error page, does not count. */
export function isOutdated(index: string, loaded: string): boolean {
  const names = [...index.matchAll(SCRIPT)].map((found) => fileName(found[1] ?? "")).filter((name) => name.startsWith("index-"));
  return names.length > 0 && !names.includes(fileName(loaded));
}

/** The script that this tab runs. */
export function loadedScript(): string {
  return document.querySelector<HTMLScriptElement>("script[type=module]")?.src ?? "";
}
