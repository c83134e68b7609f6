# gpuvec in a container, for a CPU or for an NVIDIA GPU whose driver supports CUDA 13 (with the NVIDIA Container Toolkit):
#
#     docker build --tag gpuvec .
#     docker build --tag gpuvec:cuda13 --build-arg DRIVER=13.0 .
#     docker run --rm gpuvec
#     docker run --rm --gpus all gpuvec:cuda13
#
# The build needs a network: the image of Python, PyPI, and for a CPU PyTorch's index. It ends with a smoke test on the CPU.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim-bookworm

ARG DRIVER=none
ARG PIP_EXTRA_INDEX_URL=
WORKDIR /opt/gpuvec
COPY run.py pyproject.toml README.md LICENSE constraints.txt constraints-cuda12.txt constraints-cuda13.txt ./
COPY src src
COPY envs envs
COPY tools/smoke_test.py tools/smoke_test.py
RUN PIP_NO_CACHE_DIR=1 python run.py check --driver "$DRIVER" --device cpu \
    || { echo "The build needs PyPI and https://download.pytorch.org/whl/cpu, or a copy of them: --build-arg PIP_EXTRA_INDEX_URL=..." >&2; exit 1; }

ENV PATH=/opt/gpuvec/.venv/bin:$PATH
RUN useradd --create-home gpuvec
USER gpuvec
WORKDIR /home/gpuvec
CMD ["gpuvec", "doctor"]
