// Writes TypeScript types of the API's schemas: `types.mjs OUT` reads the OpenAPI document from standard input.
import { writeFileSync } from "node:fs";
import { text } from "node:stream/consumers";
import openapi, { astToString } from "openapi-typescript";

const { openapi: version, info, components } = JSON.parse(await text(process.stdin));
const shapes = { openapi: version, info, paths: {}, components: { schemas: components.schemas } };
const written = astToString(await openapi(shapes, { alphabetize: true, exportType: true }));
writeFileSync(process.argv[2], `// Made by \`make page-types\` from the gateway's OpenAPI document; not to be edited.\n${written}`);
