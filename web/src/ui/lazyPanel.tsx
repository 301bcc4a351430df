// Panels that are loaded when they are first opened, with an error message if that fails.
import { Component, type ComponentType, lazy, type LazyExoticComponent, type ReactElement, type ReactNode } from "react";
import { ErrorMessage } from "./common";
import { useApp } from "./context";

/** A chunk could not be loaded: there is no network, or the server has been upgraded and has other chunks. */
class ChunkLoadError extends Error {}

export function lazyPanel<P>(load: () => Promise<{ default: ComponentType<P> }>): LazyExoticComponent<ComponentType<P>> {
  return lazy(() => load().catch((error: unknown) => {
    throw new ChunkLoadError(String(error));
  }));
}

interface Props {
  onLoadError: () => void;
  children: ReactNode;
}

class Boundary extends Component<Props, { failed: string | null }> {
  override state = { failed: null };

  static getDerivedStateFromError(error: unknown): { failed: string } {
    if (!(error instanceof ChunkLoadError)) throw error;
    return { failed: error.message };
  }

  override componentDidCatch(): void {
    this.props.onLoadError();
  }

  override render(): ReactNode {
    return this.state.failed === null ? this.props.children : (
      <div className="p-3"><ErrorMessage text="This part of the page could not be loaded." retry={() => location.reload()} label="Reload the page" /></div>
    );
  }
}

/** `name` resets the error when another panel is shown. */
export function LazyBoundary({ name, children }: { name: string; children: ReactNode }): ReactElement {
  const app = useApp();
  return <Boundary key={name} onLoadError={() => void app.checkForNewPage()}>{children}</Boundary>;
}
