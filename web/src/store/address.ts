// The address: `#/c/ID` is a conversation, `#token=…` a key that is taken out at once.
import { Cell } from "./cell";

export interface Place {
  conversation: string | null;
}

/** Where the API is: the folder of the page, whatever a proxy has put in front of it. */
export function baseOf(location: { origin: string; pathname: string }): string {
  return location.origin + location.pathname.replace(/[^/]*$/, "");
}

export function parsePlace(hash: string): Place {
  const found = /^#\/c\/([^?&]+)/.exec(hash);
  if (found?.[1] === undefined) return { conversation: null };
  try {
    return { conversation: decodeURIComponent(found[1]) };
  } catch (error) {
    if (error instanceof URIError) return { conversation: found[1] };
    throw error;
  }
}

export function hashOf(conversation: string | null): string {
  return conversation === null ? "#/" : `#/c/${encodeURIComponent(conversation)}`;
}

/** The token in a fragment, and what is left of it. */
export function takeToken(hash: string): { token: string | null; rest: string } {
  const found = /(^#|&)token=([^&]*)/.exec(hash);
  if (found?.[2] === undefined) return { token: null, rest: hash };
  const rest = hash.replace(found[0], "").replace(/^&/, "");
  return { token: decodeURIComponent(found[2]) || null, rest: rest && !rest.startsWith("#") ? `#${rest}` : rest };
}

export const place = new Cell<Place>(parsePlace(globalThis.location?.hash ?? ""));

export function go(conversation: string | null): void {
  if (place.get().conversation !== conversation) location.hash = hashOf(conversation);
}
