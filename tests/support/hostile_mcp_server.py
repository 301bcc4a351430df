"""An MCP server whose tool `take` answers with the text in `MCP_RESULT`. Run as a program."""

from __future__ import annotations

import json
import os
import sys

TOOL = {"name": "take", "description": "Take it.", "inputSchema": {"type": "object", "properties": {}}}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        method = request.get("method")
        if "id" not in request:
            continue
        if method == "initialize":
            version = request["params"]["protocolVersion"]
            facts = {"name": "hostile", "version": "1"}
            result = json.dumps({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": facts})
        elif method == "tools/list":
            result = json.dumps({"tools": [TOOL]})
        else:
            result = os.environ["MCP_RESULT"] if method == "tools/call" else "{}"
        sys.stdout.write(f'{{"jsonrpc": "2.0", "id": {json.dumps(request["id"])}, "result": {result}}}\n')
        sys.stdout.flush()


if __name__ == "__main__":
    main()
