// Keys that work anywhere on the page.
import { go } from "../store/address";

export interface Deeds {
  help: () => void;
  conversations: () => void;
}

export const KEYS = [
  { keys: "Ctrl K", does: "Search conversations" },
  { keys: "Ctrl Shift O", does: "New conversation" },
  { keys: "Ctrl .", does: "Stop the run" },
  { keys: "/", does: "Write a message" },
  { keys: "Enter", does: "Send" },
  { keys: "Shift Enter", does: "Break the line" },
  { keys: "?", does: "This help" },
] as const;

export function heedKeys(deeds: Deeds): () => void {
  const heed = (event: KeyboardEvent): void => {
    const deed = deedOf(event, deeds);
    if (deed === null) return;
    event.preventDefault();
    deed();
  };
  window.addEventListener("keydown", heed);
  return () => window.removeEventListener("keydown", heed);
}

function deedOf(event: KeyboardEvent, deeds: Deeds): (() => void) | null {
  const key = event.key.toLowerCase();
  if (event.ctrlKey || event.metaKey) {
    if (key === "k") return () => { deeds.conversations(); focus("search"); };
    if (key === "o" && event.shiftKey) return () => { go(null); focus("composer"); };
    if (key === ".") return () => document.getElementById("stop")?.click();
    return null;
  }
  if (event.altKey || isWriting(event.target)) return null;
  if (key === "/") return () => focus("composer");
  if (key === "?") return deeds.help;
  return null;
}

function isWriting(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(?:INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

/** Once what was opened is there. */
function focus(id: string): void {
  requestAnimationFrame(() => requestAnimationFrame(() => document.getElementById(id)?.focus()));
}
