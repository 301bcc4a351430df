import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./store/app";
import { useObservable } from "./store/observable";
import { AppProvider, useApp } from "./ui/context";
import { Shell } from "./ui/Shell";
import { initTheme } from "./ui/theme";
import { SignIn } from "./ui/SignIn";
import "./styles.css";

function Page() {
  const needsToken = useObservable(useApp().needsToken);
  return needsToken ? <SignIn /> : <Shell />;
}

initTheme();
const root = document.getElementById("root");
if (root !== null) {
  createRoot(root).render(
    <StrictMode>
      <AppProvider value={App.start()}><Page /></AppProvider>
    </StrictMode>,
  );
}
