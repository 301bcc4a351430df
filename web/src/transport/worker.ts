// The hub of all tabs, in a shared worker.
import { Hubs } from "./hubs";
import type { FromHub, ToHub } from "./protocol";

const hubs = new Hubs(true);

// A port does not tell that its tab is gone. A tab holds a lock of its name for as long as it lives.
function whenGone(tab: string, leave: () => void): void {
  void navigator.locks?.request(`magent2.tab.${tab}`, leave);
}

(self as unknown as { onconnect: (event: MessageEvent) => void }).onconnect = (event) => {
  const port = event.ports[0];
  if (port === undefined) return;
  const heed = hubs.connect((message: FromHub) => port.postMessage(message), whenGone);
  port.onmessage = ({ data }: MessageEvent<ToHub>) => heed(data);
  port.start();
};
