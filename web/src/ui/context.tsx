import { createContext, useContext } from "react";
import type { App } from "../store/app";

const Here = createContext<App | null>(null);

export const AppProvider = Here.Provider;

export function useApp(): App {
  const app = useContext(Here);
  if (app === null) throw new Error("no App above this component");
  return app;
}
