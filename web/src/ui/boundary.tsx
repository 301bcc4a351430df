// Error boundaries: an error while a part of the page is drawn is shown in its place, and the rest keeps working.
import { Component, type ReactElement, type ReactNode } from "react";
import { ErrorMessage } from "./common";

interface Props {
  /** What the children are drawn from. The error is cleared when it changes. */
  subject: unknown;
  fallback: (error: unknown, retry: () => void) => ReactNode;
  onError?: (error: unknown) => void;
  children: ReactNode;
}

interface State {
  subject: unknown;
  failure: { error: unknown } | null;
}

export class ErrorBoundary extends Component<Props, State> {
  override state: State = { subject: this.props.subject, failure: null };

  static getDerivedStateFromError(error: unknown): Partial<State> {
    return { failure: { error } };
  }

  static getDerivedStateFromProps({ subject }: Props, before: State): State | null {
    return Object.is(subject, before.subject) ? null : { subject, failure: null };
  }

  override componentDidCatch(error: unknown): void {
    this.props.onError?.(error);
  }

  override render(): ReactNode {
    const { failure } = this.state;
    return failure === null ? this.props.children : this.props.fallback(failure.error, () => this.setState({ failure: null }));
  }
}

/** A boundary for a whole part of the page, such as a panel. */
export function PartBoundary({ name, subject = null, children }: { name: string; subject?: unknown; children: ReactNode }): ReactElement {
  return (
    <ErrorBoundary subject={subject} fallback={(_, retry) => <div className="p-3"><ErrorMessage text={`${name} could not be displayed because of an error in the page.`} retry={retry} /></div>}>
      {children}
    </ErrorBoundary>
  );
}
