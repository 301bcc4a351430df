import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./store/app";
import { useCell } from "./store/cell";
import { AppProvider, useApp } from "./ui/context";
import { Shell } from "./ui/Shell";
import { keepTheme } from "./ui/theme";
import { TokenAsk } from "./ui/TokenAsk";
import "./styles.css";

function Page() {
  const asking = useCell(useApp().asking);
  return asking ? <TokenAsk /> : <Shell />;
}

keepTheme();
const root = document.getElementById("root");
if (root !== null) {
  createRoot(root).render(
    <StrictMode>
      <AppProvider value={App.start()}><Page /></AppProvider>
    </StrictMode>,
  );
}
