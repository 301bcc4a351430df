// Hubs by who asks: tabs that hold the same token share one.
import { Hub, type Member } from "./hub";
import type { Tell, ToHub } from "./protocol";

export class Hubs {
  private readonly known = new Map<string, Hub>();

  constructor(private readonly shared: boolean) {}

  /** A new tab; what it says goes into the answer. */
  connect(tell: Tell, gone?: (tab: string, leave: () => void) => void): (message: ToHub) => void {
    const member: Member = { tell, cursors: new Map(), visible: true };
    let hub: Hub | null = null;
    const leave = (): void => {
      hub?.leave(member);
      hub = null;
    };
    return (message) => {
      if (message.kind === "hello") {
        leave();
        member.visible = message.visible;
        hub = this.hub(message.base, message.token);
        hub.join(member);
        gone?.(message.tab, leave);
      } else if (hub !== null) heed(hub, member, message, leave);
    };
  }

  private hub(base: string, token: string | null): Hub {
    const key = JSON.stringify([base, token]);
    const hub = this.known.get(key) ?? new Hub(base, token, this.shared);
    this.known.set(key, hub);
    return hub;
  }
}

function heed(hub: Hub, member: Member, message: ToHub, leave: () => void): void {
  switch (message.kind) {
    case "follow": return hub.follow(member, message.sessions);
    case "visible": return hub.setVisible(member, message.visible);
    case "sent": return hub.hurry();
    case "online": return hub.setOnline(message.online);
    case "bye": return leave();
    case "hello": return;
  }
}
