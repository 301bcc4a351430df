import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./store/app";
import { useObservable } from "./store/observable";
import { ErrorBoundary } from "./ui/boundary";
import { ErrorMessage } from "./ui/common";
import { AppProvider, useApp } from "./ui/context";
import { Shell } from "./ui/Shell";
import { initTheme } from "./ui/theme";
import { SignIn } from "./ui/SignIn";
import "./styles.css";

function Page() {
  const needsToken = useObservable(useApp().needsToken);
  return needsToken ? <SignIn /> : <Shell />;
}

function pageError() {
  return <div className="mx-auto max-w-xl p-6"><ErrorMessage text="The page could not be displayed because of an error. Your conversations are stored on the server." retry={() => location.reload()} label="Reload" /></div>;
}

initTheme();
const root = document.getElementById("root");
if (root !== null) {
  createRoot(root).render(
    <StrictMode>
      <AppProvider value={App.start()}><ErrorBoundary subject={null} fallback={pageError}><Page /></ErrorBoundary></AppProvider>
    </StrictMode>,
  );
}
