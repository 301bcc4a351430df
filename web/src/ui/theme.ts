// The theme: light, dark, or that of the system. `theme.js` sets it before the first paint; this module changes it.
import { Observable } from "../store/observable";
import { localStore } from "../store/storage";

export type Theme = "system" | "light" | "dark";

export const THEMES: readonly Theme[] = ["system", "light", "dark"];
const system = globalThis.matchMedia?.("(prefers-color-scheme: dark)");

export const theme = new Observable<Theme>(parse(localStore.get("theme")));

function parse(text: string | null): Theme {
  return text === "light" || text === "dark" ? text : "system";
}

export function isDark(): boolean {
  return theme.get() === "dark" || (theme.get() === "system" && system.matches);
}

function apply(): void {
  document.documentElement.dataset["theme"] = isDark() ? "dark" : "light";
}

export function initTheme(): void {
  theme.subscribe(() => {
    localStore.set("theme", theme.get() === "system" ? null : theme.get());
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}
