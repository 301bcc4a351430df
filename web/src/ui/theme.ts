// Light, dark, or as the system has it. `theme.js` sets it before the first paint; this keeps it.
import { Cell } from "../store/cell";
import { kept } from "../store/kept";

export type Theme = "system" | "light" | "dark";

export const THEMES: readonly Theme[] = ["system", "light", "dark"];
const system = globalThis.matchMedia?.("(prefers-color-scheme: dark)");

export const theme = new Cell<Theme>(parse(kept.get("theme")));

function parse(text: string | null): Theme {
  return text === "light" || text === "dark" ? text : "system";
}

export function isDark(): boolean {
  return theme.get() === "dark" || (theme.get() === "system" && system.matches);
}

function apply(): void {
  document.documentElement.dataset["theme"] = isDark() ? "dark" : "light";
}

export function keepTheme(): void {
  theme.watch(() => {
    kept.set("theme", theme.get() === "system" ? null : theme.get());
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}
