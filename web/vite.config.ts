import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// Relative addresses, so that the page works under any path that a proxy puts in front of it.
// `page/` is the one folder that the gateway hands out without a token.
export default defineConfig({
  base: "./",
  plugins: [react(), tailwindcss()],
  worker: { format: "es" },
  build: {
    outDir: "../magent2/web",
    emptyOutDir: true,
    assetsDir: "page",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    chunkSizeWarningLimit: 400,
    reportCompressedSize: false,
  },
});
