// Panels that are loaded when they are first opened, with an error message if that fails.
import { type ComponentType, lazy, type LazyExoticComponent, type ReactElement, type ReactNode } from "react";
import { ErrorBoundary } from "./boundary";
import { ErrorMessage } from "./common";
import { useApp } from "./context";

/** A chunk could not be loaded: there is no network, or the server has been upgraded and has other chunks. */
class ChunkLoadError extends Error {}

export function lazyPanel<P>(load: () => Promise<{ default: ComponentType<P> }>): LazyExoticComponent<ComponentType<P>> {
  return lazy(() => load().catch((error: unknown) => {
    throw new ChunkLoadError(String(error));
  }));
}

/** `name` resets the error when another panel is shown. */
export function LazyBoundary({ name, children }: { name: string; children: ReactNode }): ReactElement {
  const app = useApp();
  const onError = (error: unknown): void => {
    if (error instanceof ChunkLoadError) void app.checkForNewPage();
  };
  return <ErrorBoundary subject={name} onError={onError} fallback={panelError}>{children}</ErrorBoundary>;
}

function panelError(error: unknown, retry: () => void): ReactElement {
  const message = error instanceof ChunkLoadError
    ? <ErrorMessage text="This part of the page could not be loaded." retry={() => location.reload()} label="Reload the page" />
    : <ErrorMessage text="This panel could not be displayed because of an error in the page." retry={retry} />;
  return <div className="p-3">{message}</div>;
}
