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

/** Whether the page gets no updates at the moment, so that what was running may have ended. */
export function useIsStale(): boolean {
  return useSelector(useApp().connectionStatus, ({ state }) => state === "offline" || state === "paused");
}
