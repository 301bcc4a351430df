// Keyboard shortcuts that work anywhere on the page.
import { navigate } from "../store/route";

export interface ShortcutActions {
  showHelp: () => void;
  showConversations: () => void;
}

export const SHORTCUTS = [
  { keys: "Ctrl K", action: "Search conversations" },
  { keys: "Ctrl Shift O", action: "New conversation" },
  { keys: "Ctrl .", action: "Stop the run" },
  { keys: "/", action: "Go to the message box" },
  { keys: "Enter", action: "Send the message" },
  { keys: "Shift Enter", action: "New line" },
  { keys: "?", action: "Show keyboard shortcuts" },
] as const;

export function listenForShortcuts(actions: ShortcutActions): () => void {
  const onKeyDown = (event: KeyboardEvent): void => {
    const action = actionFor(event, actions);
    if (action === null) return;
    event.preventDefault();
    action();
  };
  window.addEventListener("keydown", onKeyDown);
  return () => window.removeEventListener("keydown", onKeyDown);
}

function actionFor(event: KeyboardEvent, actions: ShortcutActions): (() => void) | null {
  const key = event.key.toLowerCase();
  if (event.ctrlKey || event.metaKey) {
    if (key === "k") return () => { actions.showConversations(); focus("search"); };
    if (key === "o" && event.shiftKey) return () => { navigate(null); focus("composer"); };
    if (key === ".") return () => document.getElementById("stop")?.click();
    return null;
  }
  if (event.altKey || isTextInput(event.target)) return null;
  if (key === "/") return () => focus("composer");
  if (key === "?") return actions.showHelp;
  return null;
}

function isTextInput(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(?:INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

/** Focus an element after two frames, when a panel that was just opened has been drawn. */
function focus(id: string): void {
  requestAnimationFrame(() => requestAnimationFrame(() => document.getElementById(id)?.focus()));
}
