# Proctor in a container.
#
#   docker build --target cpu -t proctor .                  software OpenGL, no GPU
#   docker build --target cuda -t proctor:cuda .            CUDA, rendering by EGL on the GPU
#   docker run --rm -v "$PWD/outputs:/work/outputs" proctor eval --policy.type=expert --env.type=metaworld --env.task=reach-v3
#   docker run --rm --gpus all -v "$PWD/outputs:/work/outputs" proctor:cuda doctor
#
# EXTRAS chooses what is installed: --build-arg EXTRAS=metaworld,torch,dataset,video
# scripts/container_setup.sh does the work; `make test-container` runs it without a container.

FROM python:3.12-slim-bookworm@sha256:a116514e19457bcb7af7efe9c3dd0b9b71e85b317694e7882a1c52aa15a78134 AS cpu
ARG EXTRAS=metaworld,torch,dataset,video
COPY . /clone
RUN sh /clone/scripts/container_setup.sh cpu /clone /opt/proctor "$EXTRAS" && rm -rf /clone
ENV PATH=/opt/proctor/bin:$PATH
WORKDIR /work
ENTRYPOINT ["proctor"]
CMD ["--help"]

FROM nvidia/cuda:12.6.3-runtime-ubuntu24.04@sha256:92906d87596d638d35015c6353053121bd299d25943b875763321653884ba924 AS cuda
ARG EXTRAS=metaworld,torch,dataset,video
COPY . /clone
RUN sh /clone/scripts/container_setup.sh cuda /clone /opt/proctor "$EXTRAS" && rm -rf /clone
# The NVIDIA container runtime mounts only the driver parts that are named here.
ENV PATH=/opt/proctor/bin:$PATH NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics
WORKDIR /work
ENTRYPOINT ["proctor"]
CMD ["--help"]
