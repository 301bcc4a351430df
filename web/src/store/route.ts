// The URL fragment: `#/c/ID` is a conversation, `#token=…` a token that is removed from the address at once.
import { Observable } from "./observable";

export interface Route {
  conversationId: string | null;
}

/** The API is next to the page, so this works under any path that a proxy adds. */
export function apiBaseUrl(location: { origin: string; pathname: string }): string {
  return location.origin + location.pathname.replace(/[^/]*$/, "");
}

export function parseRoute(hash: string): Route {
  const found = /^#\/c\/([^?&]+)/.exec(hash);
  if (found?.[1] === undefined) return { conversationId: null };
  try {
    return { conversationId: decodeURIComponent(found[1]) };
  } catch (error) {
    if (error instanceof URIError) return { conversationId: found[1] };
    throw error;
  }
}

export function conversationHash(conversation: string | null): string {
  return conversation === null ? "#/" : `#/c/${encodeURIComponent(conversation)}`;
}

/** The token in a fragment, and the fragment without it. */
export function extractToken(hash: string): { token: string | null; rest: string } {
  const found = /(^#|&)token=([^&]*)/.exec(hash);
  if (found?.[2] === undefined) return { token: null, rest: hash };
  const rest = hash.replace(found[0], "").replace(/^&/, "");
  return { token: decodeURIComponent(found[2]) || null, rest: rest && !rest.startsWith("#") ? `#${rest}` : rest };
}

export const currentRoute = new Observable<Route>(parseRoute(globalThis.location?.hash ?? ""));

/** Show a conversation, or the start of a new one. The browser reports a new address later than the next key or paste can
 * come, which then belonged to the conversation before; so the route changes at once. */
export function navigate(conversation: string | null): void {
  if (currentRoute.get().conversationId === conversation) return;
  location.hash = conversationHash(conversation);
  currentRoute.set({ conversationId: conversation });
}
