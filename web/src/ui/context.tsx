import { createContext, useContext } from "react";
import type { App } from "../store/app";
import { useSelector } from "../store/observable";

const AppContext = createContext<App | null>(null);

export const AppProvider = AppContext.Provider;

export function useApp(): App {
  const app = useContext(AppContext);
  if (app === null) throw new Error("no App above this component");
  return app;
}

/**
 * Whether the server has a route. Until its routes are known, it counts as having it: a file that is pasted or a message
 * that is sent meanwhile must not be treated differently.
 */
export function useHasRoute(path: string): boolean {
  return useSelector(useApp().routes, (routes) => routes?.has(path) ?? true);
}

/** Whether the page gets no updates at the moment, so that what was running may have ended. */
export function useIsStale(): boolean {
  return useSelector(useApp().connectionStatus, ({ state }) => state === "offline" || state === "paused");
}
