"use strict";

const KEY = "magent2.token";
const LOOK_AGAIN_MS = 5000;

// Where the gateway is: behind a proxy it may be below a path.
const HERE = new URL(".", location.href).href;

const place = (id) => document.getElementById(id);

// The token comes in the fragment, which browsers send to nobody; the address is cleaned of it at once.
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname);
  }
}

async function ask(path) {
  const token = sessionStorage.getItem(KEY);
  const answer = await fetch(HERE + path, { headers: token ? { Authorization: `Bearer ${token}` } : {} });
  if (answer.status === 401) throw new Error("token");
  if (!answer.ok) throw new Error((await answer.json()).detail || `status ${answer.status}`);
  return answer.json();
}

function show(id, rows) {
  place(id).replaceChildren(
    ...rows.map((cells) => {
      const row = document.createElement("tr");
      row.append(...cells.map((text) => {
        const cell = document.createElement("td");
        cell.textContent = text;
        return cell;
      }));
      return row;
    }),
  );
  place(`no-${id}`).hidden = rows.length > 0;
}

function explain(agents) {
  const name = agents.length ? agents[0].name : "Ada";
  const body = JSON.stringify({ conversation_id: "hello", sender: "user:me", recipient: `agent:${name}`, content: "Hello!" });
  const header = sessionStorage.getItem(KEY) ? " -H \"Authorization: Bearer $(magent2 token show)\"" : "";
  place("how").textContent = [
    `magent2 send ${name} "Hello!" --wait`,
    "",
    `curl ${HERE}send${header} \\`,
    `  -H "Content-Type: application/json" -d '${body}'`,
    `curl -N ${HERE}stream/hello${header}`,
  ].join("\n");
}

async function look() {
  try {
    const { agents } = await ask("api/workers");
    const { conversations } = await ask("api/sdk/sessions?format=record");
    show("agents", agents.map((one) => [one.name, one.alive ? "yes" : "no", String(one.pending)]));
    show("conversations", conversations.map((one) => [
      one.conversation_id, one.title || "", one.active_agent || "", one.run_status || "",
      new Date(one.last_active_at).toLocaleString(),
    ]));
    explain(agents);
    tell("The gateway is running.", true, false);
  } catch (error) {
    if (error.message === "token") tell("", false, true);
    else tell(`Not reachable: ${error.message}`, false, false);
  }
  if (place("ask").hidden) setTimeout(look, LOOK_AGAIN_MS);
}

function tell(text, found, asking) {
  place("state").textContent = text;
  place("found").hidden = !found;
  place("ask").hidden = !asking;
}

place("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, place("token").value.trim());
  place("ask").hidden = true;
  look();
});

takeToken();
look();
