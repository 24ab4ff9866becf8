# One image a matrix (--build-arg MATRIX=performance|commercial), and --target cpu for machines without an NPU.
# Versions and commits are in matrix.toml and the locks; image/README.md says how all this is meant.
ARG BASE_IMAGE=quay.io/ascend/cann:8.3.rc1-910b-ubuntu22.04-py3.11
ARG CPU_BASE_IMAGE=debian:bookworm-slim

# ---- cpu: the emulated NPU and the cpu matrix --------------------------------------------------------------------
FROM ${CPU_BASE_IMAGE} AS cpu-base
# Builds are root's; both images end as user 1000.
# hadolint ignore=DL3002
USER 0
ARG APT_SNAPSHOT
COPY image/debian.sh image/debian.txt /opt/ascend-rl/project/image/
RUN /opt/ascend-rl/project/image/debian.sh cpu

FROM cpu-base AS cpu-build
ARG SOURCE_DATE_EPOCH=0
ARG PYTHONDONTWRITEBYTECODE=1
ARG UV_CACHE_DIR=/root/.cache/uv
ARG UV_LINK_MODE=copy
ARG APT_SNAPSHOT
RUN /opt/ascend-rl/project/image/debian.sh cpu-build
WORKDIR /opt/ascend-rl/project
COPY image/steps/__init__.py image/steps/step.py image/steps/cpu.py image/steps/
COPY environment.py matrix.toml requirements-cpu.lock ./
RUN --mount=type=secret,id=pip --mount=type=secret,id=ca --mount=type=secret,id=netrc,target=/root/.netrc \
    --mount=type=cache,target=/root/.cache/uv \
    python3.11 -m image.steps.cpu
COPY . .
ARG CPU_BASE_IMAGE
ARG REVISION
RUN .venv/bin/python -m emulator.site \
    && BASE_IMAGE=${CPU_BASE_IMAGE} .venv/bin/python -m image.steps.describe cpu /opt/ascend-rl \
    && python3.11 -m image.steps.tidy /opt/ascend-rl

FROM cpu-base AS cpu
ARG CPU_BASE_IMAGE
ARG REVISION
LABEL org.opencontainers.image.title="RL recipes for Ascend NPUs, emulated" \
      org.opencontainers.image.description="verl, Megatron and vLLM on an emulated NPU, for machines without one" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${CPU_BASE_IMAGE}" \
      org.opencontainers.image.revision="${REVISION}" \
      ascend-rl.matrix="cpu"
COPY --from=cpu-build /opt/ascend-rl /opt/ascend-rl
RUN install -d -o 1000 -g 1000 /opt/ascend-rl/cache /opt/ascend-rl/project/runs /opt/ascend-rl/project/assets
ENV PATH=/opt/ascend-rl/project/.venv/bin:${PATH} HOME=/opt/ascend-rl/cache XDG_CACHE_HOME=/opt/ascend-rl/cache
WORKDIR /opt/ascend-rl/project
USER 1000:1000
ENTRYPOINT ["/opt/ascend-rl/project/image/entrypoint.sh"]
CMD ["--list"]
HEALTHCHECK --interval=60s --timeout=20s CMD ["python", "-S", "/opt/ascend-rl/project/image/health.py"]

# ---- performance and commercial, on CANN --------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS base
# Builds are root's; both images end as user 1000.
# hadolint ignore=DL3002
USER 0
ARG APT_SNAPSHOT
COPY image/debian.sh image/debian.txt /opt/ascend-rl/project/image/
RUN /opt/ascend-rl/project/image/debian.sh npu
WORKDIR /opt/ascend-rl/project

# Sources by commit. A mirror may be named for each, since its commits are checked.
FROM base AS src
ARG MATRIX=performance
ARG VERL_REPOSITORY
ARG VLLM_REPOSITORY
ARG VLLM_ASCEND_REPOSITORY
ARG MINDSPEED_REPOSITORY
ARG MEGATRON_LM_REPOSITORY
ARG PYTHONDONTWRITEBYTECODE=1
COPY image/steps/__init__.py image/steps/step.py image/steps/sources.py image/steps/
COPY matrix.toml ./
RUN --mount=type=secret,id=ca --mount=type=secret,id=netrc,target=/root/.netrc \
    python3 -m image.steps.sources "${MATRIX}" /sources

FROM base AS build
ARG MATRIX=performance
ARG SOURCE_DATE_EPOCH=0
ARG PYTHONDONTWRITEBYTECODE=1
ARG UV_CACHE_DIR=/root/.cache/uv
ENV PATH=/opt/ascend-rl/venv/bin:${PATH}
# The lock, file by file against its hashes.
COPY image/steps/__init__.py image/steps/step.py image/steps/packages.py image/steps/
COPY environment.py matrix.toml requirements*.lock ./
RUN --mount=type=secret,id=pip --mount=type=secret,id=ca --mount=type=secret,id=netrc,target=/root/.netrc \
    --mount=type=cache,target=/root/.cache/uv \
    python3 -m image.steps.packages "${MATRIX}" /opt/ascend-rl/venv
# The components, without an index: all that they need is there.
ARG SOC_VERSION=ASCEND910B1
ARG COMPILE_CUSTOM_KERNELS=1
ARG MAX_JOBS
COPY --from=src /sources /sources
COPY image/entrypoint.sh image/contents.toml image/
COPY image/steps/components.py image/steps/
RUN TORCH_DEVICE_BACKEND_AUTOLOAD=0 image/entrypoint.sh python -m image.steps.components "${MATRIX}" /sources
# The patches, the emulated NPU, and the gate that all of it has to pass.
COPY . .
ARG BASE_IMAGE
ARG REVISION
# Without CANN's own packages, which the base image has on PYTHONPATH.
ENV PYTHONPATH=
RUN TORCH_DEVICE_BACKEND_AUTOLOAD=0 python -m image.steps.patch "${MATRIX}" \
    && NPU_EMULATOR_BESIDE=torch_npu python -m image.steps.gate "${MATRIX}" /sources \
    && python -m image.steps.describe "${MATRIX}" /opt/ascend-rl \
    && python3 -m image.steps.tidy /opt/ascend-rl

FROM base AS final
ARG MATRIX=performance
ARG BASE_IMAGE
ARG REVISION
LABEL org.opencontainers.image.title="RL recipes for Ascend NPUs" \
      org.opencontainers.image.description="verl, Megatron, MindSpeed, vLLM and vllm-ascend at the commits of one matrix" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      org.opencontainers.image.revision="${REVISION}" \
      ascend-rl.matrix="${MATRIX}"
COPY --from=build /opt/ascend-rl /opt/ascend-rl
RUN install -d -o 1000 -g 1000 /opt/ascend-rl/cache /opt/ascend-rl/project/runs /opt/ascend-rl/project/assets
# ASCEND_WORK_PATH: what CANN compiles for itself would else go into the current folder, which the user may not write.
# NPU_EMULATOR_BESIDE: the emulated NPU may run although the real torch_npu is installed, here on purpose.
ENV PATH=/opt/ascend-rl/venv/bin:${PATH} HOME=/opt/ascend-rl/cache XDG_CACHE_HOME=/opt/ascend-rl/cache \
    ASCEND_WORK_PATH=/opt/ascend-rl/cache/ascend NPU_EMULATOR_BESIDE=torch_npu
USER 1000:1000
ENTRYPOINT ["/opt/ascend-rl/project/image/entrypoint.sh"]
CMD ["--list"]
HEALTHCHECK --interval=60s --timeout=20s CMD ["python", "-S", "/opt/ascend-rl/project/image/health.py"]
