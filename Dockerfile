# syntax=docker/dockerfile:1

ARG PYTHON_VERSION=3.11

FROM node:24-slim AS page
WORKDIR /app/web
COPY web/package.json web/package-lock.json web/.npmrc ./
RUN --mount=type=cache,target=/root/.npm npm ci
COPY web ./
RUN npm run build

FROM python:${PYTHON_VERSION}-slim AS build
ENV UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_NO_DEFAULT_GROUPS=1 \
    UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir --root-user-action=ignore 'uv>=0.8,<1'
WORKDIR /app
# Dependencies change less often than the code, so they have a layer of their own that is cached.
COPY pyproject.toml uv.lock ./
RUN --mount=type=cache,target=/root/.cache/uv uv sync --frozen --no-install-project
COPY README.md LICENSE ./
COPY magent2 magent2
COPY --from=page /app/magent2/web magent2/web
RUN --mount=type=cache,target=/root/.cache/uv uv sync --frozen --no-editable

FROM python:${PYTHON_VERSION}-slim
RUN groupadd --system --gid 10001 magent2 \
 && useradd --system --uid 10001 --gid magent2 --home-dir /data --shell /usr/sbin/nologin magent2 \
 && install -d -o magent2 -g magent2 -m 0700 /data
COPY --from=build /app/.venv /app/.venv
# Without a bus URL, the log is a SQLite file on the volume.
ENV PATH=/app/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    MAGENT2_DATA_DIR=/data
# A numeric id, so that Kubernetes can verify that the user is not root.
USER 10001:10001
WORKDIR /data
VOLUME /data
STOPSIGNAL SIGTERM
# Gateway and worker in one process; compose.yaml starts them separately. The health check belongs to each service,
# not to the image, because a worker has no port.
EXPOSE 8700
CMD ["magent2", "serve", "--host", "0.0.0.0"]
