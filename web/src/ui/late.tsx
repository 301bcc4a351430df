// Parts of the page that load when they are first needed. One that does not come is told where it would be.
import { Component, type ComponentType, lazy, type LazyExoticComponent, type ReactElement, type ReactNode } from "react";
import { useApp } from "./context";
import { Failure } from "./parts";

/** A part that did not load: the network is away, or the server has another page by now. */
class Missing extends Error {}

export function late<P>(load: () => Promise<{ default: ComponentType<P> }>): LazyExoticComponent<ComponentType<P>> {
  return lazy(() => load().catch((error: unknown) => {
    throw new Missing(String(error));
  }));
}

interface Props {
  /** Another one is tried anew. */
  name: string;
  missing: () => void;
  children: ReactNode;
}

class Boundary extends Component<Props, { failed: string | null }> {
  override state = { failed: null };

  static getDerivedStateFromError(error: unknown): { failed: string } {
    if (!(error instanceof Missing)) throw error;
    return { failed: error.message };
  }

  override componentDidCatch(): void {
    this.props.missing();
  }

  override render(): ReactNode {
    return this.state.failed === null ? this.props.children : (
      <div className="p-3"><Failure text="This part of the page could not be loaded." again={() => location.reload()} label="Reload the page" /></div>
    );
  }
}

export function Late({ name, children }: { name: string; children: ReactNode }): ReactElement {
  const app = useApp();
  return <Boundary key={name} name={name} missing={() => void app.compare()}>{children}</Boundary>;
}
